"""Jobs over the real server: accepted, taken, settled, given back, returned from the dead."""

from __future__ import annotations

import time
from typing import Any

import pytest
import redis.asyncio as redis_async

from samovar.errors import JobNotFound, NotUnique
from samovar.jobs import JobState
from samovar_storage.jobs.layout import QueueName, new_job_id
from samovar_storage.jobs.records import Backlog, JobSpec, NewJob, Settlement
from samovar_storage.jobs.redis_jobs import RedisJobs
from samovar_storage.objects import ObjectStore

async def test_a_job_is_accepted_taken_and_finished(jobs: RedisJobs) -> None:
    new = new_job(retries=3, tags={"a": "b"}, retry_on=["ValueError"])
    assert await jobs.submit([new]) == [new.id]
    assert await jobs.waiting() == {QUEUE: 1}
    assert await jobs.backlog() == {"embed": Backlog(normal=1)}
    queued = await jobs.get(new.id)
    assert (queued.state, queued.spec.tags, queued.input_bytes) == ("queued", {"a": "b"}, 7)
    assert await jobs.beat("w1")
    (taken,) = await jobs.take(QUEUE, "w1", 5)
    assert (taken.id, taken.input, taken.token, taken.attempt) == (new.id, b'{"a":1}', 1, 1)
    assert taken.spec == queued.spec
    assert abs(taken.spec.created_at_s - new.spec.created_at_s) < 1e-5
    assert await jobs.waiting() == {}
    started = await jobs.get(new.id)
    assert (started.state, started.worker, started.token) == ("started", "w1", 1)
    assert await jobs.settle("w1", taken, FINISHED)
    record = await jobs.get(new.id)
    assert (record.state, record.result, record.version) == ("finished", b'"yes"', 3)
    assert record.started_at_s <= record.ended_at_s < record.expires_at_s
    assert not await jobs.settle("w1", taken, FINISHED), "terminal is final"


async def test_submitting_twice_is_accepting_once(jobs: RedisJobs) -> None:
    first, second = new_job(), new_job()
    await jobs.submit([first])
    assert await jobs.submit([first, second]) == [first.id, second.id]
    assert await jobs.waiting() == {QUEUE: 2}


async def test_a_late_answer_changes_nothing(jobs: RedisJobs) -> None:
    new = new_job()
    await jobs.submit([new])
    await jobs.beat("w1")
    (lost,) = await jobs.take(QUEUE, "w1", 1)
    assert await jobs.reap("w1", 0) == [], "it has beaten since"
    assert await jobs.reap("w1", (await jobs.beats())["w1"]) == [new.id]
    assert not await jobs.beat("w1"), "it was reaped"
    await jobs.beat("w2")
    (taken,) = await jobs.take(QUEUE, "w2", 1)
    assert (taken.token, taken.attempt) == (2, 2)
    assert not await jobs.settle("w1", lost, FINISHED)
    assert (await jobs.get(new.id)).state == "started"
    assert await jobs.settle("w2", taken, FINISHED)


async def test_unique_and_unknown_dependencies_are_refused_whole(jobs: RedisJobs) -> None:
    first = new_job(unique="doc")
    await jobs.submit([first])
    with pytest.raises(NotUnique) as refused:
        await jobs.submit([new_job(), new_job(unique="doc")])
    assert refused.value.extra["job"] == first.id
    with pytest.raises(JobNotFound):
        await jobs.submit([new_job(), new_job(depends_on=["f" * 24])])
    assert await jobs.waiting() == {QUEUE: 1}
