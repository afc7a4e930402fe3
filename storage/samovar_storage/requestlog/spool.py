"""The spool: frames on this node's disk until they are Parquet in object storage.

    <run>-<number>.open     being written by a gateway, which holds a lock on it
    <run>-<number>.ready    closed, to be shipped; whoever ships holds a lock on it

A lock is the kernel's (flock), so it ends with its process however that dies: an `.open` file nobody holds was left by
a gateway that was killed, and is shipped as far as it was written. A record is safe from the death of its gateway once
it is written here, from that of the machine once it is shipped; nothing is synced to the disk for it.
This module does not know what frames hold.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from samovar.errors import DiskFull
from samovar_storage.failures import translating
from samovar_storage.requestlog.rows import prefixed

SEGMENT_BYTES = 8 << 20
SEGMENT_AGE_S = 15.0
RECOUNT_S = 1.0
SPOOL_FOLDER = "request-log"  # of a node's data folder, shared by all who write
NEW, OPEN, READY = ".new", ".open", ".ready"


class SpoolWriter:
    """The writing half, for one gateway's run. Blocking; one thread at a time.

    bytes_held: what the spool of this node takes up, as last counted.
    """

    def __init__(self, folder: Path, run: str, max_bytes: int, clock: Callable[[], float]) -> None:
        self.bytes_held = 0
        self._folder = folder
        self._run = run
        self._max_bytes = max_bytes
        self._clock = clock
        self._file: int | None = None
        self._path = folder
        self._size_bytes = 0
        self._opened_s = self._counted_s = float("-inf")
        self._number = 0

    def append(self, frames: Sequence[bytes]) -> None:
        """The frames are in the spool. Raises DiskFull when its cap, or the disk, is reached: then some may be."""
        with translating("the spool of the request log"):
            for frame in frames:
                self._append_one(prefixed(frame))

    def roll(self, force: bool = False) -> None:
        """Close the segment if it is old enough (`force`: in any case), so that it is shipped; count the spool anew."""
        now_s = self._clock()
        if self._file is not None and (force or now_s - self._opened_s >= SEGMENT_AGE_S):
            self._close()
        if now_s - self._counted_s >= RECOUNT_S:
            self._counted_s = now_s
            self.bytes_held = spooled_bytes(self._folder)

    def _append_one(self, data: bytes) -> None:
        if self.bytes_held + len(data) > self._max_bytes:
            raise DiskFull(f"the spool of the request log holds its {self._max_bytes} bytes")
        if self._file is None:
            self._open()
        assert self._file is not None
        start = self._size_bytes
        try:
            self._size_bytes += os.write(self._file, data)
        finally:
            if self._size_bytes != start + len(data):  # half a frame would hide those behind it
                os.ftruncate(self._file, start)
                self._size_bytes = start
        if self._size_bytes == start:
            raise DiskFull("the disk of the request log's spool is full")
        self.bytes_held += len(data)
        if self._size_bytes >= SEGMENT_BYTES:
            self._close()

    def _open(self) -> None:
        self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self._number += 1
        self._path = self._folder / f"{self._run}-{self._number:06d}{OPEN}"
        unlocked = self._path.with_suffix(NEW)
        self._file = os.open(unlocked, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        unlocked.rename(self._path)  # nobody ever sees an `.open` file of a living gateway without its lock
        self._size_bytes, self._opened_s = 0, self._clock()

    def _close(self) -> None:
        assert self._file is not None
        self._path.rename(self._path.with_suffix(READY))
        os.close(self._file)
        self._file = None


def spooled_bytes(folder: Path) -> int:
    """Return how many bytes the spool takes up, 0 if there is none."""
    total = 0
    try:
        with os.scandir(folder) as entries:
            for entry in entries:
                try:
                    total += entry.stat().st_size
                except FileNotFoundError:
                    continue  # shipped meanwhile
    except FileNotFoundError:
        return 0
    return total


def waiting(folder: Path) -> list[Path]:
    """Return the segments to be shipped, oldest first by name, those of dead gateways included."""
    adopt(folder)
    return sorted(folder.glob(f"*{READY}"))


def adopt(folder: Path) -> None:
    """Segments left open by gateways that died are ready afterwards."""
    for path in folder.glob(f"*{OPEN}"):
        with _locked(path) as is_ours:
            if is_ours:
                path.rename(path.with_suffix(READY))


@contextmanager
def claimed(path: Path) -> Iterator[bytes | None]:
    """Hold a ready segment for the body; its bytes, or None if somebody else ships, or has shipped, it."""
    with _locked(path) as is_ours:
        yield path.read_bytes() if is_ours else None


@contextmanager
def _locked(path: Path) -> Iterator[bool]:
    """Try to hold a file's lock for the body; whether we do, and the file is still there under that name."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        yield False
        return
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
            return
        yield path.exists() and os.fstat(descriptor).st_nlink > 0
    finally:
        os.close(descriptor)
