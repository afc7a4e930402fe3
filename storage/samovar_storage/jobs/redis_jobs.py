"""The moves of jobs, each one script in Redis: accepted, taken, settled, cancelled, retried, returned from the dead.

    submit ──► take ──► settle            give back: settle as queued, counts_attempt=False
                 └── the worker falls silent: reap ──► queued again

A job is held by one worker under one token; `settle` commits only under both, so a late answer of a worker that was
given up is dropped and counted. Times come from Redis; nobody's silence is judged by a clock that may be set (`beats`).
This module does not know how jobs are run, nor who may see them.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence
from typing import Any, Literal

import msgspec
import redis.asyncio as redis_async
from redis.commands.core import AsyncScript

from samovar.errors import BadOutput, Conflict, JobEnded, JobNotFound, NotFound
from samovar.jobs import TERMINAL, JobState, Progress
from samovar_storage import keys
from samovar_storage.failures import translating
from samovar_storage.jobs import codec, groups, scripts, submission
from samovar_storage.jobs.accepting import Accepting
from samovar_storage.jobs.barrier import Barrier
from samovar_storage.jobs.batcher import Batcher
from samovar_storage.jobs.inputs import Inputs
from samovar_storage.jobs.layout import QueueName, job_key, new_job_id, parse_queue
from samovar_storage.jobs.listing import Listing, State
from samovar_storage.jobs.payloads import Payloads, input_object, is_large, result_object
from samovar_storage.jobs.records import Backlog, GroupRecord, JobRecord, NewJob, Page, Settlement, Taken
from samovar_storage.jobs.retention import Retention
from samovar_storage.jobs.states import SETTLED_BY
from samovar_storage.jobs.takes import Takes
from samovar_storage.objects import ObjectStore

log = logging.getLogger(__name__)

MAX_SETTLED_TOGETHER = 64
MAX_CANCELLED_TOGETHER = 200
MAX_ENDED_BYTES = 256 * 1024 * 1024

Durability = Literal["aof", "fsync"]


class RedisJobs:
    """The store of jobs. Every method raises StoreUnavailable when Redis does not answer. Both stores stay open.

    max_ended_bytes: of the ended jobs of one API key, with inputs and results; what ended first goes first. barrier:
    what submit and take wait for.
    """

    def __init__(self, redis: redis_async.Redis, objects: ObjectStore, max_ended_bytes: int = MAX_ENDED_BYTES) -> None:
        self._redis = redis
        self._payloads = Payloads(redis, objects)
        self.barrier = Barrier(redis)
        self._settling: Batcher[submission.Packed, int] = Batcher(self._settle_together, MAX_SETTLED_TOGETHER)
        self._listing = Listing(redis, self._without_results)
        self._retention = Retention(redis, self._payloads, self._run, max_ended_bytes)
        self._accepting = Accepting(self._run, self._payloads, self._cancel, self._retention.forget, self._is_known)
        self._inputs = Inputs(self._payloads, self.settle)
        self._takes = Takes()
        self._registered: set[str] = set()
        self._scripts: dict[str, AsyncScript] = {}

    # what submitters do ----------------------------------------------------------------------------------------------

    async def submit(
        self, jobs: Sequence[NewJob], durability: Durability = "aof", *, all_or_none: bool = True
    ) -> list[str]:
        """Accept all of these jobs or none; return their ids once they are durable as asked. An id that is known
        already is not accepted again (its id is returned: a repeated request is harmless).

        Up to 100 jobs are one step. Of more, earlier steps are cancelled and deleted when a later one is refused; but
        not without `all_or_none`, for who will submit the same again.
        Raises: StoreFull; NotUnique; JobNotFound for an unknown dependency.
        """
        await self._accepting.accept(jobs, all_or_none)
        await self.barrier.passed(durability)
        return [job.id for job in jobs]

    async def cancel(self, job_id: str) -> JobState:
        """End a job that does not run; ask the worker of one that does to stop it (state started, canceling).

        Raises: JobNotFound; JobEnded.
        """
        outcome = (await self._cancel([job_id]))[0]
        if not outcome:
            raise JobNotFound(f"there is no job {job_id}; it may have expired")
        before, _, state = outcome.rpartition(":")
        if before:
            raise JobEnded(f"the job {job_id} has {state} already", state=state)
        return JobState(state)

    async def cancel_group(self, group_id: str) -> int:
        """Cancel what of a group has not ended, its reducing job first; return how many were, or are being stopped.

        Raises: JobNotFound.
        """
        reduce, offset, num_cancelled = (await self.group(group_id)).reduce, 0, 0
        chunk = [reduce] if reduce else []
        while chunk or offset == 0:
            outcomes = await self._cancel(chunk)
            num_cancelled += len([outcome for outcome in outcomes if outcome and ":" not in outcome])
            chunk = await groups.job_ids(self._redis, group_id, offset, MAX_CANCELLED_TOGETHER)
            offset += MAX_CANCELLED_TOGETHER
        return num_cancelled

    async def retry(self, job_id: str) -> str:
        """Submit the same again, with the same input; return the new job's id. It stands alone: it is in no group, and
        waits for no other job.

        Raises: JobNotFound; Conflict for one that has not ended, or whose group is forgotten; as `submit`.
        """
        record = await self.get(job_id)
        if record.state not in TERMINAL:
            raise Conflict(f"the job {job_id} has not ended", state=str(record.state))
        if record.spec.reduce_of:
            await self._require_group(record.spec.reduce_of)
        now_s = time.time()
        lasted_s = record.spec.deadline_at_s - record.spec.created_at_s
        spec = msgspec.structs.replace(
            record.spec,
            created_at_s=now_s,
            deadline_at_s=now_s + lasted_s if record.spec.deadline_at_s else 0.0,
            depends_on=[],
            group="",
            index=0,
            retry_of=record.id,
        )
        new = NewJob(id=new_job_id(int(now_s * 1000)), spec=spec, input=await self.input(record))
        return (await self.submit([new]))[0]

    async def purge(self, function: str, state: JobState | None, older_than_s: float, key_id: str | None) -> int:
        """Delete ended jobs and their objects; return how many. older_than_s: those that ended so long ago."""
        return await self._retention.purge(function, state, older_than_s, key_id)

    # what workers do -------------------------------------------------------------------------------------------------

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
        of its function, and of its function and key, both lanes together; None = any number.
        """
        caps = ["" if cap is None else cap for cap in (max_running, max_running_per_key)]
        async with self._takes.number(worker, queue) as number:
            reply = await self._run(scripts.TAKE, [str(queue), worker, most, number, *caps])
            await self.barrier.passed()
            news = [job for job in reply if self._takes.is_news(worker, job[0].decode(), job[2])]
            taken = [_taken(queue, job_id.decode(), *rest) for job_id, *rest in news]
            self._takes.given(worker, taken)
        with_input = await asyncio.gather(*(self._inputs.of(worker, job) for job in taken))
        return [job for job in with_input if job is not None]

    async def settle(self, worker: str, taken: Taken, settlement: Settlement) -> bool:
        """Leave a job in the state it has come to, with its result; return False, having changed nothing but a count,
        if the worker does not hold it any more. Dependents, group, retention, events: all in the same step.

        A job that was to be cancelled while it ran, and would be queued or scheduled again, is canceled instead. Ending
        a job twice in the same way is ending it once: True again."""
        assert settlement.state in SETTLED_BY, "what runs cannot be left like that"
        name, is_stored = result_object(taken.id, taken.token), is_large(settlement.result)
        if is_stored:
            await self._payloads.put(taken.id, name, settlement.result)
        is_kept = bool(await self._settling.add(codec.packed_settlement(worker, taken, settlement, is_stored)))
        self._takes.settled(worker, taken)
        if is_stored and not is_kept:
            await self._payloads.delete(name)
        return is_kept

    async def progress(self, worker: str, taken: Taken, progress: Progress) -> None:
        """Record how far a job is, if the worker holds it."""
        arguments = [worker, taken.token, msgspec.json.encode(progress)]
        await self._run(scripts.PROGRESS, arguments, [job_key(taken.id)])

    async def beat(self, worker: str) -> bool:
        """Renew the leases of all jobs a worker holds; False if it was reaped: it must stop what it runs and come back
        under another id. The first beat registers it."""
        is_new = worker not in self._registered
        beats = await self._run(scripts.BEAT, [worker, int(is_new)], [keys.JOBS_WORKERS, keys.jobs_takes(worker)])
        if is_new:
            await self.barrier.passed()
            self._registered.add(worker)
        if not beats:
            self._takes.left(worker)
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
        self._takes.left(worker)

    async def promote_due(self) -> int:
        """Queue the scheduled jobs that are due; fail those past their deadline; go on with what steps left undone
        for the dependents of jobs that ended. Return how many jobs that were."""
        num_moved = 0
        while moved := int(await self._run(scripts.PROMOTE, [])):
            num_moved += moved
        return num_moved

    async def sweep(self) -> int:
        """Delete a bounded number of jobs that have expired, or are too much for their API key, and objects of jobs
        that are gone. Return how many jobs were deleted."""
        return await self._retention.sweep()

    # what is known ---------------------------------------------------------------------------------------------------

    async def get(self, job_id: str) -> JobRecord:
        """Raises: JobNotFound."""
        record = (await self.get_many([job_id]))[0]
        if record is None:
            raise JobNotFound(f"there is no job {job_id}; it may have expired")
        return record

    async def get_many(self, job_ids: Sequence[str]) -> list[JobRecord | None]:
        """Return these jobs, None for those unknown."""
        return await self._records(job_ids, [*codec.RECORD_FIELDS, "sv_result"])

    async def group(self, group_id: str) -> GroupRecord:
        """Return what became of the jobs of a group so far. Jobs may be submitted to it in several steps; one with
        `reduce_of` comes with the last and runs once all others have ended. Raises: JobNotFound."""
        return await groups.group(self._redis, group_id)

    async def group_results(self, group_id: str, offset: int, limit: int, max_bytes: int) -> list[bytes | None]:
        """Return the results of up to `limit` jobs of a group, in the order of its inputs; None for what has none.

        Raises: BadOutput, having read none that is large, if all together are more than `max_bytes`.
        """
        records = await self.get_many(await groups.job_ids(self._redis, group_id, offset, limit))
        finished = [record if record and record.state == JobState.FINISHED else None for record in records]
        num_bytes = sum(record.result_bytes for record in finished if record is not None)
        if num_bytes > max_bytes:
            raise BadOutput(f"the results of the group have at least {num_bytes} bytes, more than may be read at once")
        return [None if record is None else await self.result(record) for record in finished]

    async def position(self, record: JobRecord) -> int:
        """Return how many jobs of its queue are in front of a queued one, at most."""
        return int(await self._run(scripts.POSITION, [record.seq], [f"rq:queue:{record.queue}"]))

    async def input(self, record: JobRecord) -> bytes:
        """Return a job's input, wherever it lies."""
        if record.is_input_stored:
            return await self._payloads.get(input_object(record.id))
        with translating("the job's input"):
            return await self._field(record.id, "sv_input")

    async def result(self, record: JobRecord) -> bytes:
        """Return a finished job's result, wherever it lies. Raises: NotFound when there is none."""
        if record.state != JobState.FINISHED:
            raise NotFound(f"the job {record.id} has no result: it is {record.state}")
        if record.is_result_stored:
            return await self._payloads.get(result_object(record.id, record.token))
        if record.result is not None or not record.result_bytes:
            return record.result or b""
        with translating("the job's result"):
            return await self._field(record.id, "sv_result")

    async def result_url(self, record: JobRecord) -> str:
        """Return a link to a result in object storage, good for 15 minutes."""
        return await self._payloads.link(result_object(record.id, record.token), record.result_type)

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

    async def counts(self) -> dict[str, int]:
        """Return how often each move was made since the beginning, by what it came to (keys.JOBS_COUNTS)."""
        with translating("the counts of jobs"):
            counts: dict[Any, Any] = await self._redis.hgetall(keys.JOBS_COUNTS)
        return {what.decode(): int(number) for what, number in counts.items()}

    # ---------------------------------------------------------------------------------------------------------------

    async def _is_known(self, job_id: str) -> bool:
        with translating("the jobs"):
            return bool(await self._redis.exists(job_key(job_id)))

    async def _require_group(self, group_id: str) -> None:
        try:
            await self.group(group_id)
        except JobNotFound as error:
            raise Conflict(f"the group {group_id}, whose results it reduces, is forgotten") from error

    async def _cancel(self, job_ids: Sequence[str]) -> list[str]:
        """Return what became of these jobs. One step may not reach all of them."""
        outcomes: list[str] = []
        while rest := job_ids[len(outcomes) :]:
            outcomes += [outcome.decode() for outcome in await self._run(scripts.CANCEL, rest)]
        return outcomes

    async def _settle_together(self, settlements: list[list[bytes]]) -> list[int]:
        kept: list[int] = await self._run(scripts.SETTLE, submission.flat(settlements))
        return kept

    async def _without_results(self, job_ids: Sequence[str]) -> list[JobRecord | None]:
        return await self._records(job_ids, codec.RECORD_FIELDS)

    async def _records(self, job_ids: Sequence[str], names: Sequence[str]) -> list[JobRecord | None]:
        with translating("the jobs"):
            async with self._redis.pipeline(transaction=False) as pipeline:
                for job_id in job_ids:
                    pipeline.hmget(job_key(job_id), [*names])
                replies = await pipeline.execute()
        return [codec.record_of(job_id, names, values) for job_id, values in zip(job_ids, replies, strict=True)]

    async def _field(self, job_id: str, name: str) -> bytes:
        value: Any = await self._redis.hget(job_key(job_id), name)
        return value or b""

    async def _run(self, script: str, arguments: Sequence[Any], names: Sequence[str] = ()) -> Any:
        if script not in self._scripts:
            self._scripts[script] = self._redis.register_script(script)
        with translating("the jobs"):
            return await self._scripts[script](keys=names, args=arguments)

    # last, for in what comes after it `list` is this method
    async def list(
        self,
        functions: Sequence[str],
        state: State | None,
        key_id: str | None,
        group: str | None,
        cursor: str,
        limit: int,
    ) -> Page:
        """Return jobs of these functions without their results, newest first; those of a group in the order of its
        inputs. The cost depends on `limit`, not on how many there are. A page may be shorter than `limit` although
        its cursor says that there are more. Raises: InvalidInput for a cursor that is none."""
        if group is None:
            return await self._listing.page(functions, state, key_id, cursor, limit)
        page = await self._listing.of_group(group, state, cursor, limit)
        seen = [job for job in page.jobs if job.spec.function in functions and key_id in (None, job.spec.key_id)]
        return Page(jobs=seen, cursor=page.cursor)


def _taken(queue: QueueName, job_id: str, flat: list[bytes], token: int, attempt: int) -> Taken:
    fields = codec.by_name(flat)
    return Taken(
        id=job_id,
        spec=codec.spec_of(fields),
        input=fields.get("sv_input", b""),
        queue=str(queue),
        token=token,
        attempt=attempt,
        failures=int(fields.get("sv_failures", 0)),
        crashes=int(fields.get("sv_crashes", 0)),
        is_input_stored=codec.INPUT_STORED in fields.get("sv_stored", b"").decode(),
    )
