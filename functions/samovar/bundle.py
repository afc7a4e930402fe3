"""What goes up in a deploy: a deterministic archive of the project folder, and the list of weight files by content.

The same files always give the same bytes, so a deploy without changes uploads nothing.
This module does not know the gateway, HTTP or how a version is stored.
"""

from __future__ import annotations

import fnmatch
import hashlib
import io
import os
import tarfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import msgspec

from samovar.errors import DeployRefused
from samovar.spec import FileRef

MAX_CODE_BYTES = 64 * 1024 * 1024
MAX_CODE_FILES = 5_000
IGNORE_FILE = ".samovarignore"
# what never belongs into an archive of code: version control, environments, caches, editors, local secrets
IGNORED = (
    ".*", "__pycache__", "*.pyc", "venv", "env", "node_modules", "*.egg-info", "build", "dist", "*.log", "*.sock",
)  # fmt: skip
# formats that run code when they are read
PICKLED = frozenset({".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".joblib", ".dill"})
_HASH_STREAMS = 4
_READ_BYTES = 1024 * 1024
# a file changed this recently may change again within its time stamp's resolution: its hash is not remembered
_SETTLED_S = 2.0


@dataclass(frozen=True, slots=True)
class SourceFile:
    """A file of this machine: its path here, and its name (relative, with '/') in the archive or weights folder."""

    path: Path
    name: str
    size_bytes: int


def code_files(root: Path, exclude: Path | None = None) -> list[SourceFile]:
    """Return the files of the project folder that belong into the archive, by name.

    Args:
        root: the project folder. exclude: a file or folder to leave out (the weights), or None.
    Raises: DeployRefused if they are too many or too large, naming the largest.
    """
    patterns = [*IGNORED, *_ignore_patterns(root / IGNORE_FILE)]
    files: list[SourceFile] = []
    for file in _walk(root, lambda name: _ignored(name, patterns), exclude):
        files.append(file)
        if len(files) > MAX_CODE_FILES:
            raise DeployRefused(f"{root} has more than {MAX_CODE_FILES} files; list what to skip in {IGNORE_FILE}")
    total = sum(file.size_bytes for file in files)
    if total > MAX_CODE_BYTES:
        raise DeployRefused(_too_large(root, total, files))
    return sorted(files, key=lambda file: file.name)


def pack(files: Iterable[SourceFile]) -> bytes:
    """Return a tar of `files` that depends on their names, contents and executable bits alone."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
        for file in files:
            data = file.path.read_bytes()
            info = tarfile.TarInfo(file.name)
            info.size = len(data)
            info.mode = 0o755 if os.access(file.path, os.X_OK) else 0o644
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def weight_files(path: Path, root: Path) -> list[SourceFile]:
    """Return the files of a weights folder (or the one file), by name; hidden files are left out.

    Args:
        path: resolved. root: the project folder, which must not be inside `path`.
    Raises: DeployRefused if there are none, or if the folder holds the code itself.
    """
    if path.is_file():
        return [SourceFile(path, path.name, path.stat().st_size)]
    if root.is_relative_to(path):
        raise DeployRefused(f"the weights {path} hold the project itself: give them a folder of their own")
    files = list(_walk(path, lambda name: _ignored(name, (".*", "__pycache__")), None))
    if not files:
        raise DeployRefused(f"the weights folder {path} is empty")
    return sorted(files, key=lambda file: file.name)


def refuse_pickles(files: Sequence[SourceFile]) -> None:
    """Raise DeployRefused if any of `files` is in a format that runs code when it is read."""
    pickled = [file.name for file in files if Path(file.name).suffix.lower() in PICKLED]
    if pickled:
        more = f" and {len(pickled) - 1} more" if len(pickled) > 1 else ""
        raise DeployRefused(
            f"{pickled[0]}{more}: pickled weights run any code hidden in them when they are loaded. "
            "Save them as safetensors (safetensors.torch.save_file), or deploy with --allow-pickle if you trust them",
            files=pickled,
        )


def hash_files(
    files: Sequence[SourceFile], cache: HashCache, on_bytes: Callable[[int], None] = lambda count: None
) -> list[FileRef]:
    """Return `files` with their SHA-256, hashed by several threads; `on_bytes` hears of bytes done, from any thread."""

    def one(file: SourceFile) -> FileRef:
        known = cache.get(file)
        if known is None:
            known = _sha256(file.path, on_bytes)
            cache.put(file, known)
        else:
            on_bytes(file.size_bytes)
        return FileRef(path=file.name, sha256=known, size_bytes=file.size_bytes)

    with ThreadPoolExecutor(_HASH_STREAMS) as pool:
        refs = list(pool.map(one, files))
    cache.save()
    return refs


class HashCache:
    """SHA-256 by (path, size, modification time), in one JSON file, so that 10 GB are hashed once.

    Losing or spoiling the file costs time only. Not shared between running processes: the last to save wins.
    """

    def __init__(self, path: Path | None = None) -> None:
        """Read `path`, default `$XDG_CACHE_HOME/samovar/hashes.json`."""
        self._path = path or cache_folder() / "hashes.json"
        try:
            self._known = msgspec.json.decode(self._path.read_bytes(), type=dict[str, tuple[int, int, str]])
        except (OSError, msgspec.MsgspecError):
            self._known = {}
        self._changed = False

    def get(self, file: SourceFile) -> str | None:
        """Return the remembered SHA-256, or None if the file is new or changed."""
        entry = self._known.get(str(file.path.resolve()))
        if entry is None or entry[0] != file.size_bytes or entry[1] != file.path.stat().st_mtime_ns:
            return None
        return entry[2]

    def put(self, file: SourceFile, sha256: str) -> None:
        """Remember `sha256`, unless the file changed a moment ago."""
        mtime_ns = file.path.stat().st_mtime_ns
        if time.time() - mtime_ns / 1e9 > _SETTLED_S:
            self._known[str(file.path.resolve())] = (file.size_bytes, mtime_ns, sha256)
            self._changed = True

    def save(self) -> None:
        """Write what is new; a folder that cannot be written is left alone."""
        if not self._changed:
            return
        try:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            draft = self._path.with_suffix(f".{os.getpid()}.tmp")
            draft.write_bytes(msgspec.json.encode(self._known))
            draft.replace(self._path)
        except OSError:
            return
        self._changed = False


def cache_folder() -> Path:
    """Return where this machine keeps what can be made again, for this user."""
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "samovar"


def _sha256(path: Path, on_bytes: Callable[[int], None]) -> str:
    digest, view = hashlib.sha256(), memoryview(bytearray(_READ_BYTES))
    with path.open("rb", buffering=0) as file:
        while count := file.readinto(view):
            digest.update(view[:count])
            on_bytes(count)
    return digest.hexdigest()


def _walk(root: Path, ignored: Callable[[str], bool], exclude: Path | None) -> Iterator[SourceFile]:
    for folder, subfolders, names in os.walk(root):
        base = Path(folder)
        relative = base.relative_to(root)
        subfolders[:] = sorted(
            name
            for name in subfolders
            if not ignored((relative / name).as_posix()) and base / name != exclude and not _is_venv(base / name)
        )
        for name in names:
            path = base / name
            if path.is_file() and path != exclude and not ignored((relative / name).as_posix()):
                yield SourceFile(path, (relative / name).as_posix(), path.stat().st_size)


def _is_venv(folder: Path) -> bool:
    return (folder / "pyvenv.cfg").is_file()


def _ignore_patterns(path: Path) -> list[str]:
    if not path.is_file():
        return []
    lines = (line.strip() for line in path.read_text().splitlines())
    return [line.strip("/") for line in lines if line and not line.startswith("#")]


def _ignored(name: str, patterns: Iterable[str]) -> bool:
    """Return whether a pattern matches the relative path or its last part."""
    last = name.rpartition("/")[2]
    return any(fnmatch.fnmatchcase(last, pattern) or fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _too_large(root: Path, total: int, files: Sequence[SourceFile]) -> str:
    largest = max(files, key=lambda file: file.size_bytes)
    return (
        f"the code in {root} is {total / 2**20:.0f} MiB, more than {MAX_CODE_BYTES // 2**20}; the largest file is "
        f"{largest.name}. Declare weights with sv.Weights(…), or list what to skip in {IGNORE_FILE}"
    )
