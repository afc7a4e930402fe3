"""Accepting jobs: large inputs first, then the jobs in bounded steps, and back again if a later step is refused.

This module does not know what becomes of them.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence

from samovar.errors import SamovarError
from samovar_storage.jobs import codec, scripts, submission
from samovar_storage.jobs.payloads import Payloads, input_object, is_large
from samovar_storage.jobs.records import NewJob
from samovar_storage.jobs.retention import Run

PACKED_IN_A_ROW = 100
WITHDRAWN_TOGETHER = 200


class Accepting:
    """run: carries out a script. cancel: jobs by id. forget: cancelled jobs of a queue. is_known: whether a job is."""

    def __init__(
        self,
        run: Run,
        payloads: Payloads,
        cancel: Callable[[Sequence[str]], Awaitable[list[str]]],
        forget: Callable[[str, Sequence[str]], Awaitable[None]],
        is_known: Callable[[str], Awaitable[bool]],
    ) -> None:
        self._run = run
        self._payloads = payloads
        self._cancel = cancel
        self._forget = forget
        self._is_known = is_known

    async def accept(self, jobs: Sequence[NewJob], all_or_none: bool) -> None:
        """Accept these jobs, but for those known already. all_or_none: when a later step is refused, what an earlier
        one accepted is taken back. Raises: StoreFull; NotUnique; JobNotFound for an unknown dependency."""
        for job in jobs:
            if is_large(job.input):
                await self._payloads.put(job.id, input_object(job.id), job.input)
        accepted: set[str] = set()
        try:
            for step in submission.steps(await _packed(jobs)):
                accepted.update(submission.accepted(await self._run(scripts.SUBMIT, submission.flat(step), ())))
        except SamovarError:
            if all_or_none:
                await self._withdraw(jobs, accepted)
            raise

    async def _withdraw(self, jobs: Sequence[NewJob], accepted: set[str]) -> None:
        """None of these jobs is accepted, but for those that a worker has taken already; those it is asked to stop."""
        by_queue: dict[str, list[str]] = {}
        for job in jobs:
            if job.id in accepted:
                by_queue.setdefault(str(codec.queue_of(job.spec)), []).append(job.id)
            elif is_large(job.input) and not await self._is_known(job.id):
                await self._payloads.delete(input_object(job.id))
        for queue, ids in by_queue.items():
            for i in range(0, len(ids), WITHDRAWN_TOGETHER):
                await self._cancel(ids[i : i + WITHDRAWN_TOGETHER])
                await self._forget(queue, ids[i : i + WITHDRAWN_TOGETHER])


async def _packed(jobs: Sequence[NewJob]) -> list[submission.Packed]:
    """Return the jobs as the script takes them. Ten thousand take 150 ms: others have their turn in between."""
    packed: list[submission.Packed] = []
    for job in jobs:
        packed.append(codec.packed(job, is_large(job.input)))
        if len(packed) % PACKED_IN_A_ROW == 0:
            await asyncio.sleep(0)
    return packed
