"""The rules of the house that no linter checks."""

import importlib
import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

from samovar import errors, settings

ROOT = Path(__file__).parents[2]
SOURCE_ROOTS = ("functions", "storage", "pool_manager", "platform")


@pytest.mark.parametrize("root", SOURCE_ROOTS)
def test_source_roots_are_not_packages(root: str) -> None:
    assert not (ROOT / root / "__init__.py").exists()


def test_standard_platform_module_is_not_shadowed() -> None:
    code = "import platform; print(platform.__file__); platform.machine()"
    out = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert not out.stdout.startswith(str(ROOT))


def test_error_codes_are_unique_and_drawn_in_the_docstring() -> None:
    classes = errors._walk(errors.SamovarError)
    assert len(errors.by_code()) == len(classes)
    drawing = errors.__doc__ or ""
    for cls in classes:
        assert re.search(rf"\b{cls.__name__}\s+{cls.code}\b", drawing), cls


def test_rebuild_keeps_code_and_extra() -> None:
    error = errors.rebuild("invalid_input", 422, "no", {"path": "$.x", "retry_after_s": 1.5})
    assert isinstance(error, errors.InvalidInput)
    assert (error.extra, error.retry_after_s) == ({"path": "$.x"}, 1.5)
    for wait_s in (float("nan"), float("inf"), -1, "soon"):
        assert errors.rebuild("rate_limited", 429, "no", {"retry_after_s": wait_s}).retry_after_s is None
    assert isinstance(errors.rebuild("brand_new", 418, "tea"), errors.RequestError)
    assert isinstance(errors.rebuild("brand_new", 503, "tea"), errors.Unavailable)


@pytest.mark.parametrize(
    "path",
    [
        "samovar_storage.settings:StoreSettings",
        "samovar_gateway.settings:GatewaySettings",
        "samovar_jobs.settings:JobsSettings",
        "samovar_pool.settings:PoolSettings",
        "samovar_up.settings:UpSettings",
    ],
)
def test_every_setting_is_described(path: str) -> None:
    module, name = path.split(":")
    cls = getattr(importlib.import_module(module), name)
    for variable, _, description in settings.describe(cls):
        assert description, f"{variable} has no description"


def test_secrets_never_print() -> None:
    secret = settings.Secret("hunter2")
    assert "hunter2" not in f"{secret!r} {secret} {[secret]}"
    assert secret.reveal() == "hunter2"


def test_settings_page_is_current() -> None:
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs" / "generate.py")
    assert spec is not None and spec.loader is not None
    generate = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(generate)
    assert generate.PAGE.read_text() == generate.page(), "run make docs"
