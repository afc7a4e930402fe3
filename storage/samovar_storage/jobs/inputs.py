"""The inputs of jobs that were taken, from wherever they lie; a job whose input cannot be had is left here and now.

Its worker was not told of it, so nobody else would: while Redis is away it is asked again until the job is left.
This module does not know the moves of jobs.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable

import msgspec

from samovar import problems
from samovar.errors import NotFound, SamovarError, StoreUnavailable
from samovar.jobs import JobState
from samovar_storage.jobs.payloads import Payloads, input_object
from samovar_storage.jobs.records import Settlement, Taken

log = logging.getLogger(__name__)

AGAIN_S = 2.0  # until a job whose input could not be had is tried again
RETRY_S = 0.5


class Inputs:
    """settle: leaves a job that a worker holds."""

    def __init__(self, payloads: Payloads, settle: Callable[[str, Taken, Settlement], Awaitable[bool]]) -> None:
        self._payloads = payloads
        self._settle = settle

    async def of(self, worker: str, taken: Taken) -> Taken | None:
        """Return a job with its input; None if that cannot be had now, and the job was given back, or never."""
        if not taken.is_input_stored:
            return taken
        left = Settlement(state=JobState.FAILED, failures=taken.failures, crashes=taken.crashes)
        try:
            return msgspec.structs.replace(taken, input=await self._payloads.get(input_object(taken.id)))
        except NotFound as error:
            left = msgspec.structs.replace(left, error=problems.standard(error))
        except SamovarError:
            due_at_s = time.time() + AGAIN_S
            left = msgspec.structs.replace(left, state=JobState.SCHEDULED, due_at_s=due_at_s, counts_attempt=False)
        await self._surely_settle(worker, taken, left)
        return None

    async def _surely_settle(self, worker: str, taken: Taken, left: Settlement) -> None:
        while True:
            try:
                await self._settle(worker, taken, left)
                return
            except StoreUnavailable as error:
                log.warning("job %s is not given back yet: %s", taken.id, error.detail)
            await asyncio.sleep(RETRY_S)
