"""What goes up: the archive of the code, the list of weights, and what is refused."""

from __future__ import annotations

import hashlib
import io
import os
import tarfile
from pathlib import Path

import pytest

from samovar import bundle
from samovar.bundle import HashCache, SourceFile, code_files, hash_files, pack, refuse_pickles, weight_files
from samovar.errors import DeployRefused


def write(root: Path, **files: str) -> Path:
    """Write files below `root`; `__` in a name stands for '/', a leading one for nothing."""
    for name, content in files.items():
        path = root / name.replace("__", "/").replace("_dot_", ".")
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(content)
    return root


def names(files: list[SourceFile]) -> list[str]:
    return [file.name for file in files]


def test_the_same_files_give_the_same_bytes(tmp_path: Path) -> None:
    first = write(tmp_path / "a", app_dot_py="x = 1", lib__util_dot_py="y = 2")
    second = write(tmp_path / "b", lib__util_dot_py="y = 2", app_dot_py="x = 1")
    os.utime(second / "app.py", (1, 1))
    archive = pack(code_files(first))
    assert archive == pack(code_files(second))
    (second / "app.py").write_text("x = 2")
    assert archive != pack(code_files(second))
    with tarfile.open(fileobj=io.BytesIO(archive)) as tar:
        assert tar.getnames() == ["app.py", "lib/util.py"]
        assert {(member.uid, member.mtime, member.mode) for member in tar} == {(0, 0, 0o644)}


def test_what_never_goes_up(tmp_path: Path) -> None:
    root = write(
        tmp_path,
        app_dot_py="",
        _dot_git__config="",
        _dot_env="SECRET=1",
        venv__bin__python="",
        mine__pyvenv_dot_cfg="",
        mine__lib_dot_py="",
        data__big_dot_csv="",
        model__w_dot_safetensors="",
        _dot_samovarignore="# not these\ndata/\n",
    )
    (root / "__pycache__").mkdir()
    (root / "__pycache__" / "app.pyc").write_bytes(b"")
    (root / "gone").symlink_to(root / "nowhere")
    assert names(code_files(root, exclude=root / "model")) == ["app.py"]


def test_too_much_code_is_refused_with_the_largest_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, app_dot_py="x", huge_dot_dat="x" * 100)
    monkeypatch.setattr(bundle, "MAX_CODE_BYTES", 50)
    with pytest.raises(DeployRefused, match=r"largest file is huge\.dat"):
        code_files(tmp_path)
    monkeypatch.setattr(bundle, "MAX_CODE_FILES", 1)
    with pytest.raises(DeployRefused, match="more than 1 files"):
        code_files(tmp_path)


def test_weights_are_a_folder_or_one_file(tmp_path: Path) -> None:
    root = write(tmp_path / "project", app_dot_py="")
    model = write(tmp_path / "model", b__w_dot_safetensors="w", a_dot_json="{}", _dot_hidden="")
    assert names(weight_files(model, root)) == ["a.json", "b/w.safetensors"]
    assert names(weight_files(model / "a.json", root)) == ["a.json"]
    (tmp_path / "empty").mkdir()
    with pytest.raises(DeployRefused, match="is empty"):
        weight_files(tmp_path / "empty", root)
    with pytest.raises(DeployRefused, match="hold the project itself"):
        weight_files(tmp_path, root)


@pytest.mark.parametrize("name", ["pytorch_model.bin", "model.pt", "a/b.PKL", "last.ckpt"])
def test_pickles_are_refused_with_the_reason(name: str) -> None:
    files = [SourceFile(Path("config.json"), "config.json", 1), SourceFile(Path(name), name, 1)]
    with pytest.raises(DeployRefused, match=r"run any code hidden in them.*safetensors.*--allow-pickle"):
        refuse_pickles(files)
    refuse_pickles(files[:1])


def test_hashes_are_right_and_remembered(tmp_path: Path) -> None:
    root = write(tmp_path / "model", a="tea" * 1_000_000, b="")
    old_s = (root / "a").stat().st_mtime - 10
    os.utime(root / "a", (old_s, old_s))
    files = weight_files(root, tmp_path / "project")
    seen: list[int] = []
    refs = hash_files(files, HashCache(tmp_path / "cache.json"), seen.append)
    assert [ref.sha256 for ref in refs] == [hashlib.sha256((root / name).read_bytes()).hexdigest() for name in "ab"]
    assert sum(seen) == sum(file.size_bytes for file in files)

    cache = HashCache(tmp_path / "cache.json")
    assert cache.get(files[0]) == refs[0].sha256
    assert cache.get(files[1]) is None, "a file written a moment ago may change within its time stamp"
    os.utime(root / "a", (old_s - 1, old_s - 1))
    assert cache.get(files[0]) is None, "a touched file is hashed again"


def test_a_spoiled_cache_costs_time_only(tmp_path: Path) -> None:
    (tmp_path / "cache.json").write_bytes(b"\x00nonsense")
    file = write(tmp_path / "model", a="tea") / "a"
    refs = hash_files([SourceFile(file, "a", 3)], HashCache(tmp_path / "cache.json"))
    assert refs[0].sha256 == hashlib.sha256(b"tea").hexdigest()
