"""Jobs of functions that are gone: they fail, instead of waiting for ever.

A function counts as gone once it has been unknown for UNKNOWN_S while the index was there, so a deployment that comes
late, or an index that is being rebuilt, costs nobody a job. This module does not know how jobs are run.
"""

from __future__ import annotations

import asyncio
import logging
import time
from typing import TYPE_CHECKING

from samovar.errors import FunctionNotFound
from samovar_dispatch.functions import FunctionTable
from samovar_jobs.lease import Lease
from samovar_jobs.taker import Taker
from samovar_jobs.verdict import Ended, GiveBack, verdict
from samovar_storage.jobs.layout import QueueName

if TYPE_CHECKING:
    from samovar_storage.jobs.redis_jobs import RedisJobs

log = logging.getLogger(__name__)

LOOK_S = 2.0
UNKNOWN_S = 30.0
AT_ONCE = 64


class Orphans:
    """One per worker."""

    def __init__(self, store: RedisJobs, lease: Lease, functions: FunctionTable, taker: Taker) -> None:
        self._store = store
        self._lease = lease
        self._functions = functions
        self._taker = taker
        self._since: dict[str, float] = {}

    async def run(self) -> None:
        """Look until cancelled. Raises StoreUnavailable: run it again."""
        while True:
            for queue in self._gone(time.monotonic()):
                await self._fail(queue)
            await asyncio.sleep(LOOK_S)

    def _gone(self, now_s: float) -> list[QueueName]:
        known = self._functions.entries.keys() | self._functions.faults.keys()  # what cannot be used now is not gone
        unknown = [queue for queue in self._taker.queues if queue.function not in known]
        if not self._functions.loaded:
            unknown = []
        self._since = {queue.function: self._since.get(queue.function, now_s) for queue in unknown}
        return [queue for queue in unknown if now_s - self._since[queue.function] >= UNKNOWN_S]

    async def _fail(self, queue: QueueName) -> None:
        worker = await self._lease.held()
        gone = Ended(FunctionNotFound(f"the function {queue.function!r} was deleted while its job waited"), ran=False)
        while taken := await self._store.take(queue, worker, AT_ONCE):
            log.warning("%d jobs of the function %r, which is gone, fail", len(taken), queue.function)
            for job in taken:
                left = verdict(job, gone, time.time(), 0.0)
                assert not isinstance(left, GiveBack)
                await self._store.settle(worker, job, left)
