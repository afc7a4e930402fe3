"""Ended jobs go: once they have expired, when their API key keeps too much, when somebody purges them.

Steps are bounded, so that no one else waits long; whoever calls `sweep` calls it again. Objects in object storage are
deleted after the job that named them. This module does not know the moves of jobs.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from itertools import islice
from typing import Any

import redis.asyncio as redis_async

from samovar.jobs import TERMINAL, JobState
from samovar_storage import keys
from samovar_storage.failures import translating
from samovar_storage.jobs import codec, scripts
from samovar_storage.jobs.layout import QUEUES, QueueName, parse_queue_keys, registry_key
from samovar_storage.jobs.listing import queues
from samovar_storage.jobs.payloads import Payloads

MAX_QUEUES = 200
ENOUGH_SWEPT = 500
MAX_OBJECTS = 100
PURGE_BATCH = 200

Run = Callable[[str, Sequence[Any], Sequence[str]], Awaitable[Any]]


class Retention:
    """run: carries out a script. max_ended_bytes: of the ended jobs of one API key, inputs and results included."""

    def __init__(self, redis: redis_async.Redis, payloads: Payloads, run: Run, max_ended_bytes: int) -> None:
        self._redis = redis
        self._payloads = payloads
        self._run = run
        self._max_ended_bytes = max_ended_bytes
        self._cursor = 0

    async def sweep(self) -> int:
        """Do a bounded part of what is to be deleted; return how many jobs that were. Raises: StoreUnavailable."""
        with translating("the queues of jobs"):
            found: Any = await self._redis.sscan(QUEUES, self._cursor, count=MAX_QUEUES)
        self._cursor, names = found
        num_deleted = await self._sweep([*map(str, parse_queue_keys(names))])
        num_deleted += await self._trim()
        await self.delete_objects()
        return num_deleted

    async def purge(self, function: str, state: JobState | None, older_than_s: float, key_id: str | None) -> int:
        """Delete the jobs of a function, and of a key, that ended so long ago, with their objects; return how many."""
        states = sorted(TERMINAL) if state is None else [state]
        with translating("the jobs"):
            chosen = await queues(self._redis, [function], key_id)
            seconds, _ = await self._redis.time()
        before = codec.stamp(seconds - older_than_s) if older_than_s > 0 else ""
        num_deleted = 0
        for queue in chosen:
            for each in states:
                num_deleted += await self._purge(queue, each, before)
        await self.delete_objects()
        return num_deleted

    async def forget(self, queue: str, job_ids: Sequence[str]) -> None:
        """These jobs, if cancelled, are gone."""
        await self._delete(queue, JobState.CANCELED, "", job_ids)

    async def delete_objects(self) -> None:
        """The objects of jobs that are gone are gone, all that were when this began. Raises: StoreUnavailable."""
        while ids := await self._run(scripts.OBJECTS, [MAX_OBJECTS], [keys.JOBS_OBJECTS]):
            for job_id in ids:
                await self._payloads.delete_all(job_id.decode())
            with translating("the objects of jobs"):
                await self._redis.zrem(keys.JOBS_OBJECTS, *ids)

    async def _purge(self, queue: QueueName, state: JobState, before: str) -> int:
        with translating("the jobs"):
            rows = [job_id async for job_id, _ in self._redis.zscan_iter(registry_key(state, queue), count=PURGE_BATCH)]
        num_deleted, remaining = 0, iter(rows)
        while batch := list(islice(remaining, PURGE_BATCH)):
            num_deleted += await self._delete(str(queue), state, before, batch)
        return num_deleted

    async def _delete(self, queue: str, state: JobState, before: str, job_ids: Sequence[str]) -> int:
        """Delete those of these jobs that are in a state, and ended before an instant ("" = any); return how many."""
        num_deleted, rest = 0, job_ids
        while rest:
            num_seen, number = await self._run(scripts.PURGE, [queue, state, before, *rest], ())
            num_deleted, rest = num_deleted + number, rest[num_seen:]
        return num_deleted

    async def _sweep(self, names: list[str]) -> int:
        """Delete what of these queues has expired, in steps; the last is the one in which it was enough."""
        num_deleted = 0
        while names and num_deleted < ENOUGH_SWEPT:
            num_seen, number = await self._run(scripts.SWEEP, names, ())
            if not num_seen and not number:
                break
            num_deleted, names = num_deleted + number, names[num_seen:]
        return num_deleted

    async def _trim(self) -> int:
        with translating("the bytes of ended jobs"):
            held: Any = await self._redis.hgetall(keys.JOBS_BYTES)
        over = [key_id.decode() for key_id, number in held.items() if int(number) > self._max_ended_bytes]
        if not over:
            return 0
        with translating("the queues of jobs"):
            names: Any = await self._redis.smembers(QUEUES)
        num_deleted = 0
        for key_id in over:
            theirs = [str(queue) for queue in parse_queue_keys(names) if queue.key_id == key_id]
            num_deleted += int(await self._run(scripts.TRIM, [key_id, self._max_ended_bytes, *theirs], ()))
        return num_deleted
