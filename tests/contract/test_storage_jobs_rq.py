"""RQ's own classes and command line read every state that a job can be in, and RQ's maintenance leaves jobs alone."""

from __future__ import annotations

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Awaitable, Callable
from secrets import token_hex
from typing import Any

import pytest
import redis as redis_sync
from rq.group import Group
from rq.job import Job
from rq.queue import Queue
from rq.registry import (
    BaseRegistry,
    CanceledJobRegistry,
    DeferredJobRegistry,
    FailedJobRegistry,
    FinishedJobRegistry,
    ScheduledJobRegistry,
    StartedJobRegistry,
    clean_registries,
)

from samovar.jobs import JobState
from samovar_storage.jobs.records import Settlement
from samovar_storage.jobs.redis_jobs import RedisJobs
from support.new_jobs import AGAIN, FAILED, FINISHED, QUEUE, new_job, run_all
from support.stores import Stores

REGISTRIES: dict[str, type[BaseRegistry]] = {
    "started": StartedJobRegistry,
    "scheduled": ScheduledJobRegistry,
    "deferred": DeferredJobRegistry,
    "finished": FinishedJobRegistry,
    "failed": FailedJobRegistry,
    "canceled": CanceledJobRegistry,
}


def state_in_rq(redis: redis_sync.Redis, job_id: str, queue: str) -> str:
    """Return the one state in which RQ's classes see a job, after its maintenance ran."""
    rq_queue = Queue(queue, connection=redis)
    clean_registries(rq_queue)
    assert queue in [each.name for each in Queue.all(connection=redis)]
    places = [state for state, kind in REGISTRIES.items() if job_id in kind(queue=rq_queue).get_job_ids()]
    places += ["queued"] * rq_queue.job_ids.count(job_id)
    job = Job.fetch(job_id, connection=redis)
    assert places == [job.get_status()], places
    assert job.origin == queue
    assert (job.func_name, job.args, job.description) == ("samovar_jobs.rq_function.invoke", (job_id,), "embed job")
    return places[0]


async def take_one(jobs: RedisJobs, settlement: Settlement | None) -> None:
    """A new worker takes what waits, and leaves it so."""
    worker = token_hex(4)
    await jobs.beat(worker)
    for taken in await jobs.take(QUEUE, worker, 10):
        if settlement is not None:
            await jobs.settle(worker, taken, settlement)


async def reaped(jobs: RedisJobs) -> None:
    """A worker took all and died."""
    await take_one(jobs, None)
    for worker, beats in (await jobs.beats()).items():
        await jobs.reap(worker, beats)


async def ended_when_canceled(jobs: RedisJobs) -> None:
    """The worker gives back a job that was cancelled while it ran."""
    await jobs.beat("w")
    (taken,) = await jobs.take(QUEUE, "w", 10)
    assert await jobs.cancel(taken.id) == "started"
    assert await jobs.settle("w", taken, AGAIN)


Move = Callable[[RedisJobs], Awaitable[None]]
LATER = Settlement(state=JobState.SCHEDULED, due_at_s=time.time() + 900, failures=1)
MOVES: list[tuple[str, dict[str, Any], list[Move], str]] = [
    ("submitted", {}, [], "queued"),
    ("of low priority", {"lane": "low"}, [], "queued"),
    ("taken", {}, [lambda jobs: take_one(jobs, None)], "started"),
    ("finished", {}, [lambda jobs: take_one(jobs, FINISHED)], "finished"),
    ("failed", {}, [lambda jobs: take_one(jobs, FAILED)], "failed"),
    ("tried again at once", {}, [lambda jobs: take_one(jobs, AGAIN)], "queued"),
    ("tried again later", {}, [lambda jobs: take_one(jobs, LATER)], "scheduled"),
    ("tried twice", {}, [lambda jobs: take_one(jobs, AGAIN), lambda jobs: take_one(jobs, FINISHED)], "finished"),
    ("reaped", {}, [reaped], "queued"),
    ("reaped and run", {}, [reaped, lambda jobs: take_one(jobs, FINISHED)], "finished"),
    ("not before", {"due_at_s": time.time() + 900}, [], "scheduled"),
    ("stopped", {}, [ended_when_canceled], "canceled"),
]


@pytest.mark.parametrize(("options", "moves", "state"), [pytest.param(*row[1:], id=row[0]) for row in MOVES])
async def test_rq_sees_the_state(
    jobs: RedisJobs, redis: redis_sync.Redis, options: dict[str, Any], moves: list[Move], state: str
) -> None:
    new = new_job(**options)
    await jobs.submit([new])
    for move in moves:
        await move(jobs)
    record = await jobs.get(new.id)
    assert (record.state, state_in_rq(redis, new.id, record.queue)) == (state, state)


async def test_rq_sees_what_is_cancelled_and_what_waits_for_it(jobs: RedisJobs, redis: redis_sync.Redis) -> None:
    parent = new_job()
    child = new_job(depends_on=[parent.id])
    await jobs.submit([parent, child])
    assert state_in_rq(redis, child.id, str(QUEUE)) == "deferred"
    assert Job.fetch(child.id, connection=redis)._dependency_ids == [parent.id]
    assert Job.fetch(parent.id, connection=redis).dependent_ids == [child.id]
    assert await jobs.cancel(parent.id) == "canceled"
    assert state_in_rq(redis, parent.id, str(QUEUE)) == "canceled"
    assert state_in_rq(redis, child.id, str(QUEUE)) == "failed"


async def test_rq_sees_a_group(jobs: RedisJobs, redis: redis_sync.Redis) -> None:
    members = [new_job(group="g" * 24, index=number) for number in range(3)]
    await jobs.submit(members)
    group = Group.fetch("g" * 24, connection=redis)
    assert {job.id for job in group.get_jobs()} == {job.id for job in members}
    assert [each.name for each in Group.all(connection=redis)] == ["g" * 24]
    assert {job.group_id for job in group.get_jobs()} == {"g" * 24}


async def test_instants_are_as_rq_reads_them(jobs: RedisJobs, redis: redis_sync.Redis) -> None:
    new = new_job()
    await jobs.submit([new])
    await run_all(jobs)
    record, job = await jobs.get(new.id), Job.fetch(new.id, connection=redis)
    assert job.created_at is not None and job.started_at is not None and job.ended_at is not None
    assert job.enqueued_at is not None
    read = [job.created_at, job.enqueued_at, job.started_at, job.ended_at]
    ours = [record.spec.created_at_s, record.enqueued_at_s, record.started_at_s, record.ended_at_s]
    assert [each.timestamp() for each in read] == pytest.approx(ours, abs=1e-6)
    assert ours == sorted(ours) and abs(ours[-1] - time.time()) < 5
    assert job.worker_name == "w"


async def test_the_command_line_of_rq_counts_jobs(jobs: RedisJobs, stores: Stores, redis: redis_sync.Redis) -> None:
    await jobs.submit([new_job(), new_job(), new_job(key_id="k2")])
    info = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "rq.cli", "info", "--raw", "--url", stores.redis_url],
        capture_output=True,
        text=True,
        timeout=60,
        env={**os.environ, "PYTHONWARNINGS": "ignore"},
    )
    assert info.returncode == 0, info.stderr
    lines = [line.replace(",", "").split()[:3] for line in info.stdout.splitlines() if line.startswith("queue")]
    assert sorted(lines) == [["queue", "sv:embed:k1", "2"], ["queue", "sv:embed:k2", "1"]]
