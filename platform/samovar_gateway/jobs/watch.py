"""Who waits for news in this gateway, and the one connection to Redis on which news comes.

    watch ──► wanted ──► SUBSCRIBE ──► confirmed: everybody looks once more ──► a message: those of its channel look

Nothing is handed over but the fact that there is news: whoever is woken reads what it needs, so a slow reader keeps
nothing waiting, and a message that was lost costs time alone. A channel is confirmed before it is relied upon: what
happened between the first look and the subscription is seen by the second. When the connection was lost, everybody
looks again once it is back. This module does not know what jobs or answers are to those who watch.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from contextlib import aclosing, asynccontextmanager, contextmanager
from typing import Any

import msgspec
import redis.asyncio as redis_async

from samovar.errors import SamovarError, StoreUnavailable, Unavailable
from samovar.jobs import TERMINAL
from samovar_storage import keys
from samovar_storage.ending import end_tasks
from samovar_storage.failures import translating
from samovar_storage.jobs.records import JobRecord
from samovar_storage.jobs.redis_jobs import RedisJobs
from samovar_storage.subscribe import as_text, close_pubsub, next_message

log = logging.getLogger(__name__)

MAX_WATCHES = 10_000
MAX_READS = 16  # looks at Redis at a time, of all who watch
LOOK_AGAIN_S = 15.0  # although nothing was heard
SILENCE_S = 10.0
FIRST_RETRY_S, MAX_RETRY_S = 0.05, 2.0
MAX_CHANNELS_AT_ONCE = 1000
ENDS = frozenset(str(state) for state in TERMINAL)


class _News(msgspec.Struct):
    """What of a message matters here. kind: of a JobEvent."""

    kind: str = ""


_decoder = msgspec.json.Decoder(_News)


class Watch:
    """One who waits for news of one channel. for_end: a job's other news than its end does not matter."""

    __slots__ = ("_has_news", "channel", "for_end")

    def __init__(self, channel: str, for_end: bool) -> None:
        self.channel = channel
        self.for_end = for_end
        self._has_news = asyncio.Event()

    def wake(self) -> None:
        """There is news."""
        self._has_news.set()

    async def changed(self, timeout_s: float) -> bool:
        """Return whether there was news since the last time this was asked, or comes within the time."""
        try:
            async with asyncio.timeout(max(0.0, timeout_s)):
                await self._has_news.wait()
        except TimeoutError:
            return False
        self._has_news.clear()
        return True


