"""The owner's side of a stream that is read at another gateway: one task per reader, bounded by what was not confirmed.

    Read ─► a reader of the stream ─► Opened ─► Telling, Telling … ◄─ Got ─► the end, Left, or silence

This module does not know HTTP, nor how letters travel.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from functools import partial

from samovar.errors import BodyTooLarge, Cancelled, SamovarError, StoreUnavailable, StreamNotFound
from samovar_gateway.events.letters import Got, Left, Letter, Opened, Read, Refused, Telling, Unwanted
from samovar_gateway.events.resumable import Reader, Told
from samovar_gateway.events.streams import Streams
from samovar_storage.ending import end_tasks

log = logging.getLogger(__name__)

Post = Callable[[str, Letter], Awaitable[int]]  # to which gateway; how many took it

MAX_LENT = 2000
WINDOW_EVENTS, WINDOW_BYTES = 256, 256 * 1024  # sent and not confirmed; one event is always sent
MAX_EVENT_BYTES = 16 << 20  # Redis drops subscribers that are 32 MiB behind
HEARTBEAT_S = 2.0
LOST_S = 10.0  # a borrower that says nothing for so long is gone


class Loan:
    """One reader elsewhere. number: of the last event that it confirmed; sent: that was sent to it."""

    def __init__(self, asked: Read) -> None:
        self.asked = asked
        self.number = self.sent = asked.number
        self.heard_s = time.monotonic()
        self.is_left = self.is_told = False
        self.unconfirmed: list[tuple[int, int]] = []  # number and bytes of each
        self.reader: Reader | None = None
        self.task: asyncio.Task[None] | None = None
        self._too_large: Told | None = None  # the next event: it cannot be handed on

    @property
    def has_room(self) -> bool:
        """Whether more may be sent."""
        num_bytes = sum(size for _, size in self.unconfirmed)
        return not self.unconfirmed or (len(self.unconfirmed) < WINDOW_EVENTS and num_bytes < WINDOW_BYTES)

    def hear(self, letter: Got | Left) -> None:
        """The borrower said something."""
        self.heard_s = time.monotonic()
        if isinstance(letter, Got):
            self.number = letter.number
            self.unconfirmed = [entry for entry in self.unconfirmed if entry[0] > letter.number]
        else:
            self.is_left, self.is_told = True, letter.is_told
        if self.reader is not None:
            self.reader.news.set()

    def gather(self, reader: Reader) -> list[Told]:
        """Return what may be sent now. Raises: StreamTaken, Cancelled; BodyTooLarge for what cannot be handed on."""
        found: list[Told] = []
        while self._too_large is None and self.has_room and (told := reader.take()) is not None:
            if len(told.data) > MAX_EVENT_BYTES:
                self._too_large = told
                break
            found.append(told)
            self.sent = told.number
            if told.data:
                self.unconfirmed.append((told.number, len(told.data)))
        if self._too_large is not None and not found:
            number, size = self._too_large.number, len(self._too_large.data)
            raise BodyTooLarge(f"event {number} has {size} bytes: only the gateway that has the stream can give it")
        return found


class Lender:
    """All loans of one gateway."""

    def __init__(self, streams: Streams, post: Post) -> None:
        self._streams = streams
        self._post = post
        self._loans: dict[str, Loan] = {}
        self._tasks: set[asyncio.Task[None]] = set()

    def hear(self, letter: Read | Got | Left | Unwanted) -> None:
        """Take a letter of a borrower."""
        loan = self._loans.get(letter.reader)
        if isinstance(letter, Unwanted):
            self._end(letter)
        elif not isinstance(letter, Read):
            if loan is not None:
                loan.hear(letter)
        elif len(self._tasks) < MAX_LENT:
            if loan is not None and loan.task is not None:
                loan.task.cancel()  # it asks again: it missed something
            self._begin(Loan(letter))

    def _begin(self, loan: Loan) -> None:
        self._loans[loan.asked.reader] = loan
        loan.task = asyncio.create_task(self._lend(loan))
        self._tasks.add(loan.task)
        loan.task.add_done_callback(partial(self._returned, loan))

    def _end(self, letter: Unwanted) -> None:
        try:
            stream = self._streams.find(letter.stream, letter.key_id, letter.function)
        except StreamNotFound:
            return  # it has ended before
        self._streams.end(stream)

    async def close(self) -> None:
        """End every loan."""
        await end_tasks(self._tasks)

    def _returned(self, loan: Loan, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if self._loans.get(loan.asked.reader) is loan:
            del self._loans[loan.asked.reader]

    async def _lend(self, loan: Loan) -> None:
        """Tell the borrower of the stream until the end, or until it reads no more."""
        asked = loan.asked
        try:
            loan.reader = self._streams.resume(asked.stream, asked.number, asked.key_id, asked.function)
            try:
                await self._tell(loan, loan.reader)
            finally:
                loan.reader.close(is_told=loan.is_told)
        except Cancelled:
            return
        except StoreUnavailable as error:
            log.warning("a stream that is read at another gateway: %s", error.detail)
        except SamovarError as error:
            await self._refuse(asked, error)
        except Exception:
            log.exception("a stream that is read at another gateway failed")

    async def _tell(self, loan: Loan, reader: Reader) -> None:
        asked = loan.asked
        await self._post(asked.reply_to, Opened(asked.reader, reader.keep_s, reader.headers))
        told_s = float("-inf")
        while not loan.is_left and time.monotonic() - loan.heard_s < LOST_S:
            reader.news.clear()
            told = loan.gather(reader)
            if told or time.monotonic() - told_s > HEARTBEAT_S:
                events = [(one.number, one.data) for one in told if one.data]
                ends = told[-1].ends if told else ""
                await self._post(asked.reply_to, Telling(asked.reader, events, loan.sent, ends, reader.whereabouts()))
                told_s = time.monotonic()
            if not told or not loan.has_room:
                await _news(reader)

    async def _refuse(self, asked: Read, error: SamovarError) -> None:
        extra = {name: value for name, value in error.extra.items() if isinstance(value, str | int | float)}
        try:
            await self._post(asked.reply_to, Refused(asked.reader, error.code, error.status, error.detail, extra))
        except StoreUnavailable as failed:
            log.warning("a stream that is asked for by another gateway: %s", failed.detail)


async def _news(reader: Reader) -> None:
    """Wait for something to send, or until a sign of life is due."""
    try:
        async with asyncio.timeout(HEARTBEAT_S):
            await reader.news.wait()
    except TimeoutError:
        return
