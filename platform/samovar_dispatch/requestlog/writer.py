"""What becomes of pending rows: treated by their policies, packed, written to the spool and to Redis, twice a second.

Most rows come packed (`books.py`); what is left of the work with bytes is done in a thread, a hundred rows at a time,
with a write in between: the interpreter's lock is free again before a call could notice. The spool is the path
that must not lose anything; Redis only shows the newest minutes. This module does not know what a row says.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Iterable, Iterator
from pathlib import Path

from redis.asyncio import Redis

from samovar.errors import SamovarError
from samovar_dispatch.requestlog.books import Book
from samovar_dispatch.requestlog.log import RequestLog
from samovar_dispatch.requestlog.policy import UNTREATED
from samovar_storage.requestlog.live import LiveFrame, add_frames
from samovar_storage.requestlog.rows import Row, encode_frame
from samovar_storage.requestlog.spool import SpoolWriter
from samovar_storage.traffic import Tally, TrafficSlice, merge, write_slices

log = logging.getLogger(__name__)

FLUSH_S = 0.5
SLICE_S = 1.0
FRAME_ROWS = 100
TREATED_AT_ONCE = 20
FRAME_BYTES = 256 << 10
MAX_LIVE_FLUSH_BYTES = 2 << 20  # what one flush may send to Redis per function; the spool has the rest


class RequestWriter:
    """One per gateway. num_written: records in the spool. num_lost: records the spool did not take.

    num_unseen: records that Redis did not get, so that they show only once they are shipped.
    """

    def __init__(self, requests: RequestLog, gateway_id: str, folder: Path, spool_bytes: int, live_bytes: int) -> None:
        self.num_written = self.num_lost = self.num_unseen = 0
        self._gateway_id = gateway_id
        self._requests = requests
        self._spool = SpoolWriter(folder, requests.run, spool_bytes, time.monotonic)
        self._live_bytes = live_bytes
        self._storing = threading.Lock()  # a flush that was cancelled goes on in its thread
        self._wake = asyncio.Event()
        self._counted: list[Book] = []
        self._sliced_s = time.time()
        requests.hurry = self._wake.set

    @property
    def spooled_bytes(self) -> int:
        """What the spool of this node held when it was last looked at."""
        return self._spool.bytes_held

    async def run(self, redis: Redis) -> None:
        """Write until cancelled; then write what is left and let it be shipped."""
        try:
            while True:
                await self._pause()
                await self.flush(redis)
        finally:
            await self.flush(redis, is_last=True)

    async def flush(self, redis: Redis, is_last: bool = False) -> None:
        """What was pending is in the spool and, unless Redis is away, there; a whole second's traffic is written."""
        books = self._requests.take()
        self._counted += books
        try:
            frames = await asyncio.to_thread(self._store, books, is_last)
        except Exception:
            self.num_lost += sum(book.num_rows for book in books)
            raise
        await self._show(redis, frames)
        now_s = time.time()
        if is_last or not 0 <= now_s - self._sliced_s < SLICE_S:
            counted, self._counted = self._counted, []
            span_s, self._sliced_s = max(0.0, now_s - self._sliced_s), now_s
            await self._count(redis, counted, now_s - span_s, span_s)

    async def ship_now(self, redis: Redis) -> None:
        """What was pending is in segments that are ready to be shipped."""
        await self.flush(redis)
        await asyncio.to_thread(self._spool.roll, True)

    async def _pause(self) -> None:
        try:
            async with asyncio.timeout(FLUSH_S):
                await self._wake.wait()
        except TimeoutError:
            return
        finally:
            self._wake.clear()

    def _store(self, books: list[Book], is_last: bool) -> list[LiveFrame]:
        """Write frames to the spool; return those that fit into Redis."""
        with self._storing:
            frames = []
            for book in books:
                frames += self._store_one(book)
            try:
                self._spool.roll(is_last)
            except (SamovarError, OSError) as error:
                log.warning("a segment of the request log could not be closed: %s", error)
            return frames

    def _store_one(self, book: Book) -> list[LiveFrame]:
        treat(book)
        made = [LiveFrame(book.function, data, num_rows) for data, num_rows in book.packed]
        for part in parts(book.rows):
            made.append(LiveFrame(book.function, encode_frame(self._requests.run, book.function, part), len(part)))
        for frame in made:
            self._spool_one(frame)
        shown = newest(made, min(self._live_bytes, MAX_LIVE_FLUSH_BYTES))
        self.num_unseen += book.num_rows - sum(frame.num_records for frame in shown)
        book.rows, book.packed = [], []  # its traffic is counted later
        return shown

    def _spool_one(self, frame: LiveFrame) -> None:
        try:
            self._spool.append([frame.data])
            self.num_written += frame.num_records
        except (SamovarError, OSError) as error:
            if not self.num_lost:
                log.warning("records of the request log are lost: %s", error)
            self.num_lost += frame.num_records

    async def _count(self, redis: Redis, books: list[Book], at_s: float, span_s: float) -> None:
        slices = await asyncio.to_thread(slices_of, books, self._gateway_id, at_s, span_s)
        try:
            await write_slices(redis, slices)
        except SamovarError as error:
            log.warning("a second of traffic was not counted: %s", error.detail)

    async def _show(self, redis: Redis, frames: list[LiveFrame]) -> None:
        try:
            await add_frames(redis, frames, self._live_bytes)
        except SamovarError as error:
            self.num_unseen += sum(frame.num_records for frame in frames)
            log.warning("the newest requests do not show yet: %s", error.detail)


def treat(book: Book) -> None:
    """Every payload is as its version's policy wants it kept; nothing else of it is anywhere afterwards."""
    for index, row in enumerate(book.untreated):
        row.body, row.body_form = book.policy.apply(row.body)
        if row.answer_form == UNTREATED:
            row.answer, row.answer_form = book.policy.apply(row.answer)
        if not index % TREATED_AT_ONCE:
            time.sleep(0)  # lets the interpreter's lock go
    book.untreated = []


def slices_of(books: Iterable[Book], gateway_id: str, at_s: float, span_s: float) -> list[TrafficSlice]:
    """Return a slice of traffic for each version that had any."""
    tallies: dict[str, list[tuple[Tally, Tally]]] = {}
    for book in books:
        if book.ref is not None:
            tallies.setdefault(book.ref, []).append(book.tallies())
    return [
        TrafficSlice(
            gateway=gateway_id,
            ref=ref,
            at_s=at_s,
            span_s=span_s,
            calls=merge(calls for calls, _ in pairs),
            shadow=merge(shadow for _, shadow in pairs),
        )
        for ref, pairs in tallies.items()
    ]


def parts(rows: list[Row]) -> Iterator[list[Row]]:
    """Yield the rows in parts of at most FRAME_ROWS and about FRAME_BYTES."""
    part: list[Row] = []
    size = 0
    for row in rows:
        part.append(row)
        size += len(row.body or b"") + len(row.answer or b"")
        if len(part) >= FRAME_ROWS or size >= FRAME_BYTES:
            yield part
            part, size = [], 0
    if part:
        yield part


def newest(frames: list[LiveFrame], max_bytes: int) -> list[LiveFrame]:
    """Return the last frames that together have at most `max_bytes`."""
    total = 0
    for index in range(len(frames) - 1, -1, -1):
        total += len(frames[index].data)
        if total > max_bytes:
            return frames[index + 1 :]
    return frames