class WatchHub:
    """All watches of one gateway. is_leaving: the gateway ends; whoever watches should say so and go."""

    def __init__(self, redis: redis_async.Redis, jobs: RedisJobs, max_watches: int = MAX_WATCHES) -> None:
        self._redis = redis
        self._jobs = jobs
        self._max_watches = max_watches
        self._watches: dict[str, set[Watch]] = {}
        self._asked: set[str] = set()  # channels, on the connection there is
        self._changed = asyncio.Event()
        self._reads = asyncio.Semaphore(MAX_READS)
        self.num_watches = 0
        self.is_leaving = False

    # ---- for those who wait ----------------------------------------------------------------------------------------

    @contextmanager
    def watching(self, channel: str, *, for_end: bool = False) -> Iterator[Watch]:
        """Watch a channel for the body of a `with`: look first in it, then whenever the watch has changed.

        Raises: Unavailable when too many watch already.
        """
        if self.num_watches >= self._max_watches:
            raise Unavailable(f"{self._max_watches} clients wait for news already", retry_after_s=5.0)
        watch = Watch(channel, for_end)
        self._watches.setdefault(channel, set()).add(watch)
        self.num_watches += 1
        self._changed.set()
        try:
            yield watch
        finally:
            self.num_watches -= 1
            left = self._watches[channel]
            left.discard(watch)
            if not left:
                del self._watches[channel]
                self._changed.set()

    @asynccontextmanager
    async def looking(self) -> AsyncIterator[None]:
        """Look at Redis in the body: only so many do at a time, however many were woken."""
        async with self._reads:
            yield

    async def wait_ended(self, job_id: str, timeout_s: float) -> JobRecord:
        """Return the job's record as soon as it has ended, at the latest after `timeout_s` as it is then; earlier if
        this gateway leaves.

        Raises: JobNotFound; StoreUnavailable if Redis is away at first or at last; Unavailable when too many wait.
        """
        until_s = time.monotonic() + timeout_s
        with self.watching(keys.job_channel(job_id), for_end=True) as watch:
            record = await self._jobs.get(job_id)
            while record.state not in TERMINAL:
                remaining_s = until_s - time.monotonic()
                if remaining_s <= 0 or self.is_leaving:
                    break
                await watch.changed(min(remaining_s, LOOK_AGAIN_S))
                record = await self._look(job_id, until_s) or record
            return record

    async def _look(self, job_id: str, until_s: float) -> JobRecord | None:
        """Return a job's record; None while Redis is away: everybody is woken when it is back. Raises: JobNotFound;
        StoreUnavailable once the time is over."""
        try:
            async with self.looking():
                return await self._jobs.get(job_id)
        except StoreUnavailable:
            if time.monotonic() >= until_s:
                raise
            return None

    def leave(self) -> None:
        """Everybody who watches is to go."""
        self.is_leaving = True
        self._wake_all()

    # ---- the connection --------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Hear what is published until cancelled: a lost connection is made again, after 50 ms rising to 2 s."""
        retry_s = FIRST_RETRY_S
        while True:
            try:
                async with aclosing(self._one_connection()) as heard:
                    async for _ in heard:
                        retry_s = FIRST_RETRY_S
            except StoreUnavailable as error:
                log.warning("news of jobs lost, again in %.2f s: %s", retry_s, error.detail)
            await asyncio.sleep(retry_s)
            retry_s = min(MAX_RETRY_S, retry_s * 2)

    async def _one_connection(self) -> AsyncGenerator[None, None]:
        """Yield at every sign of life. Raises: StoreUnavailable."""
        pubsub = self._redis.pubsub()
        asking: asyncio.Task[None] | None = None
        try:
            with translating("the news of jobs"):
                await pubsub.subscribe(keys.CHANNEL_JOB_WATCH)
            asking = asyncio.create_task(self._ask(pubsub))
            heard_s = time.monotonic()
            while True:
                message = await next_message(pubsub, "the news of jobs")
                if message is not None:
                    heard_s = time.monotonic()
                    self._hear(message)
                    yield
                elif time.monotonic() - heard_s > SILENCE_S:
                    raise StoreUnavailable(f"the subscription was silent for {SILENCE_S:.0f} s")
        finally:
            await end_tasks([] if asking is None else [asking])
            await close_pubsub(pubsub)

    def _hear(self, message: dict[str, Any]) -> None:
        channel = as_text(message["channel"])
        if message["type"] == "message":
            self._wake(channel, message["data"])
        elif message["type"] == "subscribe":
            if channel == keys.CHANNEL_JOB_WATCH:  # this connection is new: nothing else was asked for on it
                self._asked.clear()
                self._changed.set()
            else:
                for watch in self._watches.get(channel, ()):
                    watch.wake()

    def _wake(self, channel: str, data: bytes) -> None:
        watches = self._watches.get(channel)
        if watches is None:
            return
        is_end = _kind(data) in ENDS
        for watch in watches:
            if is_end or not watch.for_end:
                watch.wake()

    def _wake_all(self) -> None:
        for watches in self._watches.values():
            for watch in watches:
                watch.wake()

    async def _ask(self, pubsub: Any) -> None:
        """Keep what this connection is subscribed to as it is wanted. It never connects: that is the reader's part."""
        while True:
            await self._changed.wait()
            self._changed.clear()
            wanted = self._watches.keys()
            for command, channels in (("SUBSCRIBE", wanted - self._asked), ("UNSUBSCRIBE", self._asked - wanted)):
                some = [*channels][:MAX_CHANNELS_AT_ONCE]
                if some and pubsub.connection is not None and pubsub.connection.is_connected:
                    self._asked.symmetric_difference_update(some)
                    await self._send(pubsub.connection, command, some)
                if len(some) < len(channels):
                    self._changed.set()

    async def _send(self, connection: Any, command: str, channels: list[str]) -> None:
        try:
            with translating("the news of jobs"):
                await connection.send_command(command, *channels, check_health=False)
        except SamovarError as error:
            log.debug("%s: %s", command, error.detail)  # the reader finds out, and all is asked for again


def _kind(data: bytes) -> str:
    try:
        return _decoder.decode(data).kind
    except msgspec.MsgspecError:
        return ""
