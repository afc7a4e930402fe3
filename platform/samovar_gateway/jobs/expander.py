"""Turns uploads into jobs in the background, whichever gateway began them, and deletes what is left of old ones.

    an upload that nobody holds ─► lease ─► the next lines ─► submitted, noted ─► … ─► the reducing job ─► ended

Each has its turn, ten thousand lines long: a large one does not keep a small one waiting. It goes on from the last line
noted, and past those that the group has already; a line submitted twice is one job, for the ids are the same. While a
store is away or full it waits: what was accepted becomes jobs later. This module does not know HTTP.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterator

import msgspec
from redis.asyncio import Redis

from samovar.errors import JobNotFound, RequestError, SamovarError, Unavailable
from samovar_gateway.jobs.lines import Batch, batches
from samovar_storage.jobs import expansions
from samovar_storage.jobs.barrier import Barrier
from samovar_storage.jobs.expansions import Expansion, line_job_id
from samovar_storage.jobs.records import NewJob
from samovar_storage.jobs.redis_jobs import RedisJobs
from samovar_storage.objects import ObjectStore

log = logging.getLogger(__name__)

SLICE_BATCHES = 10
READ_BYTES = 1 << 20
LOOK_S = 2.0
RETRY_S = 1.0
CLEAN_S = 600.0
MAX_CLEANED = 100
MAX_EXPANDING = 1000


class Expander:
    """One per gateway. holder: this gateway's name."""

    def __init__(self, redis: Redis, objects: ObjectStore, jobs: RedisJobs, holder: str, max_line_bytes: int) -> None:
        self._redis = redis
        self._objects = objects
        self._jobs = jobs
        self._holder = holder
        self._barrier = Barrier(redis)
        self._max_line_bytes = max_line_bytes
        self._has_work = asyncio.Event()
        self._cleaned_s = -CLEAN_S

    async def begin(self, wanted: Expansion) -> None:
        """The upload becomes jobs, whatever happens to this gateway; one that does already goes on as it did.

        Raises: StoreUnavailable; Unavailable when too many are under way.
        """
        if await expansions.number(self._redis) >= MAX_EXPANDING:
            raise Unavailable(f"{MAX_EXPANDING} uploads are being turned into jobs already", retry_after_s=30.0)
        await expansions.begin(self._redis, wanted)
        await self._barrier.passed(wanted.durability)
        self._has_work.set()

    async def run(self) -> None:
        """Expand what nobody else expands until cancelled: a slice of each upload in turn."""
        while True:
            has_more = [await self._try(begun) for begun in await expansions.expansions(self._redis)]
            await self._clean(time.monotonic())
            if any(has_more):
                continue
            try:
                async with asyncio.timeout(LOOK_S):
                    await self._has_work.wait()
            except TimeoutError:
                continue
            self._has_work.clear()

    async def _try(self, begun: Expansion) -> bool:
        """Go on with one upload, if nobody else does; return whether there is more to do at once."""
        if not await expansions.hold(self._redis, begun.id, self._holder):
            return False
        try:
            return await self._expand(begun)
        except RequestError as error:  # the object is gone, or another than was checked: it will not get better
            log.error("the upload %s is given up after %d lines: %s", begun.id, begun.lines_done, error.detail)
            await expansions.end(self._redis, begun.id)
        except SamovarError as error:
            log.warning("the upload %s becomes jobs later: %s", begun.id, error.detail)
            await asyncio.sleep(RETRY_S)
        return False

    async def _expand(self, begun: Expansion) -> bool:
        """Submit the next lines; return whether this gateway should go on with it."""
        begun = await expansions.expansion(self._redis, begun.id) or begun
        start_bytes, rest = begun.bytes_done, self._lines(begun)
        num_known = await self._num_jobs(begun) - begun.lines_done
        for _ in range(SLICE_BATCHES):
            if (batch := await asyncio.to_thread(next, rest, None)) is None:
                return await self._end(begun)
            jobs = jobs_of(begun, batch.lines)
            if unknown := jobs[max(0, num_known) :]:
                await self._jobs.submit(unknown, begun.durability, all_or_none=False)
            num_known -= len(jobs)
            begun = msgspec.structs.replace(
                begun, lines_done=begun.lines_done + len(jobs), bytes_done=start_bytes + batch.end_bytes
            )
            if not await expansions.advance(self._redis, begun):
                await self._jobs.cancel_group(begun.id)  # these were on their way when it was
                return False
            if not await expansions.hold(self._redis, begun.id, self._holder):
                return False
        return True

    async def _end(self, begun: Expansion) -> bool:
        """Every line is a job: what is left is the reducing one, and the object."""
        if begun.reduce is not None:
            await self._jobs.submit([begun.reduce], begun.durability)
        await expansions.end(self._redis, begun.id)
        await self._delete(begun.object_key)
        return False

    async def _num_jobs(self, begun: Expansion) -> int:
        """Return how many lines are jobs already, or were: those that nobody noted any more are among them."""
        try:
            return (await self._jobs.group(begun.id)).num_jobs
        except JobNotFound:
            return 0

    def _lines(self, begun: Expansion) -> Iterator[Batch]:
        """Return the lines that are no jobs yet."""
        if begun.lines_done >= begun.num_lines:
            return iter(())
        chunks = self._objects.read_chunks(begun.object_key, READ_BYTES, begun.bytes_done, begun.etag)
        return batches(chunks, self._max_line_bytes)

    async def _delete(self, object_key: str) -> None:
        await asyncio.to_thread(self._objects.delete, object_key)
        await expansions.forget_upload(self._redis, object_key)

    async def _clean(self, now_s: float) -> None:
        """Delete uploads that nobody submitted in time."""
        if now_s - self._cleaned_s < CLEAN_S:
            return
        self._cleaned_s = now_s
        for object_key in await expansions.old_uploads(self._redis, time.time(), MAX_CLEANED):
            await self._delete(object_key)


def jobs_of(begun: Expansion, lines: list[bytes]) -> list[NewJob]:
    """Return the jobs that the next lines of an upload become, the same ones whenever it is asked."""
    return [
        NewJob(
            id=line_job_id(begun.id, index),
            spec=msgspec.structs.replace(begun.spec, index=index),
            input=line,
            due_at_s=begun.due_at_s,
        )
        for index, line in enumerate(lines, begun.lines_done)
    ]
