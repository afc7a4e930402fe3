"""One blob from object storage to a file: parallel ranges, hashed as they land.

The file is allocated in full first: a full disk is known before the first byte. SHA-256 only goes forward, so this
thread hashes range after range, from the pages just written, while the later ones are still landing. Streams that get
too far ahead of it wait: the processor is better spent on hashing than on bytes that would only wait for it.
This module does not know the node cache or what a blob is for.
"""

from __future__ import annotations

import hashlib
import mmap
import os
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Executor, Future, wait
from itertools import islice
from pathlib import Path
from threading import Event, Lock
from typing import Protocol

from samovar_storage.failures import translating

MIB = 1024 * 1024
RANGE_BYTES = 64 * MIB
MIN_RANGE_BYTES = 8 * MIB
NUM_STREAMS = 4
# ranges that have not been hashed; they get smaller towards the end, and with them what is left to hash then
MAX_RANGES_AHEAD = NUM_STREAMS + 1
PREFETCH_STEP_BYTES = MIB


class RangeSource(Protocol):
    """What can be read by ranges: an ObjectStore."""

    def copy_range(self, key: str, offset: int, length: int, descriptor: int, writing: Lock) -> None:
        """Write bytes [offset, offset + length) to the same place in a file, each write with `writing` held.

        Raises: NotFound, StoreUnavailable, DiskFull.
        """


def ranges(size_bytes: int) -> list[tuple[int, int]]:
    """Return (offset, length) of the ranges a blob is read in: 64 MiB each, the last ones smaller and smaller.

    All streams end at about the same time, and little is left to hash then. Offsets are multiples of 1 MiB, so that
    each range can be mapped by itself. Source: guided self-scheduling (Polychronopoulos and Kuck, 1987).
    """
    cut, offset = [], 0
    while offset < size_bytes:
        share = (size_bytes - offset) // (2 * NUM_STREAMS) // MIB * MIB
        length = min(size_bytes - offset, RANGE_BYTES, max(MIN_RANGE_BYTES, share))
        cut.append((offset, length))
        offset += length
    return cut


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
            if size_bytes:
                os.posix_fallocate(descriptor, 0, size_bytes)
            for offset, length in _landed(source, key, size_bytes, descriptor, streams):
                with mmap.mmap(descriptor, length, prot=mmap.PROT_READ, offset=offset) as pages:
                    digest.update(pages)
        finally:
            os.close(descriptor)
    return digest.hexdigest()


def _landed(
    source: RangeSource, key: str, size_bytes: int, descriptor: int, streams: Executor
) -> Iterator[tuple[int, int]]:
    """Yield the ranges in order, each as soon as it and all before it are in the file."""
    # the kernel lets one thread at a time write to a file, and the others spin: a tenth of all work with four streams
    writing = Lock()
    left = iter(ranges(size_bytes))
    landing: deque[tuple[int, int, Future[None]]] = deque()

    def submit(num_ranges: int) -> None:
        for offset, length in islice(left, num_ranges):
            landed = streams.submit(source.copy_range, key, offset, length, descriptor, writing)
            landing.append((offset, length, landed))

    try:
        submit(MAX_RANGES_AHEAD)
        while landing:
            offset, length, landed = landing[0]
            landed.result()
            yield offset, length
            landing.popleft()
            submit(1)
    finally:
        # the descriptor is about to be closed: nothing may still be writing to it
        wait([landed for _, _, landed in landing if not landed.cancel()])


def prefetch(path: Path, stopping: Event) -> None:
    """Read the file into the page cache. Takes as long as the disk does, unless `stopping` is set meanwhile.

    A file that is gone is no error. Read, not advised: one `posix_fadvise(WILLNEED)` brings in no more than a
    read-ahead window (8 MiB of 100), and many of them bring in single pages, which the later mapping pays for one by
    one (docs/node-cache.md).
    """
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    buffer, offset = bytearray(PREFETCH_STEP_BYTES), 0
    try:
        while not stopping.is_set() and (count := os.preadv(descriptor, [buffer], offset)):
            offset += count
    finally:
        os.close(descriptor)
