"""The moves of jobs, each one script in Redis: accepted, taken, settled, cancelled, retried, returned from the dead.

    submit ──► take ──► settle            give back: settle as queued, counts_attempt=False
                 └── the worker falls silent: reap ──► queued again

A job is held by one worker under one token; `settle` commits only under both, so a late answer of a worker that was
given up is dropped and counted. Times come from Redis; nobody's silence is judged by a clock that may be set (`beats`).
This module does not know how jobs are run, nor who may see them.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any, Literal

import redis.asyncio as redis_async

from samovar.errors import JobNotFound, NotFound, NotUnique
from samovar.jobs import JobState
from samovar_storage import keys
from samovar_storage.failures import translating
from samovar_storage.jobs import codec, scripts
from samovar_storage.jobs.barrier import Barrier
from samovar_storage.jobs.batcher import Batcher
from samovar_storage.jobs.layout import QueueName, job_key, parse_queue
from samovar_storage.jobs.payloads import Payloads, input_object, is_large, result_object
from samovar_storage.jobs.records import Backlog, JobRecord, NewJob, Settlement, Taken
from samovar_storage.objects import ObjectStore

MAX_BATCH = 1000
MAX_BATCH_BYTES = 8 * 1024 * 1024
MAX_SETTLED_TOGETHER = 64


class RedisJobs:
    """The store of jobs. Every method raises StoreUnavailable when Redis does not answer. Both stores stay open."""

    def __init__(self, redis: redis_async.Redis, objects: ObjectStore) -> None:
        self._redis = redis
        self._payloads = Payloads(redis, objects)
        self._barrier = Barrier(redis)
        self._settling = Batcher(self._settle_together, MAX_SETTLED_TOGETHER)
        self._takes = itertools.count(1)
        self._unanswered: dict[tuple[str, QueueName], int] = {}
        self._held: set[tuple[str, int]] = set()
        self._registered: set[str] = set()

    async def submit(self, jobs: Sequence[NewJob], durability: Literal["aof", "fsync"] = "aof") -> list[str]:
        """Accept all of these jobs or none; return their ids once they are durable as asked. An id that is known
        already is not accepted again (its id is returned: a repeated request is harmless).

        Up to 1,000 jobs are one step; of more, those of later steps may be refused after a worker took earlier ones.
        Raises: StoreFull; NotUnique; JobNotFound for an unknown dependency.
        """
        for job in jobs:
            if is_large(job.input):
                await self._payloads.put(job.id, input_object(job.id), job.input, job.spec.created_at_s)
        for chunk in _chunks([codec.packed(job, is_large(job.input)) for job in jobs]):
            _require_accepted(await self._run(scripts.SUBMIT, _flat(chunk)))
        await self._barrier.passed(durability)
        return [job.id for job in jobs]

    async def take(
        self,
        queue: QueueName,
        worker: str,
        most: int,
        max_running: int | None = None,
        max_running_per_key: int | None = None,
    ) -> list[Taken]:
        """Give up to `most` waiting jobs of a queue, oldest first, to a worker, durably. A job whose deadline passed
        is failed on the way. A job that was cancelled is not among them. A worker that was reaped is given none.

        max_running, max_running_per_key: no more are given than leave so many jobs started at a time, by all workers,
        of its function, and of its function and key, both lanes together; None = any number. After an error the same
        must be asked again: some may have been given, unheard.
        """
        number = self._unanswered.setdefault((worker, queue), next(self._takes))
        caps = max_running or 0, max_running_per_key or 0
        reply = await self._run(scripts.TAKE, [str(queue), worker, most, number, *caps])
        await self._barrier.passed()
        taken = [await self._taken(queue, *job) for job in reply if (job[0].decode(), job[2]) not in self._held]
        self._unanswered.pop((worker, queue), None)
        self._held.update((job.id, job.token) for job in taken)
        return taken

    async def settle(self, worker: str, taken: Taken, settlement: Settlement) -> bool:
        """Leave a job in the state it has come to, with its result; return False, having changed nothing but a count,
        if the worker does not hold it any more. Dependents, group, retention, events: all in the same step."""
        name, is_stored = result_object(taken.id, taken.token), is_large(settlement.result)
        if is_stored:
            await self._payloads.put(taken.id, name, settlement.result, taken.spec.created_at_s)
        is_kept = bool(await self._settling.add(codec.packed_settlement(worker, taken, settlement, is_stored)))
        self._held.discard((taken.id, taken.token))
        if is_stored and not is_kept:
            await self._payloads.delete(name)
        return is_kept

    async def beat(self, worker: str) -> bool:
        """Renew the leases of all jobs a worker holds; False if it was reaped: it must stop what it runs and come back
        under another id. The first beat registers it."""
        is_new = worker not in self._registered
        beats = await self._run(scripts.BEAT, [worker, int(is_new)], [keys.JOBS_WORKERS])
        if is_new:
            await self._barrier.passed()
            self._registered.add(worker)
        return bool(beats)

    async def beats(self) -> dict[str, int]:
        """Return each known worker's count of beats."""
        with translating("the job workers"):
            beats: dict[Any, Any] = await self._redis.hgetall(keys.JOBS_WORKERS)
        return {worker.decode(): int(number) for worker, number in beats.items()}

    async def reap(self, worker: str, beats: int) -> list[str]:
        """Put the jobs of a worker back to the head of their queues, and forget the worker, if it has not beaten since
        `beats`; return their ids."""
        return [job_id.decode() for job_id in await self._run(scripts.REAP, [worker, beats])]

    async def leave(self, worker: str) -> None:
        """The worker ends; whatever it still holds is put back."""
        await self._run(scripts.REAP, [worker, ""])
        self._registered.discard(worker)

    async def get(self, job_id: str) -> JobRecord:
        """Raises: JobNotFound."""
        record = (await self.get_many([job_id]))[0]
        if record is None:
            raise JobNotFound(f"there is no job {job_id}; it may have expired")
        return record

    async def get_many(self, job_ids: Sequence[str]) -> list[JobRecord | None]:
        """Return these jobs, None for those unknown."""
        names = [*codec.RECORD_FIELDS, "sv_result"]
        with translating("the jobs"):
            async with self._redis.pipeline(transaction=False) as pipeline:
                for job_id in job_ids:
                    pipeline.hmget(job_key(job_id), names)
                replies = await pipeline.execute()
        return [_record(job_id, names, values) for job_id, values in zip(job_ids, replies, strict=True)]

    async def input(self, record: JobRecord) -> bytes:
        """Return a job's input, wherever it lies."""
        if record.is_input_stored:
            return await self._payloads.get(input_object(record.id))
        with translating("the job's input"):
            return await self._field(record.id, "sv_input")

    async def result(self, record: JobRecord) -> bytes:
        """Return a finished job's result, wherever it lies. Raises: NotFound when there is none."""
        if record.is_result_stored:
            return await self._payloads.get(result_object(record.id, record.token))
        if record.state != JobState.FINISHED:
            raise NotFound(f"the job {record.id} has no result: it is {record.state}")
        if record.result is not None or not record.result_bytes:
            return record.result or b""
        with translating("the job's result"):
            return await self._field(record.id, "sv_result")

    async def result_url(self, record: JobRecord) -> str:
        """Return a link to a result in object storage, good for 15 minutes."""
        return await self._payloads.link(result_object(record.id, record.token))

    async def waiting(self) -> dict[QueueName, int]:
        """Return the queues with waiting jobs, and how many wait in each."""
        reply = await self._run(scripts.WAITING, [], [keys.JOBS_WAITING])
        named = [(parse_queue(reply[i].decode()), int(reply[i + 1])) for i in range(0, len(reply), 2)]
        return {queue: number for queue, number in named if queue is not None}

    async def backlog(self) -> dict[str, Backlog]:
        """Return what waits, by function."""
        waits: dict[str, Backlog] = {}
        for queue, number in (await self.waiting()).items():
            known = waits.get(queue.function, Backlog())
            normal, low = (0, number) if queue.is_low else (number, 0)
            waits[queue.function] = Backlog(normal=known.normal + normal, low=known.low + low)
        return waits

    async def _field(self, job_id: str, name: str) -> bytes:
        value: Any = await self._redis.hget(job_key(job_id), name)
        return value or b""

    async def _settle_together(self, settlements: list[list[bytes]]) -> list[int]:
        kept: list[int] = await self._run(scripts.SETTLE, _flat(settlements))
        return kept

    async def _taken(self, queue: QueueName, job_id: bytes, flat: list[bytes], token: int, attempt: int) -> Taken:
        fields = codec.by_name(flat)
        is_stored = codec.INPUT_STORED in fields.get("sv_stored", b"").decode()
        job_id_ = job_id.decode()
        payload = await self._payloads.get(input_object(job_id_)) if is_stored else fields.get("sv_input", b"")
        return Taken(
            id=job_id_,
            spec=codec.spec_of(fields),
            input=payload,
            queue=str(queue),
            token=token,
            attempt=attempt,
            failures=int(fields.get("sv_failures", 0)),
            crashes=int(fields.get("sv_crashes", 0)),
        )

    async def _run(self, script: str, arguments: Sequence[Any], names: Sequence[str] = ()) -> Any:
        with translating("the jobs"):
            return await self._redis.register_script(script)(keys=names, args=arguments)


