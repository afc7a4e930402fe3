"""A stream of another gateway, read here for a client that came to this one.

    borrow ─► Read ─► Opened ─► events as they come, confirmed as the client reads ─► the end
                │         └─ silence: Read again, after what is there
                └─ nobody has this name any more: the gateway is gone, and the stream with it

Every wait ends: the owner sends a sign of life every few seconds, and whether it lives shows when a letter is posted.
This module does not know HTTP, nor how letters travel.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from secrets import token_hex

from samovar.errors import Cancelled, SamovarError, StoreUnavailable, StreamGone, Unavailable, rebuild
from samovar_gateway import problems
from samovar_gateway.events.lending import Post
from samovar_gateway.events.letters import Got, Left, Letter, Opened, Read, Refused, Telling, Unwanted
from samovar_gateway.events.places import Place
from samovar_gateway.events.resumable import Told

MAX_BORROWED = 1000
PROD_S = 1.0  # how often the owner is asked for a sign of life
SILENT_S = 5.0  # after which it is asked to begin again
GONE_S = 3.0  # so long may an owner take to connect to Redis again
OPENING_S = 10.0
AWAY_S = 15.0  # so long may Redis be away in mid-stream
CONFIRM_EVENTS, CONFIRM_BYTES = 64, 64 * 1024  # at least as often as this; else with the next sign of life


class Borrowed:
    """One client's reading of a stream elsewhere; as `resumable.Reader`. number: of the last event it took."""

    def __init__(self, borrower: Borrower, place: Place, key_id: str, function: str) -> None:
        self.number = place.number
        self.keep_s = 0.0
        self.headers: problems.Headers = []
        self.name = token_hex(8)
        self._borrower = borrower
        self._place = place
        self._owner = (key_id, function)
        self._queue: deque[Told] = deque()
        self._last = place.number  # of what came
        self._confirmed = place.number
        self._num_unconfirmed_bytes = 0
        self._news = asyncio.Event()
        self._failure: SamovarError | None = None
        self._is_open = self._is_gone = False
        self._is_behind = False  # something was lost on the way
        self._alone_since_s: float | None = None  # nobody listens at the owner's address
        self._whereabouts = "asked"
        self._prodded_s = self._heard_s = self._there_s = time.monotonic()

    # ---- for the one who reads ----------------------------------------------------------------------------------

    async def open(self) -> None:
        """Return once the owner gives the stream. Raises: what it says instead; StreamGone, StoreUnavailable,
        Unavailable."""
        until_s = time.monotonic() + OPENING_S
        await self._post(self._question())
        while not self._is_open:
            if time.monotonic() > until_s:
                raise Unavailable("the gateway that has this stream does not answer", retry_after_s=1.0)
            await self._wait(PROD_S / 4)
            if self._failure is not None:
                raise self._failure
            if not self._is_open:
                await self._post(self._question())

    async def next(self, timeout_s: float) -> Told | None:
        """Return the next event, None if none came within the time. Raises: what ended it; Cancelled."""
        until_s = time.monotonic() + timeout_s
        while not self._queue:
            if self._is_gone:
                raise Cancelled
            if self._failure is not None:
                raise self._failure
            if time.monotonic() >= until_s:
                return None
            await self._keep_alive()
            await self._wait(min(PROD_S, until_s - time.monotonic()))
        told = self._queue.popleft()
        self.number = told.number
        self._num_unconfirmed_bytes += len(told.data)
        if self.number - self._confirmed >= CONFIRM_EVENTS or self._num_unconfirmed_bytes >= CONFIRM_BYTES:
            await self._confirm()
        return told

    def whereabouts(self) -> str:
        """Return where the call is, as the owner said last."""
        return self._whereabouts

    def cancel(self) -> None:
        """The connection is gone."""
        self._is_gone = True
        self.close()
        self._news.set()

    def close(self, *, is_told: bool = False) -> None:
        """It reads no more, and the owner is told. Idempotent."""
        self._borrower.give_back(self, self._place.gateway, is_told)

    # ---- the owner's letters --------------------------------------------------------------------------------------

    def hear(self, letter: Opened | Telling | Refused) -> None:
        """Take a letter of the owner."""
        self._heard_s = time.monotonic()
        if isinstance(letter, Opened):
            self._is_open, self.keep_s, self.headers = True, letter.keep_s, letter.headers
        elif isinstance(letter, Refused):
            self._failure = rebuild(letter.code, letter.status, letter.detail, letter.extra)
        else:
            self._whereabouts = letter.whereabouts
            self._enter(letter)
        self._news.set()

    def _enter(self, letter: Telling) -> None:
        """Keep what comes next of it; if something is missing in between, have it sent again."""
        for number, data in letter.events:
            if number == self._last + 1:
                self._last = number
                self._queue.append(Told(number, data, letter.ends if number == letter.last else ""))
        if letter.ends and not letter.events:
            self._queue.append(Told(letter.last, b"", letter.ends))
        if letter.last > self._last:
            self._is_behind = True

    # ---- keeping it up --------------------------------------------------------------------------------------------

    async def _keep_alive(self) -> None:
        """Say every PROD_S that somebody reads. Raises: StreamGone; StoreUnavailable when Redis was away for long."""
        now_s = time.monotonic()
        if now_s - self._prodded_s < PROD_S and not self._is_behind:
            return
        self._prodded_s = now_s
        if self._is_behind or now_s - self._heard_s > SILENT_S:
            self._heard_s, self._is_behind = now_s, False
            await self._say(self._question())
        else:
            await self._confirm()

    def _question(self) -> Read:
        key_id, function = self._owner
        return Read(self.name, self._borrower.gateway, self._place.stream, self._last, key_id, function)

    async def _confirm(self) -> None:
        self._confirmed = self.number
        self._num_unconfirmed_bytes = 0
        await self._say(Got(self.name, self.number))

    async def _say(self, letter: Letter) -> None:
        """Send it if Redis is there; what it brings can wait. Raises: StreamGone; StoreUnavailable after AWAY_S."""
        try:
            await self._post(letter)
        except StoreUnavailable:
            self._alone_since_s = None
            if time.monotonic() - self._there_s > AWAY_S:
                raise

    async def _post(self, letter: Letter) -> None:
        """Send it. Raises: StreamGone when nobody has taken letters at that address for GONE_S; StoreUnavailable."""
        num_takers = await self._borrower.post(self._place.gateway, letter)
        self._there_s = now_s = time.monotonic()
        if num_takers:
            self._alone_since_s = None
        elif self._alone_since_s is None:
            self._alone_since_s = now_s
        elif now_s - self._alone_since_s > GONE_S:
            raise StreamGone("the gateway that had this stream is gone, and the rest of the stream with it")

    async def _wait(self, timeout_s: float) -> None:
        self._news.clear()
        try:
            async with asyncio.timeout(max(0.0, timeout_s)):
                await self._news.wait()
        except TimeoutError:
            return


