"""Directories of the node cache: content-addressed, built aside, renamed into place, read-only.

    <tree>/files.json   what is inside, with sizes and hashes
    <tree>/tree/...     the files: extracted from a code archive, or hard links to weight blobs

A tree is there in full or not at all. This module does not know eviction, pins or the object store.
"""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import tarfile
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path, PurePosixPath

import msgspec

from samovar.errors import DeployRefused
from samovar.spec import FileRef
from samovar.values import Struct
from samovar_storage.failures import translating

LISTING = "files.json"
CONTENT = "tree"
_READ_ONLY_FILE, _READ_ONLY_DIR = 0o444, 0o555
CHUNK_BYTES = 4 * 1024 * 1024


class Listing(Struct, frozen=True, kw_only=True):
    """Every file of a tree. cost_bytes: disk the tree takes by itself (hard links take none)."""

    files: list[FileRef]
    cost_bytes: int = 0


def tree_digest(files: Iterable[FileRef]) -> str:
    """Return the name of the tree with these files at these paths: equal layouts share one."""
    lines = sorted(f"{file.path}\0{file.sha256}\n" for file in files)
    return hashlib.sha256("".join(lines).encode()).hexdigest()


def read_listing(tree: Path) -> Listing | None:
    """Return what the tree holds, or None if there is no such tree."""
    try:
        return msgspec.json.decode((tree / LISTING).read_bytes(), type=Listing)
    except (FileNotFoundError, msgspec.MsgspecError):
        return None


def is_whole(tree: Path, files: Iterable[FileRef]) -> bool:
    """Return whether every file is there with its full size. Costs one stat a file."""
    content = os.path.join(tree, CONTENT, "")
    try:
        return all(os.stat(content + file.path).st_size == file.size_bytes for file in files)
    except OSError:
        return False


def is_intact(tree: Path, files: Iterable[FileRef]) -> bool:
    """Return whether every file still has its SHA-256. Reads all of them."""
    return is_whole(tree, files) and all(file_sha256(tree / CONTENT / file.path) == file.sha256 for file in files)


def file_sha256(path: Path) -> str:
    """Return the SHA-256 (hex) of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def link_weights(files: Iterable[FileRef], blobs: Iterable[Path], tree: Path, staging: Path) -> None:
    """`tree` holds a hard link to each blob at its file's path. Raises DeployRefused for a path that leads out."""
    files = list(files)
    with _aside(tree, staging) as building:
        with _refusing("the weights cannot be laid out"):
            for file, blob in zip(files, blobs, strict=True):
                target = building / CONTENT / safe_path(file.path)
                target.parent.mkdir(parents=True, exist_ok=True)
                os.link(blob, target)
        _finish(building, Listing(files=files))


def extract_code(archive: Path, tree: Path, staging: Path) -> None:
    """`tree` holds the archive's files. Raises DeployRefused for an archive that reaches outside or is none at all."""
    with _aside(tree, staging) as building:
        content = building / CONTENT
        content.mkdir()
        with _refusing("the code archive cannot be unpacked"), tarfile.open(archive, "r:") as tar:
            for member in tar:
                _extract(tar, member, content)
        files = [_described(path, content) for path in sorted(content.rglob("*")) if path.is_file()]
        _finish(building, Listing(files=files, cost_bytes=sum(file.size_bytes for file in files)))


def _extract(tar: tarfile.TarFile, member: tarfile.TarInfo, content: Path) -> None:
    """Write one member. Only files and folders are: with no link in the tree, a path that looks inside is inside."""
    target = content / safe_path(member.name)
    if member.isdir():
        target.mkdir(parents=True, exist_ok=True)
        return
    # a sparse file may claim any size
    source = tar.extractfile(member) if member.isreg() and not member.issparse() else None
    if source is None:
        raise DeployRefused(f"the code archive holds {member.name!r}, which is neither a file nor a folder")
    target.parent.mkdir(parents=True, exist_ok=True)
    with source, target.open("wb") as file:
        shutil.copyfileobj(source, file, CHUNK_BYTES)
    target.chmod(0o755 if member.mode & 0o100 else 0o644)


def safe_path(path: str) -> PurePosixPath:
    """Return a relative path inside a tree. Raises DeployRefused for any other."""
    pure = PurePosixPath(path)
    if not path or "\0" in path or pure.is_absolute() or ".." in pure.parts or pure == PurePosixPath("."):
        raise DeployRefused(f"the path {path!r} leads out of its folder")
    return pure


def remove_tree(tree: Path, staging: Path) -> None:
    """The tree is gone: out of sight in one step, then deleted. An absent one is no error."""
    doomed = staging / f"{os.getpid()}-{uuid.uuid4().hex}"
    try:
        tree.rename(doomed)
    except FileNotFoundError:
        return
    discard(doomed)


def discard(folder: Path) -> None:
    """Delete a directory in which everything is read-only."""
    for path in [folder, *folder.rglob("*")]:
        if path.is_dir() and not path.is_symlink():
            path.chmod(0o700)
    shutil.rmtree(folder, ignore_errors=True)


@contextlib.contextmanager
def _refusing(what: str) -> Iterator[None]:
    """Blame the author for an archive that is none, and for paths that are a file and a folder, or twice there."""
    try:
        yield
    except (tarfile.TarError, FileExistsError, NotADirectoryError, IsADirectoryError) as error:
        raise DeployRefused(f"{what}: {error}") from error


class _aside:
    """Build a tree in the staging folder; it appears under its name at the end, or not at all."""

    def __init__(self, tree: Path, staging: Path) -> None:
        self._tree = tree
        self._building = staging / f"{os.getpid()}-{uuid.uuid4().hex}"

    def __enter__(self) -> Path:
        with translating(str(self._building)):
            self._building.mkdir(parents=True)
        return self._building

    def __exit__(self, kind: type[BaseException] | None, *rest: object) -> None:
        if kind is None:
            self._tree.parent.mkdir(parents=True, exist_ok=True)
            try:
                self._building.rename(self._tree)
            except OSError:
                # another process was first: its tree is the same by name
                if not self._tree.is_dir():
                    raise
        if self._building.exists():
            discard(self._building)


def _finish(building: Path, listing: Listing) -> None:
    (building / CONTENT).mkdir(exist_ok=True)
    (building / LISTING).write_bytes(msgspec.json.encode(listing))
    for path in _deepest_first(building / CONTENT):
        if not path.is_symlink():
            path.chmod(_READ_ONLY_DIR if path.is_dir() else _mode_of(path))


def _mode_of(path: Path) -> int:
    return _READ_ONLY_FILE | (path.stat().st_mode & 0o111)


def _deepest_first(folder: Path) -> Iterator[Path]:
    yield from sorted(folder.rglob("*"), key=lambda path: len(path.parts), reverse=True)
    yield folder


def _described(path: Path, content: Path) -> FileRef:
    return FileRef(path=path.relative_to(content).as_posix(), sha256=file_sha256(path), size_bytes=path.stat().st_size)
