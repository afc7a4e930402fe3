"""Kept answers as one thing: this process's shelf in front of Redis. Reading waits little, writing holds up no call.

    keep ──bounded queue──► key ► shelf ► Redis        a full queue, or Redis away: dropped and counted
    look ──shelf, at once                              fetch ── Redis, within milliseconds, or nothing

This module does not know why an answer is kept, or calls.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import deque
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from hashlib import blake2b

import msgspec
from redis.asyncio import Redis

from samovar.errors import SamovarError
from samovar_dispatch.answers.answer_key import input_digest
from samovar_dispatch.answers.fallbacks import Scope
from samovar_dispatch.answers.shelf import OVERHEAD_BYTES, Shelf
from samovar_storage.answers import Answer, Caps, Keeping, read_answer, write_answers
from samovar_storage.ending import end_tasks

log = logging.getLogger(__name__)

READ_TIMEOUT_S, WRITE_TIMEOUT_S = 0.05, 1.0
AWAY_S = 1.0  # Redis did not answer: nobody waits for it so long
MAX_READS = 32
MAX_INPUT_BYTES = 1 << 20  # hashed on the event loop: about a millisecond
MAX_WAITING, MAX_WAITING_BYTES = 1000, 16 << 20
BATCH, SLICE = 64, 8
REFRESH_S = 1.0  # an answer younger than this is not kept anew: under load the last one is as good
REFRESH_SHARE = 0.5
JSON = "application/json"  # what most callers accept


@dataclass(slots=True)
class Offer:
    """A good answer, to be kept under its input. accept: what its caller wanted it to be. key: "" until it is known."""

    scope: Scope
    key_id: str
    body: bytes
    accept: str
    answer: Answer
    key: str

    @property
    def num_bytes(self) -> int:
        """What the offer holds in memory while it waits."""
        return len(self.body) + len(self.answer.body) + OVERHEAD_BYTES


class Lookup:
    """One look into Redis, under way. It ends in time although the client of Redis may swallow a cancellation."""

    __slots__ = ("_on_late", "_then", "_timer", "task")

    def __init__(
        self,
        reading: Coroutine[object, object, Answer | None],
        timeout_s: float,
        then: Callable[[Answer | None], None],
        on_late: Callable[[Exception], None],
    ) -> None:
        loop = asyncio.get_running_loop()
        self._then: Callable[[Answer | None], None] | None = then
        self._on_late = on_late
        self._timer = loop.call_later(timeout_s, self._late)
        self.task = loop.create_task(reading)
        self.task.add_done_callback(self._done)

    def cancel(self) -> None:
        """Nobody wants to know any more. Idempotent."""
        self._then = None
        self._timer.cancel()
        self.task.cancel()

    def _late(self) -> None:
        self._on_late(TimeoutError("Redis takes too long"))
        self._end(None)

    def _done(self, task: asyncio.Task[Answer | None]) -> None:
        if not task.cancelled() and (error := task.exception()) is not None:
            log.error("a look-up of a kept answer failed", exc_info=error)
        self._end(None if task.cancelled() or task.exception() is not None else task.result())

    def _end(self, answer: Answer | None) -> None:
        then = self._then
        if then is not None:
            self.cancel()
            then(answer)


class Cabinet:
    """One per process. num_kept, num_dropped: offers; dropped ones were not written to Redis. max_answer_bytes: larger
    answers are not to be offered."""

    def __init__(
        self, redis: Redis, caps: Caps, shelf: Shelf, max_answer_bytes: int, clock: Callable[[], float] = time.time
    ) -> None:
        self.shelf = shelf
        self.max_answer_bytes = max_answer_bytes
        self.num_kept = self.num_dropped = 0
        self._redis = redis
        self._caps = caps
        self._clock = clock
        self._offers: deque[Offer] = deque()
        self._offered_bytes = 0
        self._wake = asyncio.Event()
        self._reads: set[asyncio.Task[Answer | None]] = set()
        self._away_until_s = 0.0

    def key(self, scope: Scope, key_id: str, body: bytes, accept: str = JSON) -> str:
        """Return the id of the answer to this input of this caller, in the form that it accepts."""
        owner = b"" if scope.shared else key_id.encode()
        digest = input_digest(body, scope.paths)
        form = b"/" if accept == JSON else f"/{accept}/".encode()
        return f"{scope.function}:{blake2b(scope.prefix + owner + form + digest, digest_size=16).hexdigest()}"

    def look(self, key: str, max_age_s: float) -> Answer | None:
        """Return the answer on the shelf, unless it is too old."""
        return self._young(self.shelf.get(key), max_age_s)

    def age_s(self, answer: Answer) -> float:
        """Return the seconds since the answer was given, >= 0 whatever the clocks say."""
        return max(0.0, self._clock() - answer.at_s)

    @property
    def can_fetch(self) -> bool:
        """Redis answered lately, and few wait for it."""
        return len(self._reads) < MAX_READS and time.monotonic() >= self._away_until_s

    def fetch(self, key: str, max_age_s: float, timeout_s: float, then: Callable[[Answer | None], None]) -> Lookup:
        """Look in Redis; `then` is called once, from the event loop within READ_TIMEOUT_S, unless it is cancelled."""
        lookup = Lookup(self._read(key, max_age_s), min(timeout_s, READ_TIMEOUT_S), then, self._is_away)
        self._reads.add(lookup.task)
        lookup.task.add_done_callback(self._reads.discard)
        return lookup

    def keep(self, scope: Scope, key_id: str, body: bytes, answer: Answer, key: str = "", accept: str = JSON) -> None:
        """Keep `answer` soon. key: of the input if it is known; then the shelf has it at once."""
        offer = Offer(scope, key_id, body, accept, answer, key)
        if key:
            self.shelf.put(key, answer)
        if len(self._offers) >= MAX_WAITING or self._offered_bytes + offer.num_bytes > MAX_WAITING_BYTES:
            self.num_dropped += 1
            return
        self._offers.append(offer)
        self._offered_bytes += offer.num_bytes
        self._wake.set()

    def forget(self, name: str) -> None:
        """Keep nothing of a function in this process: not on the shelf, and nothing that was to be written."""
        self.shelf.drop_function(name)
        left = [offer for offer in self._offers if offer.scope.function != name]
        self._offers = deque(left)
        self._offered_bytes = sum(offer.num_bytes for offer in left)

    async def run(self) -> None:
        """Keep what is offered until cancelled."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            while self._offers:
                await self._write(await self._prepare())

    async def close(self) -> None:
        """End every read under way, and the connections to Redis."""
        await end_tasks(self._reads)
        await self._redis.aclose()

    async def _read(self, key: str, max_age_s: float) -> Answer | None:
        try:
            answer = await read_answer(self._redis, key)
        except (SamovarError, msgspec.MsgspecError) as error:
            self._is_away(error)
            return None
        if answer is not None:
            self.shelf.put(key, answer)
        return self._young(answer, max_age_s)

    async def _prepare(self) -> list[Keeping]:
        """Take some offers; put them on the shelf; return those that Redis should have, without holding up the loop."""
        keepings: list[Keeping] = []
        for number in range(min(BATCH, len(self._offers))):
            if number % SLICE == SLICE - 1:
                await asyncio.sleep(0)
            offer = self._offers.popleft()
            self._offered_bytes -= offer.num_bytes
            is_new = bool(offer.key)
            if not is_new:
                offer.key = self.key(offer.scope, offer.key_id, offer.body, offer.accept)
                is_new = self._is_due(offer)
            if is_new:
                self.shelf.put(offer.key, offer.answer)
                keepings.append(Keeping(offer.key, offer.answer, offer.scope.lifetime_s))
        return keepings

    def _is_due(self, offer: Offer) -> bool:
        old = self.shelf.get(offer.key)
        if old is None or old.version != offer.answer.version:
            return True
        return offer.answer.at_s - old.at_s > min(REFRESH_S, REFRESH_SHARE * offer.scope.lifetime_s)

    async def _write(self, keepings: list[Keeping]) -> None:
        if not keepings:
            return
        try:
            if time.monotonic() < self._away_until_s:
                raise TimeoutError("Redis was away a moment ago")
            async with asyncio.timeout(WRITE_TIMEOUT_S):
                await write_answers(self._redis, keepings, self._caps, self._clock())
            self.num_kept += len(keepings)
        except (TimeoutError, SamovarError) as error:
            self.num_dropped += len(keepings)
            self._is_away(error)

    def _is_away(self, error: Exception) -> None:
        now_s = time.monotonic()
        if now_s >= self._away_until_s:
            log.warning("kept answers: %s", error or "Redis takes too long")
            self._away_until_s = now_s + AWAY_S

    def _young(self, answer: Answer | None, max_age_s: float) -> Answer | None:
        return answer if answer is not None and self.age_s(answer) <= max_age_s else None
