"""The exclusive lock on a data folder: one `samovar up` at a time, and the next one is told who holds it.

The lock is the kernel's (flock), so it goes with its process however that dies; the file's text only says who it was.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import msgspec

from samovar.errors import DataDirHeld

FILE_NAME = "up.lock"


class Holder(msgspec.Struct, frozen=True, kw_only=True):
    """Who holds a data folder. since_s: unix seconds."""

    pid: int
    since_s: float
    url: str


class DataDirLock:
    """The held lock."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def sign(self, holder: Holder) -> None:
        """Say in the file who holds the folder."""
        data = msgspec.json.encode(holder)
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, data, 0)


@contextmanager
def hold(data_dir: Path) -> Iterator[DataDirLock]:
    """Hold `data_dir` while the block runs. Raises DataDirHeld, naming the holder, if another process does."""
    descriptor = os.open(data_dir / FILE_NAME, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        _acquire(descriptor, data_dir)
        os.ftruncate(descriptor, 0)
        yield DataDirLock(descriptor)
    finally:
        os.close(descriptor)


def holder(data_dir: Path) -> Holder | None:
    """Return who holds `data_dir` now, None if nobody does."""
    try:
        descriptor = os.open(data_dir / FILE_NAME, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
        return None
    except OSError:
        return msgspec.json.decode(os.pread(descriptor, 4096, 0), type=Holder)
    finally:
        os.close(descriptor)


def _acquire(descriptor: int, data_dir: Path) -> None:
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        raise DataDirHeld(describe(data_dir, os.pread(descriptor, 4096, 0))) from error


def describe(data_dir: Path, content: bytes) -> str:
    """Return the sentence that says who holds `data_dir`, from the lock file's content."""
    try:
        holder = msgspec.json.decode(content, type=Holder)
    except msgspec.MsgspecError:
        return f"the data folder {data_dir} is held by another samovar up that is just starting"
    since = datetime.fromtimestamp(holder.since_s, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
    return f"the data folder {data_dir} is held by samovar up with pid {holder.pid} since {since} at {holder.url}"
