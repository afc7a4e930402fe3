"""Rate limits of one gateway: calls are judged here and now; Redis hears of them a moment later.

    take   check every limit of a call, then take from all        (no await: arithmetic on this gateway's budgets)
    run    every 50 ms (200 while no limit is near) tell Redis what was spent, lease what will be needed

A call never waits for Redis, and a limit that refuses a call leaves the others untouched. While Redis is away each
gateway goes on with its N-th of every limit; when it is back, gateways first tell what they spent and lease after that,
so that the rate never jumps. The arithmetic is in `gcra.py` and `rate_budget.py`. This module does not know HTTP.
"""

from __future__ import annotations

import asyncio
import heapq
import itertools
import logging
import random
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from redis.asyncio import Redis

from samovar.errors import RateLimited, SamovarError
from samovar.spec import Limits
from samovar_dispatch.rates.gcra import Rate, rate_of
from samovar_dispatch.rates.rate_budget import CALM_TICK_S, TICK_S, Budget, Report
from samovar_storage import rates
from samovar_storage.rates import LeaseReply, LeaseRequest

log = logging.getLogger(__name__)

COUNT_S = 1.0
MIN_GAP_S = 0.01
REPLY_TIMEOUT_S = 0.5
RETRY_S = 0.25
REJOIN_S = 1.0  # > REPLY_TIMEOUT_S + RETRY_S: by then every gateway that reached Redis again has told what it spent
MAX_BUDGETS = 100_000

KEY, FUNCTION, PAIR = "key", "function", "key-and-function"
_WORDS = {KEY: "this key's calls", FUNCTION: "calls of this function", PAIR: "this key's calls of this function"}


@dataclass(frozen=True, slots=True)
class FunctionRates:
    """The limits a function declares, at least one. total: for all its callers; per_key: for each key alone."""

    total: Rate | None
    per_key: Rate | None


def function_rates(limits: Limits) -> FunctionRates | None:
    """Return the limits of a version, None if it has none."""
    total, per_key = rate_of(limits.rate, limits.burst), rate_of(limits.rate_per_key, limits.burst_per_key)
    return FunctionRates(total, per_key) if total is not None or per_key is not None else None


