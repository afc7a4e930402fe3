"""The room the node cache lives in: its folders, locks, staging files, and making space under the cap.

    blobs/<sha256>          weight files, read-only      locks/<name>   one filler at a time, across processes
    code/<sha256>/          extracted code archives      pins/<owner>   what instances use
    weights/<digest>/       directories of hard links    staging/       what is not in place yet

One lock, `room`, covers pins, eviction and reservations: held for moments, never while bytes travel. Names in staging
start with their process's id, so that what a killed one left can be told from work in progress.
This module does not know manifests, hashes or the object store.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path

from samovar.errors import DiskFull
from samovar_storage import trees
from samovar_storage.eviction import Entry, choose
from samovar_storage.failures import translating
from samovar_storage.pins import FILL_PREFIX, Pins, is_alive

log = logging.getLogger(__name__)

_TRUSTED, _SUSPECT = 0o444, 0o400
_FOLDERS = ("blobs", "code", "weights", "staging", "pins", "locks")
_BOOT_ID = Path("/proc/sys/kernel/random/boot_id")
MIB = 1024 * 1024


class Room:
    """One cache folder. Any number of these, in any number of processes, may share it."""

    def __init__(self, root: Path, max_bytes: int) -> None:
        """The folder is ready: cleared of what killed processes left, distrusted if the machine rebooted."""
        self._root = root
        self._max_bytes = max_bytes
        self._pins = Pins(root / "pins")
        with translating(f"the node cache {root}"):
            for name in _FOLDERS:
                (root / name).mkdir(parents=True, exist_ok=True)
            with self.lock("room"):
                self._clear_staging()
                self._distrust_after_reboot()

    # where things are ------------------------------------------------------------------------------------------------

    def blob(self, sha256: str) -> Path:
        """Return where a weight blob is, or would be."""
        return self._root / "blobs" / sha256

    def code_tree(self, sha256: str) -> Path:
        """Return where an extracted code archive is, or would be."""
        return self._root / "code" / sha256

    def weights_tree(self, digest: str) -> Path:
        """Return where a directory of hard links is, or would be."""
        return self._root / "weights" / digest

    @property
    def staging(self) -> Path:
        """The folder of what is not in place yet."""
        return self._root / "staging"

    @contextlib.contextmanager
    def lock(self, name: str) -> Iterator[None]:
        """Hold the named lock, against threads and processes alike. A killed holder lets go."""
        descriptor = os.open(self._root / "locks" / name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)

    # pins ------------------------------------------------------------------------------------------------------------

    def pin(self, owner: str, names: Iterable[str]) -> None:
        """None of the names is evicted until `release(owner)`."""
        with self.lock("room"):
            self._pins.set(owner, names)

    def release(self, owner: str) -> None:
        """The owner pins nothing. An unknown one is no error."""
        with self.lock("room"):
            self._pins.drop(owner)

    def owners(self) -> dict[str, frozenset[str]]:
        """Return owner → pinned names, without fills in progress."""
        with self.lock("room"):
            return {owner: names for owner, names in self._pins.all().items() if not owner.startswith(FILL_PREFIX)}

    @contextlib.contextmanager
    def pinned_while_filling(self, names: Iterable[str]) -> Iterator[None]:
        """Pin the names for the body; the pin is void as soon as this process is gone."""
        owner = f"{FILL_PREFIX}{os.getpid()}.{uuid.uuid4().hex}"
        self.pin(owner, names)
        try:
            yield
        finally:
            self.release(owner)

    # space -----------------------------------------------------------------------------------------------------------

    def used_bytes(self) -> int:
        """Return the bytes the cap counts: blobs, code, and what is being fetched."""
        staged = (_size(path) for path in self.staging.iterdir())
        return sum(entry.size_bytes for entry in self._entries()) + sum(staged)

    def reserve(self, size_bytes: int) -> Path:
        """Return a new staging file that counts as `size_bytes`, after evicting what had to make room for it.

        Raises: DiskFull when all that is left is pinned.
        """
        path = self.staging / f"{os.getpid()}-{uuid.uuid4().hex}"
        with self.lock("room"), translating(f"the node cache {self._root}"):
            self._make_room(size_bytes)
            with path.open("xb") as file:
                file.truncate(size_bytes)
        return path

    def drop_blob(self, sha256: str) -> None:
        """The blob is gone, with every directory that links to it. Live maps of it stay valid."""
        for tree in (self._root / "weights").iterdir():
            listing = trees.read_listing(tree)
            if listing is not None and any(file.sha256 == sha256 for file in listing.files):
                trees.remove_tree(tree, self.staging)
        self.blob(sha256).unlink(missing_ok=True)

    def _make_room(self, needed_bytes: int) -> None:
        pinned = frozenset().union(*self._pins.all().values())
        victims = choose(self._entries(), pinned, self.used_bytes(), needed_bytes, self._max_bytes)
        if victims is None:
            raise DiskFull(
                f"the node cache {self._root} has no room for {needed_bytes / MIB:,.0f} MiB: its cap is "
                f"{self._max_bytes / MIB:,.0f} MiB and the rest is in use by live instances"
            )
        for victim in victims:
            log.info("evicting %s (%d bytes)", victim.name, victim.size_bytes)
            kind, _, name = victim.name.partition(":")
            if kind == "code":
                trees.remove_tree(self.code_tree(name), self.staging)
            else:
                self.drop_blob(name)

    def _entries(self) -> list[Entry]:
        found = []
        for path in (self._root / "blobs").iterdir():
            with contextlib.suppress(FileNotFoundError):
                stat = path.stat()
                found.append(Entry(blob_name(path.name), stat.st_size, stat.st_mtime))
        for tree in (self._root / "code").iterdir():
            listing = trees.read_listing(tree)
            with contextlib.suppress(FileNotFoundError):
                used_at_s = (tree / trees.LISTING).stat().st_mtime
                found.append(Entry(code_name(tree.name), listing.cost_bytes if listing else 0, used_at_s))
        return found

    def _clear_staging(self) -> None:
        for path in self.staging.iterdir():
            if is_alive(int(path.name.split("-", 1)[0])):
                continue
            if path.is_dir():
                trees.discard(path)
            else:
                path.unlink(missing_ok=True)

    def _distrust_after_reboot(self) -> None:
        """Have everything hashed again if the machine went down since: the disk may have missed the last bytes."""
        current = _BOOT_ID.read_text() if _BOOT_ID.exists() else ""
        marker = self._root / "boot_id"
        if marker.exists() and marker.read_text() != current:
            for path in [*(self._root / "blobs").iterdir(), *(self._root / "code").glob(f"*/{trees.LISTING}")]:
                path.chmod(_SUSPECT)
        marker.write_text(current)


def blob_name(sha256: str) -> str:
    """Return how pins and eviction name a weight blob."""
    return f"blob:{sha256}"


def code_name(sha256: str) -> str:
    """Return how pins and eviction name an extracted code archive."""
    return f"code:{sha256}"


def is_trusted(path: Path) -> bool:
    """Return whether the file's bytes were checked since the machine came up. Raises FileNotFoundError."""
    return os.stat(path).st_mode & 0o777 != _SUSPECT


def trust(path: Path) -> None:
    """The file's bytes were checked just now; it is read-only."""
    path.chmod(_TRUSTED)


def _size(path: Path) -> int:
    try:
        return path.stat().st_size if path.is_file() else 0
    except FileNotFoundError:
        return 0
