"""Ended jobs go, with all that was kept of them; what Redis has no room for is refused, and what it has goes on."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Iterator
from typing import Any

import pytest
import redis as redis_sync
import redis.asyncio as redis_async

from samovar.errors import StoreFull
from samovar.jobs import MAX_INLINE_BYTES, JobState
from samovar_storage import keys
from samovar_storage.jobs.layout import job_key, queue_key, registry_key
from samovar_storage.jobs.records import Settlement
from samovar_storage.jobs.redis_jobs import RedisJobs
from samovar_storage.objects import ObjectStore
from support.new_jobs import AGAIN, FAILED, FINISHED, QUARANTINED, QUEUE, new_job, run_all

LARGE = b"x" * (MAX_INLINE_BYTES + 1)
NOW: dict[str, Any] = {"result_ttl_s": 1e-6}


async def test_nothing_is_left_of_jobs_that_have_expired(
    jobs: RedisJobs, object_store: ObjectStore, redis: redis_sync.Redis
) -> None:
    parent = new_job(unique="u", **NOW)
    new = [parent, new_job(depends_on=[parent.id], **NOW), new_job(body=LARGE, group="a" * 24, **NOW)]
    await jobs.submit(new)
    await run_all(jobs, QUARANTINED)
    await jobs.leave("w")
    assert [info.key for info in object_store.list("jobs/")] == [f"jobs/{new[2].id}/input"]
    assert await jobs.sweep() == 3
    assert list(object_store.list("jobs/")) == []
    await jobs.sweep()
    left = {key for key in redis.keys("*") if b"group" not in key}
    assert left == {keys.JOBS_COUNTS.encode()}
    assert (await jobs.counts())["expired"] == 3
    assert [redis.ttl(key) > 0 for key in redis.keys("*group*")] == [True] * len(redis.keys("*group*"))


async def test_a_sweep_is_bounded(jobs: RedisJobs) -> None:
    await jobs.submit([new_job(key_id=key_id, **NOW) for key_id in ("k1", "k2") for _ in range(400)])
    for key_id in ("k1", "k2"):
        await run_all(jobs, queue=QUEUE._replace(key_id=key_id))
    first = await jobs.sweep()
    assert 500 <= first < 800
    assert [await jobs.sweep() for _ in range(2)] == [800 - first, 0]


async def test_what_has_not_expired_or_ended_stays(jobs: RedisJobs) -> None:
    kept = [new_job(), new_job(key_id="k2", **NOW), new_job(due_at_s=time.time() + 900, **NOW)]
    await jobs.submit(kept)
    await run_all(jobs)
    await jobs.beat("w")
    assert await jobs.take(QUEUE._replace(key_id="k2"), "w", 1)
    assert await jobs.sweep() == 0
    assert None not in await jobs.get_many([job.id for job in kept])


async def test_an_ended_job_goes_even_if_nobody_sweeps(jobs: RedisJobs, redis: redis_sync.Redis) -> None:
    new = new_job(result_ttl_s=100)
    await jobs.submit([new])
    assert redis.ttl(job_key(new.id)) == -1, "what was accepted stays"
    await run_all(jobs)
    assert 100 < redis.ttl(job_key(new.id)) <= 100 + 3600
    # as if that had passed, and RQ cleaned its registry
    redis.delete(job_key(new.id))
    redis.zremrangebyscore(registry_key("finished", QUEUE), "-inf", "+inf")
    await jobs.sweep()
    assert not redis.exists(keys.jobs_of("embed:k1"))
    assert not redis.exists(keys.JOBS_BYTES, keys.JOBS_ENDED), "no byte is counted for ever"


async def test_of_jobs_nobody_swept_in_time_no_dead_letter_is_left(jobs: RedisJobs, redis: redis_sync.Redis) -> None:
    new = [new_job(body=b"x" * 5000, **NOW) for _ in range(3)]
    await jobs.submit(new)
    await run_all(jobs, QUARANTINED)
    redis.delete(*(job_key(job.id) for job in new[:2]))
    assert await jobs.sweep() == 3
    assert not redis.exists(keys.jobs_dead("embed:k1"), keys.JOBS_BYTES, keys.JOBS_ENDED)


async def test_who_waits_for_a_job_that_is_forgotten_runs_all_the_same(jobs: RedisJobs) -> None:
    parent = new_job(key_id="k2", **NOW)
    await jobs.submit([parent])
    await jobs.submit([new_job(depends_on=[parent.id]) for _ in range(1200)])
    await run_all(jobs, queue=QUEUE._replace(key_id="k2"))
    assert (await jobs.waiting())[QUEUE] < 1200, "a step does only so much"
    assert await jobs.sweep() == 1
    await jobs.promote_due()
    assert (await jobs.waiting())[QUEUE] == 1200


async def test_a_worker_remembers_no_queue_that_is_gone(jobs: RedisJobs, redis: redis_sync.Redis) -> None:
    await jobs.submit([new_job(**NOW), new_job(key_id="k2")])
    for key_id in ("k1", "k2"):
        await run_all(jobs, queue=QUEUE._replace(key_id=key_id))
    await jobs.sweep()
    await jobs.sweep()
    assert {*redis.hkeys(keys.jobs_takes("w"))} == {b"alive", b"sv:embed:k2"}


async def test_an_api_key_keeps_so_many_bytes(aredis: redis_async.Redis, object_store: ObjectStore) -> None:
    jobs = RedisJobs(aredis, object_store, max_ended_bytes=40_000)
    oldest = new_job(body=b"x" * 15_000)
    await jobs.submit([oldest, new_job(key_id="k2", body=b"x" * 30_000)])
    await run_all(jobs, FAILED)
    await run_all(jobs, queue=QUEUE._replace(key_id="k2"))
    newer = [new_job(body=b"x" * 10_000, lane="low") for _ in range(2)]
    newest = new_job(body=b"x" * 10_000)
    await jobs.submit([*newer, newest])
    await run_all(jobs, queue=QUEUE._replace(lane="low"))
    await run_all(jobs)
    assert await jobs.sweep() == 1
    assert [record is None for record in await jobs.get_many([oldest.id, newest.id])] == [True, False]
    assert (await jobs.list(["embed"], None, "k2", None, "", 5)).jobs, "another key's are no business of it"
    assert await jobs.sweep() == 0
    rows: Any = await aredis.hgetall(keys.JOBS_BYTES)
    held = {key_id.decode(): int(number) for key_id, number in rows.items()}
    assert held == {"k1": 3 * 10_800 + 3 * 5, "k2": 30_800 + 5}


async def test_purging(jobs: RedisJobs, object_store: ObjectStore, redis: redis_sync.Redis) -> None:
    first, second = [new_job(body=LARGE) for _ in range(2)]
    other, failed = new_job(key_id="k2"), new_job(key_id="k3")
    waits = new_job(lane="low")
    await jobs.submit([first, second, other, failed, waits])
    for key_id, settlement in (("k1", FINISHED), ("k2", FINISHED), ("k3", FAILED)):
        await run_all(jobs, settlement, QUEUE._replace(key_id=key_id))
    assert await jobs.purge("embed", None, 60.0, None) == 0, "none is so old"
    assert await jobs.purge("nobody", None, 0.0, None) == 0
    assert await jobs.purge("embed", None, 0.0, "k1") == 2
    assert list(object_store.list("jobs/")) == []
    assert await jobs.purge("embed", JobState.FAILED, 0.0, None) == 1
    assert await jobs.purge("embed", None, 0.0, None) == 1
    assert await jobs.get_many([first.id, other.id, failed.id]) == [None] * 3
    assert (await jobs.get(waits.id)).state == "queued"
    assert not redis.exists(keys.JOBS_BYTES)


async def test_objects_of_a_process_that_died_are_found(
    jobs: RedisJobs, object_store: ObjectStore, redis: redis_sync.Redis
) -> None:
    """It had stored an input, and never submitted the job; another job, whose objects are looked at, lives."""
    lost, lives = new_job(body=LARGE), new_job(body=LARGE)
    await jobs._payloads.put(lost.id, f"jobs/{lost.id}/input", LARGE)
    await jobs.submit([lives])
    redis.zadd(keys.JOBS_OBJECTS, {lost.id: time.time() - 1, lives.id: time.time() - 1})
    await jobs.sweep()
    assert [info.key for info in object_store.list("jobs/")] == [f"jobs/{lives.id}/input"]


async def test_a_finished_job_takes_less_than_a_kilobyte(jobs: RedisJobs, redis: redis_sync.Redis) -> None:
    def used_bytes() -> int:
        return int(redis.info("memory")["used_memory"])

    number = 4000
    before = used_bytes()
    for _ in range(number // 1000):
        await jobs.submit([new_job() for _ in range(1000)])
        await jobs.beat("w")
        while taken := await jobs.take(QUEUE, "w", 250):
            await asyncio.gather(*(jobs.settle("w", job, FINISHED) for job in taken))
    per_job = (used_bytes() - before) / number
    print(f"bytes per finished no-op job: {per_job:.0f}")
    assert redis.object("encoding", job_key(taken[0].id) if taken else next(redis.scan_iter("rq:job:*"))) == b"listpack"
    assert per_job < 900
    assert sum(1 for _ in redis.scan_iter("*", count=1000)) < number + 20


@pytest.fixture
def full(redis: redis_sync.Redis) -> Iterator[redis_sync.Redis]:
    """Redis, to be filled up by `config_set("maxmemory", 1)`; there is room again after the test."""
    yield redis
    redis.config_set("maxmemory", 0)


async def test_a_full_redis_refuses_jobs_and_runs_those_it_has(
    jobs: RedisJobs, object_store: ObjectStore, full: redis_sync.Redis
) -> None:
    new = [new_job() for _ in range(6)]
    later = new_job(due_at_s=time.time() + 900)
    child = new_job(depends_on=[new[0].id])
    await jobs.submit([*new, later, child])
    await jobs.beat("w")
    (lost,) = await jobs.take(QUEUE, "w", 1)
    full.config_set("maxmemory", 1)
    with pytest.raises(StoreFull):
        await jobs.submit([new_job(), new_job()])
    with pytest.raises(StoreFull):
        await jobs.submit([new_job(body=LARGE)])
    assert full.llen(queue_key(QUEUE)) == 5
    assert await jobs.beat("w")
    assert await jobs.reap("w", (await jobs.beats())["w"]) == [lost.id]
    await jobs.beat("v")
    first, second, third = await jobs.take(QUEUE, "v", 3)
    assert await jobs.settle("v", first, Settlement(state=JobState.FINISHED, result=LARGE))
    assert (await jobs.get(child.id)).state == "queued"
    assert await jobs.settle("v", second, AGAIN)
    assert await jobs.settle("v", third, Settlement(state=JobState.SCHEDULED, due_at_s=time.time() - 1))
    assert await jobs.promote_due() == 1
    assert await jobs.cancel(later.id) == "canceled"
    assert await jobs.purge("embed", None, 0.0, None) == 2
    full.config_set("maxmemory", 0)
    await jobs.submit([new_job()])
    assert len(await run_all(jobs, worker="u")) == 7
    assert [info.key for info in object_store.list("jobs/")] == []
