"""`import samovar` stays light: it is in every instance, every command and every user's test."""

from __future__ import annotations

import subprocess
import sys

import pytest

import samovar

HEAVY = {"redis", "boto3", "torch", "transformers", "litestar", "uvicorn", "httpx", "numpy", "rich", "asyncio"}


def _imported_by(statement: str) -> set[str]:
    code = f"{statement}\nimport sys\nsys.stdout.write(' '.join(sys.modules))"
    return set(subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split())


@pytest.mark.parametrize(
    ("statement", "allowed"),
    [
        ("import samovar", set()),
        ("import samovar.authoring, samovar.schema, samovar.inspection, samovar.bundle", set()),
        ("import samovar.cli.__main__", set()),
        ("import samovar.client", {"httpx", "asyncio", "rich"}),
    ],
)
def test_nothing_heavy_comes_along(statement: str, allowed: set[str]) -> None:
    assert _imported_by(statement) & (HEAVY - allowed) == set()


def test_every_public_name_resolves() -> None:
    assert {getattr(samovar, name) for name in samovar.__all__} - {samovar.__version__}
    assert set(samovar.__all__) <= set(dir(samovar))
    assert samovar.errors.SamovarError is samovar.SamovarError
    with pytest.raises(AttributeError, match="no attribute 'functoin'"):
        _ = samovar.functoin