def _record(job_id: str, names: Sequence[str], values: Sequence[bytes | None]) -> JobRecord | None:
    fields = {name: value for name, value in zip(names, values, strict=True) if value is not None}
    return codec.record_of(job_id, fields, fields.get("sv_result")) if "status" in fields else None


def _chunks(packed: Sequence[list[bytes]]) -> list[list[list[bytes]]]:
    """Return the jobs in steps of at most MAX_BATCH jobs and, but for single ones, MAX_BATCH_BYTES."""
    chunks: list[list[list[bytes]]] = []
    size = 0
    for job in packed:
        size += sum(map(len, job))
        if not chunks or len(chunks[-1]) >= MAX_BATCH or size > MAX_BATCH_BYTES:
            chunks.append([])
            size = sum(map(len, job))
        chunks[-1].append(job)
    return chunks


def _flat(packed: Sequence[list[bytes]]) -> list[bytes]:
    return [part for parts in packed for part in parts]


def _require_accepted(reply: list[bytes]) -> None:
    if not reply:
        return
    refusal, job_id = reply[0].decode(), reply[1].decode()
    if refusal == "not_unique":
        raise NotUnique(f"the unfinished job {job_id} has this `unique`", job=job_id)
    raise JobNotFound(f"there is no job {job_id} to depend on", job=job_id)
