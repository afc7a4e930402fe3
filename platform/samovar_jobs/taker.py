"""What a worker takes next: heard of, chosen fairly, and only as much as can run now.

    hear ─► whose turn is it (`fairness.py`) ─► is there a slot, a place, no pause ─► take ─► run (`attempts.py`)

A job is taken only while its version has a free slot as this worker sees it; of functions of microseconds a few more,
so that their instances do not idle for the length of a take. This module does not know how jobs are run or left.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import Counter
from typing import TYPE_CHECKING

from samovar.errors import StoreUnavailable
from samovar_dispatch.ask import Ask
from samovar_dispatch.call import Version
from samovar_dispatch.functions import FunctionEntry, FunctionTable
from samovar_dispatch.rates.rate_limits import RateLimits
from samovar_jobs.attempts import Attempts, Turn
from samovar_jobs.fairness import Rota, room_for
from samovar_jobs.key_rates import KeyRates
from samovar_jobs.lease import Lease
from samovar_jobs.pauses import Pauses
from samovar_jobs.reaper import Promoter
from samovar_jobs.tempo import Tempo
from samovar_jobs.verdict import GiveBack
from samovar_storage import keys
from samovar_storage.jobs.layout import QueueName, parse_queue
from samovar_storage.jobs.records import Settlement, Taken
from samovar_storage.subscribe import Message, subscribe

if TYPE_CHECKING:
    from redis.asyncio import Redis

    from samovar_storage.jobs.redis_jobs import RedisJobs

log = logging.getLogger(__name__)

LOOK_S = 0.05  # how often a function without a free slot is looked at, beside whenever one of its jobs ends
PROBE_S = 0.25  # how long one job that was sent to find out is waited for
POLL_S = 5.0  # what was published and not heard is found by then
AHEAD_S = 0.01  # work that may wait here for a slot
MAX_AHEAD = 32
MAX_TAKE = 64
CAPPED_S = 0.2
TOLD_S = 1.5  # longer than until this worker's next status
LIMITED_S = 0.1  # how soon a rate limit is looked at again: what others left of it is known by then
FIRST_RETRY_S, MAX_RETRY_S = 0.05, 1.0


class Taker:
    """One per worker. is_open: it takes jobs. pauses: what it leaves alone for a while. tempo: how fast it takes.

    max_held: jobs it holds at a time. rates: the limits of API keys; limits: what is left of them, and of functions'.
    promoter: told when jobs that are scheduled here are due.
    """

    def __init__(
        self,
        store: RedisJobs,
        lease: Lease,
        functions: FunctionTable,
        attempts: Attempts,
        rates: KeyRates,
        limits: RateLimits,
        promoter: Promoter,
        max_held: int,
    ) -> None:
        self.is_open = True
        self.has_closed = asyncio.Event()
        self.pauses = Pauses()
        self.tempo = Tempo()
        self.counts: Counter[str] = Counter()
        self.max_held = max_held
        self._store = store
        self._lease = lease
        self._functions = functions
        self._attempts = attempts
        self._rates = rates
        self._limits = limits
        self._promoter = promoter
        self._rota = Rota()
        self._news = asyncio.Event()
        self._heard: dict[QueueName, int] = {}
        self._number = 0
        self._is_suspended = False

    # ---- the loop ------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Take jobs and start them, until closed."""
        while self.is_open:
            await self._news_or_due()
            worker = await self._lease.held()
            while (turn := self._next_turn(worker)) is not None:
                taken = await self._take(turn)
                charged_s = self._rota.took(turn.queue, len(taken))
                for job in taken:
                    self._attempts.start(job, turn, charged_s, self)
        self.has_closed.set()

    def suspend(self, is_suspended: bool) -> None:
        """Nothing is taken while RQ's workers are told to pause."""
        if self._is_suspended and not is_suspended:
            self._news.set()
        self._is_suspended = is_suspended

    @property
    def queues(self) -> set[QueueName]:
        """Return the queues with waiting jobs."""
        return self._rota.queues

    def close(self) -> None:
        """Nothing more is taken once what is on its way is here: then `has_closed` is set."""
        self.is_open = False
        self._news.set()

    async def hear(self, redis: Redis) -> None:
        """Follow which queues have jobs, until cancelled. Raises StoreUnavailable: run it again."""
        async for event in subscribe(redis, keys.CHANNEL_JOBS):
            if not isinstance(event, Message):
                await self.refresh()
            elif (queue := parse_queue(event.data.decode(errors="replace"))) is not None:
                self._hear(queue)

    async def poll(self) -> None:
        """Look what waits every few seconds, until cancelled. Raises StoreUnavailable: run it again."""
        while True:
            await self.refresh()
            await asyncio.sleep(POLL_S)

    async def refresh(self) -> None:
        """Which queues have jobs is as Redis has it now. Raises: StoreUnavailable."""
        before = self._number
        waiting = await self._store.waiting()
        for queue in self._rota.queues - waiting.keys():
            self._drop(queue, before)
        for queue in waiting:
            self._hear(queue)

    @property
    def may_take(self) -> bool:
        """Return whether anything is taken at all now."""
        return self.is_open and not self._is_suspended

    # ---- whose turn it is ----------------------------------------------------------------------------------------

    def _next_turn(self, worker: str) -> Turn | None:
        now_s = time.monotonic()
        self._rota.wake_due(now_s)
        free = self.max_held - len(self._attempts.running)
        while self.may_take and free > 0 and worker == self._lease.worker:
            queue = self._rota.next()
            if queue is None:
                return None
            turn = self._turn_of(queue, worker, free, now_s)
            if turn is not None:
                return turn
        return None

    def _turn_of(self, queue: QueueName, worker: str, free: int, now_s: float) -> Turn | None:
        """Return what this queue may have now; None if nothing, then it or its function is parked."""
        allowed = self.pauses.most(queue, now_s)
        entry = self._functions.entries.get(queue.function)
        if allowed == 0 or entry is None:
            pause = self.pauses.of(queue, now_s)
            self._rota.park(queue, pause.until_s if pause is not None else now_s + LOOK_S)
            return None
        version = version_for(entry, queue, now_s)
        room = min(room_for(self._attempts.held[queue.function], free), num_wanted(version))
        if version.breaker.state:
            room = min(room, version.breaker.num_probes(now_s))
        if room <= 0:
            self._rota.park(queue.function, now_s + LOOK_S)
            return None
        rate = self._rates.of(queue.key_id)
        passing, wait_s = self._limits.look(queue.key_id, rate, queue.function, entry.rates)
        if passing == 0:
            self.pauses.limited(queue, now_s + max(wait_s, TOLD_S))
            self._rota.park(queue, now_s + min(wait_s, LIMITED_S))
            return None
        most = min(MAX_TAKE, max(1, room // self._rota.num_rivals(queue)))
        if passing is not None:
            most = min(most, passing)
        if allowed is not None:
            most = min(most, allowed)
            self._rota.park(queue.function, now_s + PROBE_S)
        return Turn(queue, entry, version, most, worker, rate)

    async def _take(self, turn: Turn) -> list[Taken]:
        """Return the jobs the queue gave. While Redis is away it is asked again: it may have given some, unheard."""
        jobs, before, retry_s = turn.version.manifest.jobs, self._number, FIRST_RETRY_S
        while turn.worker == self._lease.worker:
            try:
                taken = await self._store.take(
                    turn.queue, turn.worker, turn.most, jobs.max_running, jobs.max_running_per_key
                )
            except StoreUnavailable as error:
                log.warning("nothing can be taken, again in %.2f s: %s", retry_s, error.detail)
                await asyncio.sleep(retry_s)
                retry_s = min(MAX_RETRY_S, retry_s * 2)
                continue
            self._took(turn, len(taken), before)
            return taken if turn.worker == self._lease.worker else []  # else they are somebody else's by now
        return []

    def _took(self, turn: Turn, count: int, before: int) -> None:
        """The queue gave so many. Fewer than asked do not mean that it is empty: some may have failed on the way."""
        self.counts["taken"] += count
        jobs = turn.version.manifest.jobs
        is_capped = jobs.max_running is not None or jobs.max_running_per_key is not None
        if count:
            self.tempo.took(turn.queue, count, time.monotonic())
        if count < turn.most and is_capped:  # a job that another worker holds may end any time
            self._rota.park(turn.queue, time.monotonic() + CAPPED_S)
        elif not count:
            self._drop(turn.queue, before)

    # ---- what is heard of ----------------------------------------------------------------------------------------

    def _hear(self, queue: QueueName) -> None:
        self._number += 1
        self._heard[queue] = self._number
        self._rota.add(queue)
        self._news.set()

    def _drop(self, queue: QueueName, before: int) -> None:
        """The queue was empty when asked, and nothing was heard of it since number `before`."""
        if self._heard.get(queue, 0) <= before:
            self._heard.pop(queue, None)
            self._rota.drop(queue)

    async def _news_or_due(self) -> None:
        due_s = self._rota.next_due_s()
        wait_s = POLL_S if due_s is None else max(0.0, due_s - time.monotonic())
        try:
            async with asyncio.timeout(wait_s):
                await self._news.wait()
        except TimeoutError:
            pass
        self._news.clear()

    # ---- what becomes of jobs: `attempts.Desk` ---------------------------------------------------------------------

    def sent(self, turn: Turn) -> None:
        """A job of this turn is on its way to an instance."""
        self.pauses.sent(turn.queue)
        self._wake(turn)

    def refused(self, turn: Turn, back: GiveBack) -> None:
        """A job of this turn did not run: its queue, or its function, is left alone for a while."""
        now_s = time.monotonic()
        is_paused = self.pauses.of(turn.queue, now_s) is not None
        pause = self.pauses.refused(turn.queue, back, now_s, random.random())  # noqa: S311  no secret
        level = logging.DEBUG if is_paused or pause.num_refusals > 1 else logging.INFO  # the first in a row says it
        log.log(level, "jobs of %s wait: %s", turn.queue if back.is_of_key else turn.queue.function, pause.reason)

    def slot_freed(self, turn: Turn) -> None:
        """A job of this turn has its outcome."""
        self._wake(turn)

    def ended(self, turn: Turn, charged_s: float, run_s: float | None, settlement: Settlement) -> None:
        """A job of this turn has left its place."""
        if run_s is not None:
            self.pauses.succeeded(turn.queue)
        self._rota.ended(turn.queue, charged_s, run_s)
        self._rota.wake(turn.queue)
        self._wake(turn)
        if settlement.due_at_s:
            self._promoter.note(settlement.due_at_s)

    def _wake(self, turn: Turn) -> None:
        self._rota.wake(turn.queue.function)
        self._news.set()


def version_for(entry: FunctionEntry, queue: QueueName, now_s: float) -> Version:
    """Return the version that the route gives the next jobs of a queue."""
    if entry.only is not None:
        return entry.only
    asked = Ask(entry, queue.key_id, now_s, now_s, {}, b"")
    return entry.choose(asked, random.random())  # noqa: S311  shares of traffic are no secret


def num_wanted(version: Version) -> int:
    """Return how many more jobs a version can use now: its free slots, and work of AHEAD_S, less what waits here."""
    if not version.seats.num_open:
        return 0
    ahead = min(MAX_AHEAD, int(AHEAD_S / version.service_s)) if version.service_s > 0 else 0
    return version.seats.num_free + ahead - version.num_queued