class Borrower:
    """Everything one gateway reads of others. gateway: its own name."""

    def __init__(self, gateway: str, post: Post) -> None:
        self.gateway = gateway
        self.post = post
        self._borrowed: dict[str, Borrowed] = {}
        self._returns: set[asyncio.Task[None]] = set()

    async def borrow(self, place: Place, key_id: str, function: str) -> Borrowed:
        """Return who reads a stream of gateway `place.gateway`.

        Raises: Unavailable, StoreUnavailable if it cannot be asked, StreamGone if there is no such gateway any more;
            what the owner says.
        """
        if len(self._borrowed) >= MAX_BORROWED:
            raise Unavailable(f"{MAX_BORROWED} streams of other gateways are read here already", retry_after_s=5.0)
        reader = Borrowed(self, place, key_id, function)
        self._borrowed[reader.name] = reader
        try:
            await reader.open()
        except BaseException:
            reader.close()
            raise
        return reader

    async def give_up(self, place: Place, key_id: str, function: str) -> None:
        """Have a stream ended by its owner. Raises: StreamGone if it is not there now; StoreUnavailable."""
        if not await self.post(place.gateway, Unwanted("", place.stream, key_id, function)):
            raise StreamGone("the gateway that had this stream is gone, and the stream with it")

    def hear(self, letter: Opened | Telling | Refused) -> None:
        """Take a letter of an owner."""
        reader = self._borrowed.get(letter.reader)
        if reader is not None:
            reader.hear(letter)

    def give_back(self, reader: Borrowed, owner: str, is_told: bool) -> None:
        """The reader reads no more. Idempotent."""
        if self._borrowed.pop(reader.name, None) is not None:
            task = asyncio.create_task(self._tell_left(owner, Left(reader.name, is_told)))
            self._returns.add(task)
            task.add_done_callback(self._returns.discard)

    async def close(self) -> None:
        """Return once every owner was told, or could not be."""
        await asyncio.gather(*self._returns)

    async def _tell_left(self, owner: str, letter: Left) -> None:
        try:
            await self.post(owner, letter)
        except StoreUnavailable:
            return  # the owner notices by the silence
