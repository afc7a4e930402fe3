"""Tells the pool manager what waits and runs here: read off the queues and connections, never counted beside them.

Written at once, with a wake-up, when a version's demand rises from nothing (or its queue outgrows twice what was
written); else every 100 ms while it changes, and once a second as a sign of life, since it lives for 3 s. A gateway
that disappears takes its demand with it. While Redis is away, calls go on and the newest demand is written when it is
back. This module does not know what the manager does with it.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable

from redis.asyncio import Redis

from samovar.errors import SamovarError
from samovar_dispatch.call import Version
from samovar_dispatch.dispatcher import Dispatcher
from samovar_dispatch.mirror import recall_boot_failure
from samovar_storage import live
from samovar_storage.records import Demand

log = logging.getLogger(__name__)

TICK_S = 0.1
REFRESH_S = 1.0
MIN_GAP_S = 0.002
RETRY_S = 0.5


class DemandWriter:
    """Writes one gateway's demand. `notice` is the dispatcher's `on_demand`.

    of_jobs: of a job worker's: all that it holds counts as running, since what waits is told by the queues of jobs,
    and nobody is woken: a worker sends nothing to a version without instances.
    """

    def __init__(self, gateway_id: str, *, of_jobs: bool = False) -> None:
        self._gateway_id = gateway_id
        self._of_jobs = of_jobs
        self._active: dict[Version, int] = {}  # → calls it had been given at the last look
        self._woken: dict[Version, None] = {}
        self._wake = asyncio.Event()
        self._written: dict[str, Demand] = {}
        self._written_s = 0.0

    def notice(self, version: Version) -> None:
        """Write soon: this version's demand rose from nothing, or by much."""
        self._active.setdefault(version, -1)
        self._woken[version] = None
        self._wake.set()

    async def run(self, redis: Redis, dispatcher: Dispatcher) -> None:
        """Write until cancelled; then withdraw this gateway."""
        try:
            while True:
                await self._wait()
                woken, self._woken = self._woken, {}
                try:
                    await self._write(redis, woken, time.monotonic())
                    await self._recall_failures(redis, dispatcher, woken)
                except SamovarError as error:
                    self._woken = woken | self._woken
                    log.warning("the demand was not written: %s", error.detail)
                    await asyncio.sleep(RETRY_S)
        finally:
            await self._withdraw(redis)

    def snapshot(self) -> dict[str, Demand]:
        """Return the demand now. A version that was called since the last look counts as one running at least."""
        demand: dict[str, Demand] = {}
        for version, seen in [*self._active.items()]:
            queued, running, submitted = version.num_queued, version.num_running, version.stats.submitted
            if not queued and not running:
                if submitted == seen:
                    del self._active[version]
                    version.active = False
                    version.written_demand = 0
                    continue
                running = 1
            self._active[version] = submitted
            version.written_demand = queued + running
            if self._of_jobs:
                demand[version.ref] = Demand(queued=0, running=queued + running, jobs=queued + running)
            else:
                demand[version.ref] = Demand(queued=queued, running=running)
        return demand

    async def _wait(self) -> None:
        try:
            async with asyncio.timeout(TICK_S if self._active else REFRESH_S):
                await self._wake.wait()
            await asyncio.sleep(MIN_GAP_S if time.monotonic() - self._written_s < MIN_GAP_S else 0)
        except TimeoutError:
            return
        finally:
            self._wake.clear()

    async def _write(self, redis: Redis, woken: Iterable[Version], now_s: float) -> None:
        demand = self.snapshot()
        refs = [] if self._of_jobs else [version.ref for version in woken]
        if demand == self._written and not refs and now_s - self._written_s < REFRESH_S:
            return
        await live.write_demand(redis, self._gateway_id, demand, time.time(), refs)
        self._written, self._written_s = demand, now_s

    async def _recall_failures(self, redis: Redis, dispatcher: Dispatcher, woken: Iterable[Version]) -> None:
        """Calls for a cold version may wait for a boot that is backing off since before this process was there."""
        for version in woken:
            if not version.members and version.boot_failure is None:
                await recall_boot_failure(redis, dispatcher, version.ref)

    async def _withdraw(self, redis: Redis) -> None:
        try:
            await live.remove_gateway(redis, self._gateway_id)
        except SamovarError as error:
            log.warning("the demand was not withdrawn: %s", error.detail)