class RateLimits:
    """One per process. num_gateways: heard of lately, >= 1; kept as it was while Redis is away."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self.num_gateways = 1
        self._clock = clock
        self._budgets: dict[tuple[str, str], Budget] = {}
        self._busy: dict[Budget, None] = {}  # to be reported
        self._parked: list[tuple[float, int, Budget]] = []  # to be dropped once their limit is unused
        self._ids = itertools.count()
        self._work = asyncio.Event()
        self._urgent = asyncio.Event()
        self._reported_s = self._counted_s = -COUNT_S
        self._is_away = self._is_calm = False
        self._rejoined_s = 0.0  # until then nothing is leased

    def take(
        self,
        key_id: str,
        key_rate: Rate | None,
        function: str,
        declared: FunctionRates | None,
        num_calls: int = 1,
    ) -> None:
        """A request passes all its limits and its calls are counted by each, or it is refused and counted by none.

        Args:
            key_rate: the limit of the key `key_id`. declared: those of the function. num_calls: that the request is,
                >= 1: it passes where one would, and pays for all.
        Raises: RateLimited, with the time after which it may pass.
        """
        now_s = self._clock()
        budgets: list[Budget] = []
        if key_rate is not None:
            budgets.append(self._asked((key_id, ""), key_rate, KEY, now_s))
        if declared is not None:
            if declared.per_key is not None:
                budgets.append(self._asked((key_id, function), declared.per_key, PAIR, now_s))
            if declared.total is not None:
                budgets.append(self._asked(("", function), declared.total, FUNCTION, now_s))
        for budget in budgets:
            most = min(num_calls, budget.rate.most_calls)
            if budget.take(now_s, self.num_gateways, most):
                self._urgent.set()

    def look(
        self, key_id: str, key_rate: Rate | None, function: str, declared: FunctionRates | None
    ) -> tuple[int | None, float]:
        """Return how many calls may pass all these limits now, None = any number, and the seconds until one may, 0 if
        one may now; as far as known. Nothing is counted. Args: as of `take`."""
        now_s = self._clock()
        per_key, total = (declared.per_key, declared.total) if declared is not None else (None, None)
        limits = (((key_id, ""), key_rate), ((key_id, function), per_key), (("", function), total))
        found = [self._budgets.get(name) or Budget(name, rate) for name, rate in limits if rate is not None]
        if not found:
            return None, 0.0
        room = min(budget.room(now_s, self.num_gateways) for budget in found)
        return room, 0.0 if room else max(budget.wait_s(now_s) for budget in found)

    def __len__(self) -> int:
        """Return how many limits are remembered."""
        return len(self._budgets)

    async def run(self, redis: Redis) -> None:
        """Report until cancelled."""
        while True:
            await self._pause()
            try:
                async with asyncio.timeout(REPLY_TIMEOUT_S):
                    await self._count(redis)
                await self._report(redis)
            except (SamovarError, TimeoutError) as error:
                self._lost(error)
                await asyncio.sleep(RETRY_S)

    def _asked(self, name: tuple[str, str], rate: Rate, kind: str, now_s: float) -> Budget:
        """Return the budget if a call may pass it, else raise RateLimited."""
        budget = self._budgets.get(name)
        if budget is None:
            budget = self._open(name, rate)
        budget.rate = rate
        budget.asked += 1
        if not budget.busy:
            self._begin(budget)
        if not budget.may(now_s):
            raise _refusal(budget, kind, now_s)
        return budget

    def _open(self, name: tuple[str, str], rate: Rate) -> Budget:
        if len(self._budgets) >= MAX_BUDGETS:
            self._make_room()
        budget = self._budgets[name] = Budget(name, rate)
        return budget

    def _begin(self, budget: Budget) -> None:
        budget.busy = True
        self._busy[budget] = None
        self._work.set()

    def _make_room(self) -> None:
        """Forget the idle budget whose limit is unused soonest, or the oldest when none is idle."""
        while self._parked:
            budget = heapq.heappop(self._parked)[2]
            budget.parked = False
            if not budget.busy:
                return self._forget(budget)
        self._forget(next(iter(self._budgets.values())))

    def _forget(self, budget: Budget) -> None:
        if self._budgets.get(budget.name) is budget:
            del self._budgets[budget.name]
        self._busy.pop(budget, None)

    async def _pause(self) -> None:
        """Wait for the next report: soon when it is urgent, a tick when there is one, else for the first call."""
        try:
            if self._busy:
                # ticks of their own length: no gateway always comes first to what has flowed back
                tick_s = CALM_TICK_S if self._is_calm else TICK_S
                async with asyncio.timeout(tick_s * random.uniform(0.75, 1.25)):  # noqa: S311  no secret
                    await self._urgent.wait()
            else:
                async with asyncio.timeout(COUNT_S):
                    await self._work.wait()
                self._reported_s = self._clock()
            await asyncio.sleep(max(0.0, self._reported_s + MIN_GAP_S - self._clock()))
        except TimeoutError:
            return
        finally:
            self._urgent.clear()
            self._work.clear()

    async def _count(self, redis: Redis) -> None:
        now_s = self._clock()
        if now_s - self._counted_s >= COUNT_S:
            self.num_gateways = max(1, await rates.num_gateways(redis))
            self._counted_s = now_s
            self._found()
            self._drop_unused(now_s)

    async def _report(self, redis: Redis) -> None:
        now_s = self._clock()
        since_s, self._reported_s = now_s - self._reported_s, now_s
        may_lease = not self._is_away and now_s >= self._rejoined_s
        for batch in _batches([*self._busy]):
            told = [budget.report(now_s, self.num_gateways, since_s, may_lease) for budget in batch]
            try:
                async with asyncio.timeout(REPLY_TIMEOUT_S):
                    replies = await rates.lease(redis, [*map(_request, batch, told)])
            except (SamovarError, TimeoutError):
                for budget, report in zip(batch, told, strict=True):
                    budget.lost(report)
                raise
            self._found()
            for budget, report, reply in zip(batch, told, replies, strict=True):
                self._settle(budget, report, reply, may_lease)
        self._is_calm = all(budget.calm for budget in self._busy)

    def _settle(self, budget: Budget, told: Report, reply: LeaseReply, may_lease: bool) -> None:
        now_s = self._clock()
        if may_lease:
            budget.settle(told, reply.granted, reply.backlog_s, now_s, self.num_gateways)
        else:
            budget.rejoin(reply.backlog_s, now_s)
        if budget.is_quiet():
            budget.busy = False
            self._busy.pop(budget, None)
            if not budget.parked:
                budget.parked = True
                heapq.heappush(self._parked, (budget.tat_s, next(self._ids), budget))

    def _drop_unused(self, now_s: float) -> None:
        """Forget idle budgets whose limit is unused by now: a fresh one would say the same."""
        while self._parked and self._parked[0][0] <= now_s:
            budget = heapq.heappop(self._parked)[2]
            budget.parked = False
            if budget.busy:
                continue
            if budget.tat_s <= now_s:
                self._forget(budget)
            else:
                budget.parked = True
                heapq.heappush(self._parked, (budget.tat_s, next(self._ids), budget))

    def _lost(self, error: Exception) -> None:
        if not self._is_away:
            text = error.detail if isinstance(error, SamovarError) else "no answer in time"
            log.warning("rate limits: on this gateway's share alone, 1/%d: %s", self.num_gateways, text)
        self._is_away = True

    def _found(self) -> None:
        if self._is_away:
            log.info("rate limits: shared again")
            self._is_away, self._rejoined_s = False, self._clock() + REJOIN_S


def _batches(budgets: Sequence[Budget]) -> list[Sequence[Budget]]:
    return [budgets[i : i + rates.MAX_BATCH] for i in range(0, len(budgets), rates.MAX_BATCH)]


def _request(budget: Budget, told: Report) -> LeaseRequest:
    return LeaseRequest(budget.name, budget.rate.per_s, budget.rate.burst, told.charge, told.want)


def _refusal(budget: Budget, kind: str, now_s: float) -> RateLimited:
    rate = budget.rate
    return RateLimited(
        f"{_WORDS[kind]} are limited to {rate.text} with bursts of {rate.burst}",
        retry_after_s=round(budget.wait_s(now_s), 3),
        limit=kind,
        policy={"rate": rate.text, "burst": rate.burst, "window_s": rate.window_s},
    )
