"""One blob from object storage to a file: parallel ranges straight into its pages, hashed as they land.

The file is allocated in full first, so that a full disk is an error and not a crash while its pages are written.
SHA-256 only goes forward: this thread hashes range after range while the later ones are still landing.
This module does not know the node cache or what a blob is for.
"""

from __future__ import annotations

import hashlib
import mmap
import os
from concurrent.futures import Executor, Future
from pathlib import Path
from typing import Protocol

from samovar_storage.failures import translating

MIB = 1024 * 1024
RANGE_BYTES = 64 * MIB
MIN_RANGE_BYTES = 8 * MIB
NUM_STREAMS = 4


class RangeSource(Protocol):
    """What can be read by ranges: an ObjectStore."""

    def read_range_into(self, key: str, offset: int, target: memoryview) -> None:
        """Fill `target` from `offset` on. Raises NotFound, StoreUnavailable."""


def ranges(size_bytes: int) -> list[tuple[int, int]]:
    """Return (offset, length) of the ranges a blob is read in: 64 MiB, less where four streams would idle."""
    even = -(-size_bytes // NUM_STREAMS)
    length = min(RANGE_BYTES, max(MIN_RANGE_BYTES, even))
    return [(offset, min(length, size_bytes - offset)) for offset in range(0, size_bytes, length)]


def download(source: RangeSource, key: str, size_bytes: int, path: Path, streams: Executor) -> str:
    """Write the object's first `size_bytes` to `path` and return their SHA-256 (hex).

    Args:
        streams: where the ranges are read, with about `NUM_STREAMS` threads; this thread only hashes.
    Raises: NotFound; StoreUnavailable, also when the object is shorter; DiskFull. The file may then be half written.
    """
    digest = hashlib.sha256()
    with translating(str(path)):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        if size_bytes == 0:
            return digest.hexdigest()
        with translating(f"{path.parent}"):
            os.posix_fallocate(descriptor, 0, size_bytes)
        with mmap.mmap(descriptor, size_bytes) as pages, memoryview(pages) as view:
            landing = [
                (view[offset : offset + length], streams.submit(_land, source, key, offset, view, length))
                for offset, length in ranges(size_bytes)
            ]
            try:
                for part, landed in landing:
                    landed.result()
                    digest.update(part)
            finally:
                _settle(landing)
    finally:
        os.close(descriptor)
    return digest.hexdigest()


def prefetch(path: Path) -> None:
    """Ask the kernel to read the file into memory now; returns at once. A file that is gone is no error."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_WILLNEED)
    finally:
        os.close(descriptor)


def _land(source: RangeSource, key: str, offset: int, view: memoryview, length: int) -> None:
    with view[offset : offset + length] as target:
        source.read_range_into(key, offset, target)


def _settle(landing: list[tuple[memoryview, Future[None]]]) -> None:
    """No range is being written any more: the pages may be unmapped."""
    for _, future in landing:
        future.cancel()
    for part, future in landing:
        if not future.cancelled():
            future.exception()
        part.release()
