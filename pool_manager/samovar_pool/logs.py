"""User output on its way to Redis: new lines of the instances' log files, in bounded batches.

A batch that Redis did not take is read again in the next round: the files are the buffer. This module does not know
who reads the lines, nor how an instance writes them (see samovar_instance.logs: the file may be cut to its end).
"""

from __future__ import annotations

import asyncio
import logging
import os
import time
from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

from samovar.errors import SamovarError
from samovar.spec import parse_ref
from samovar_storage.records import LogLine

logger = logging.getLogger("samovar.pool")

PERIOD_S = 0.2
MAX_BATCH_BYTES = 64 * 1024  # of one instance in one round
MAX_LINE_BYTES = 8 * 1024
TAIL_LINES = 20

Ship = Callable[[str, list[LogLine]], Awaitable[None]]


def tail(path: Path, num_lines: int = TAIL_LINES, max_bytes: int = 16 * 1024) -> list[str]:
    """Return the last lines of a file, [] if there is none."""
    try:
        with path.open("rb") as file:
            file.seek(0, 2)
            file.seek(max(0, file.tell() - max_bytes))
            text = file.read(max_bytes).decode(errors="replace")
    except OSError:
        return []
    return text.splitlines()[-num_lines:]


def tails(paths: Iterable[Path], num_lines: int = TAIL_LINES) -> list[str]:
    """Return the last lines of several files, one after the other; the last file's come first to their share."""
    found: list[str] = []
    for path in reversed(list(paths)):
        room = num_lines - len(found)
        found = (tail(path, room) if room else []) + found
    return found


@dataclass(slots=True)
class Source:
    """One stream's log file. offset: shipped up to here. ended: the process is gone, what is there is all there is."""

    instance_id: str
    ref: str
    stream: str
    path: Path
    offset: int = 0
    ended: bool = False


def split_lines(data: bytes, is_last: bool) -> tuple[list[str], int]:
    """Return the whole lines at the start of `data` and how many bytes they take; a line that is too long is cut.

    is_last: what follows the last line break is a line too.
    """
    end = data.rfind(b"\n") + 1
    if is_last or (end == 0 and len(data) >= MAX_LINE_BYTES):
        end = len(data)
    lines = data[:end].decode(errors="replace").splitlines()
    return [line[:MAX_LINE_BYTES] for line in lines], end


def read_new(source: Source, at_s: float) -> tuple[list[LogLine], int]:
    """Return a file's new lines, at most MAX_BATCH_BYTES, and the offset after them."""
    try:
        if os.stat(source.path).st_size == source.offset:
            return [], source.offset
        with source.path.open("rb") as file:
            size = file.seek(0, 2)
            offset = source.offset if source.offset <= size else size  # it was cut: its end was shipped before
            file.seek(offset)
            data = file.read(MAX_BATCH_BYTES)
    except OSError:
        return [], source.offset
    lines, used = split_lines(data, source.ended and offset + len(data) == size)
    ref, instance_id, stream = source.ref, source.instance_id, source.stream
    shipped = [LogLine(at_s=at_s, ref=ref, instance=instance_id, stream=stream, line=line) for line in lines]
    return shipped, offset + used


class LogShipper:
    """Follows the log files of specialised instances. `ship` stores lines of one function; `discard` frees a folder."""

    def __init__(self, ship: Ship, discard: Callable[[str], None]) -> None:
        self._ship = ship
        self._discard = discard
        self._sources: dict[str, list[Source]] = {}

    def follow(self, instance_id: str, ref: str, paths: Mapping[str, Path], from_end: bool) -> None:
        """Ship what is written from now on (`from_end`), or the whole files. paths: by stream."""
        if instance_id not in self._sources:
            self._sources[instance_id] = [
                Source(instance_id, ref, stream, path, path.stat().st_size if from_end and path.exists() else 0)
                for stream, path in paths.items()
            ]

    def end(self, instance_id: str) -> None:
        """The process is gone: ship the rest, then remove its folder; at once if it was never followed."""
        if instance_id not in self._sources:
            self._discard(instance_id)
        for source in self._sources.get(instance_id, ()):
            source.ended = True

    async def run(self) -> None:
        """Ship for ever, every PERIOD_S."""
        while True:
            await asyncio.sleep(PERIOD_S)
            await self.round()

    async def round(self) -> None:
        """Ship what is new now. Without Redis it stays where it is."""
        sources = [source for of_instance in self._sources.values() for source in of_instance]
        batches = await asyncio.to_thread(lambda: [read_new(source, time.time()) for source in sources])
        for source, (lines, offset) in zip(sources, batches, strict=True):
            try:
                await self._ship(parse_ref(source.ref)[0], lines)
            except SamovarError as error:
                logger.debug("log lines wait: %s", error.detail)
                return
            is_done = source.ended and offset == source.offset and not lines
            source.offset = offset
            if is_done:
                self._done(source)

    def _done(self, source: Source) -> None:
        rest = self._sources[source.instance_id]
        rest.remove(source)
        if not rest:
            del self._sources[source.instance_id]
            self._discard(source.instance_id)
