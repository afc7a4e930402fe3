"""What happens to a job, over the real server: kept in order, told at once, gone in time, heard by who watches."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import msgspec
import pytest
import redis.asyncio as redis_async

from samovar.errors import JobNotFound, StoreUnavailable, Unavailable
from samovar.jobs import JobEvent, JobState, Progress
from samovar_gateway.jobs.watch import WatchHub
from samovar_storage import keys
from samovar_storage.embedded import EmbeddedValkey
from samovar_storage.ending import end_tasks
from samovar_storage.jobs.events import (
    ENDED_LIFETIME_S,
    append_events,
    log_event,
    output_event,
    progress_event,
    read_events,
    retry_event,
)
from samovar_storage.jobs.layout import QueueName, new_job_id
from samovar_storage.jobs.records import JobSpec, NewJob, Settlement, Taken
from samovar_storage.jobs.redis_jobs import RedisJobs
from samovar_storage.jobs.story import history, parse_id
from samovar_storage.live import connect_async
from samovar_storage.objects import ObjectStore
from support.processes import running
from support.waiting import wait_until_async

QUEUE = QueueName("embed", "k1")
FINISHED = Settlement(state=JobState.FINISHED, result=b'"yes"', result_type="application/json")
AGAIN = Settlement(state=JobState.QUEUED, failures=1, error={"code": "function_raised"})


@pytest.fixture
def jobs(aredis: redis_async.Redis, object_store: ObjectStore) -> RedisJobs:
    return RedisJobs(aredis, object_store)


async def submitted(jobs: RedisJobs) -> str:
    now_s = time.time()
    spec = JobSpec(function="embed", key_id="k1", created_at_s=now_s)
    (job_id,) = await jobs.submit([NewJob(id=new_job_id(int(now_s * 1000)), spec=spec, input=b"{}")])
    return job_id


async def taken(jobs: RedisJobs) -> Taken:
    await jobs.beat("w1")
    (found,) = await jobs.take(QUEUE, "w1", 1)
    return found


async def story(aredis: redis_async.Redis, jobs: RedisJobs, job_id: str) -> list[tuple[str, str]]:
    record = await jobs.get(job_id)
    return [(event.id, event.kind) for event in history(record, await read_events(aredis, job_id))]


async def test_what_a_handler_says_is_kept_in_order_and_told_with_its_id(
    aredis: redis_async.Redis, jobs: RedisJobs
) -> None:
    job_id = await submitted(jobs)
    told = aredis.pubsub()
    await told.subscribe(keys.job_channel(job_id))
    assert await told.get_message(timeout=60) is not None
    attempt = await taken(jobs)
    said = [log_event("one", 1.0), progress_event(Progress(fraction=0.5), 2.0), output_event(b'{"n": 1}', 3.0)]
    assert await append_events(aredis, job_id, attempt.token, said) == 3
    assert await append_events(aredis, job_id, attempt.token, []) == 0
    kept = await read_events(aredis, job_id)
    assert [(event.id, event.kind, event.at_s) for event in kept] == [
        ("1-1", "log", 1.0),
        ("1-2", "progress", 2.0),
        ("1-3", "output", 3.0),
    ]
    assert kept[2].data == {"item": {"n": 1}}
    heard = [await told.get_message(timeout=60) for _ in range(4)]
    events = [msgspec.json.decode(message["data"], type=JobEvent) for message in heard if message is not None]
    assert [event.id for event in events] == ["1-0", "1-1", "1-2", "1-3"]
    assert events[1:] == kept
    assert await read_events(aredis, job_id, parse_id("1-2")) == kept[2:]
    await told.aclose()  # type: ignore[no-untyped-call]


async def test_an_attempt_that_was_given_up_says_nothing_any_more(aredis: redis_async.Redis, jobs: RedisJobs) -> None:
    job_id = await submitted(jobs)
    first = await taken(jobs)
    said = [retry_event(1, 5.0, AGAIN.error, 0.0, 6.0)]
    assert await append_events(aredis, job_id, first.token, said) == 1
    assert await jobs.settle("w1", first, AGAIN)
    second = await taken(jobs)
    assert await append_events(aredis, job_id, first.token, [log_event("a zombie", 7.0)]) == 0
    assert await append_events(aredis, job_id, second.token, [log_event("again", 8.0)]) == 1
    assert await jobs.settle("w1", second, FINISHED)
    assert await append_events(aredis, job_id, second.token, [log_event("too late", 9.0)]) == 0
    assert await append_events(aredis, new_job_id(1), 1, [log_event("no such job", 9.0)]) == 0
    assert await story(aredis, jobs, job_id) == [
        ("0-1", "queued"),
        ("1-0", "started"),
        ("1-1", "retry"),
        ("2-0", "started"),
        ("2-2", "log"),
        ("3-0", "finished"),
    ]


async def test_the_stream_is_bounded_and_goes_after_the_end_but_the_story_stays(
    aredis: redis_async.Redis, jobs: RedisJobs
) -> None:
    job_id = await submitted(jobs)
    attempt = await taken(jobs)
    stream = keys.job_events(job_id)
    for _ in range(13):
        await append_events(aredis, job_id, attempt.token, [log_event("x", 1.0)] * 200)
    assert 1000 <= await aredis.xlen(stream) < 1300
    assert (await read_events(aredis, job_id, count=2000))[-1].id == "1-2600"
    assert await aredis.ttl(stream) > 24 * 3600
    await jobs.settle("w1", attempt, FINISHED)
    assert 0 < await aredis.ttl(stream) <= ENDED_LIFETIME_S
    await aredis.delete(stream)
    assert await story(aredis, jobs, job_id) == [("0-1", "queued"), ("1-0", "started"), ("2-0", "finished")]
    silent = await submitted(jobs)
    await jobs.settle("w1", await taken(jobs), FINISHED)
    assert not await aredis.exists(keys.job_events(silent))


# ---- watching ----------------------------------------------------------------------------------------------------


@asynccontextmanager
async def watching(redis: redis_async.Redis, jobs: RedisJobs, most: int = 10_000) -> AsyncIterator[WatchHub]:
    hub = WatchHub(redis, jobs, most)
    task = asyncio.ensure_future(hub.run())
    try:
        yield hub
    finally:
        await end_tasks([task])


async def num_subscribed(redis: redis_async.Redis) -> int:
    return len(await redis.pubsub_channels(keys.job_channel("*")))


async def test_who_waits_for_a_job_hears_of_its_end(aredis: redis_async.Redis, jobs: RedisJobs) -> None:
    async with watching(aredis, jobs) as hub:
        job_id = await submitted(jobs)
        attempt = await taken(jobs)
        many = [asyncio.ensure_future(hub.wait_ended(job_id, 30)) for _ in range(50)]
        await wait_until_async(lambda: num_subscribed(aredis))
        assert await append_events(aredis, job_id, attempt.token, [log_event("x", 1.0)]) == 1
        assert (await hub.wait_ended(job_id, 0)).state == "started"
        assert (await hub.wait_ended(job_id, 0.05)).state == "started"
        assert await num_subscribed(aredis) == 1 and hub.num_watches == 50
        await jobs.settle("w1", attempt, FINISHED)
        async with asyncio.timeout(5):
            assert {record.state for record in await asyncio.gather(*many)} == {JobState.FINISHED}
        assert (await hub.wait_ended(job_id, 30)).state == "finished"
        assert hub.num_watches == 0
        await wait_until_async(lambda: _is_none(aredis))
        with pytest.raises(JobNotFound):
            await hub.wait_ended(new_job_id(1), 5)


async def test_no_end_is_missed_between_looking_and_subscribing(aredis: redis_async.Redis, jobs: RedisJobs) -> None:
    async with watching(aredis, jobs) as hub:

        async def one() -> None:
            job_id = await submitted(jobs)
            waiting = asyncio.ensure_future(hub.wait_ended(job_id, 12))
            async with lock:
                await jobs.settle("w1", await taken(jobs), FINISHED)
            assert (await waiting).state == "finished"

        lock = asyncio.Lock()
        async with asyncio.timeout(10):  # below LOOK_AGAIN_S: nobody is saved by that
            for _ in range(10):
                await asyncio.gather(*(one() for _ in range(20)))


async def test_a_lost_connection_loses_no_news(aredis: redis_async.Redis, jobs: RedisJobs) -> None:
    async with watching(aredis, jobs) as hub:
        job_id = await submitted(jobs)
        attempt = await taken(jobs)
        waiting = asyncio.ensure_future(hub.wait_ended(job_id, 12))
        await wait_until_async(lambda: num_subscribed(aredis))
        async with aredis.pipeline(transaction=True) as pipe:  # it ends in the moment nobody is connected
            pipe.client_kill_filter(_type="pubsub")
            await pipe.execute()
        await jobs.settle("w1", attempt, FINISHED)
        async with asyncio.timeout(10):
            assert (await waiting).state == "finished"


async def test_watchers_survive_a_redis_that_is_killed(tmp_path: Path, object_store: ObjectStore) -> None:
    server = EmbeddedValkey(tmp_path)
    async with AsyncExitStack() as stack:
        with running(server.command(), tmp_path / "valkey.log", server.environment(), 1.0) as process:
            server.wait_ready(20)
            redis = connect_async(server.redis_url)
            stack.push_async_callback(redis.aclose)
            jobs = RedisJobs(redis, object_store)
            hub = await stack.enter_async_context(watching(redis, jobs))
            job_id = await submitted(jobs)
            attempt = await taken(jobs)
            looks = await num_looks(redis)
            waiting = [asyncio.ensure_future(hub.wait_ended(job_id, 30))]
            await wait_until_async(lambda: _has_looked(redis, looks + 2))  # at first, and once subscribed
            waiting += [asyncio.ensure_future(hub.wait_ended(job_id, 30)) for _ in range(20)]
            await wait_until_async(lambda: _has_looked(redis, looks + 22))
            process.kill()
            process.wait(60)
            with pytest.raises(StoreUnavailable):
                await hub.wait_ended(job_id, 0.1)
        assert not any(task.done() for task in waiting)
        with running(server.command(), tmp_path / "valkey.log", server.environment(), 1.0):
            server.wait_ready(20)
            await jobs.settle("w1", attempt, FINISHED)
            async with asyncio.timeout(12):
                assert {record.state for record in await asyncio.gather(*waiting)} == {JobState.FINISHED}


async def test_watchers_are_bounded_and_leave_when_told(aredis: redis_async.Redis, jobs: RedisJobs) -> None:
    async with watching(aredis, jobs, most=2) as hub:
        job_id = await submitted(jobs)
        waiting = [asyncio.ensure_future(hub.wait_ended(job_id, 30)) for _ in range(2)]
        await wait_until_async(lambda: hub.num_watches == 2)
        with pytest.raises(Unavailable) as refused:
            await hub.wait_ended(job_id, 1)
        assert refused.value.retry_after_s
        hub.leave()
        async with asyncio.timeout(5):
            assert {record.state for record in await asyncio.gather(*waiting)} == {JobState.QUEUED}
        assert hub.num_watches == 0


async def num_looks(redis: redis_async.Redis) -> int:
    """Return how often jobs were read."""
    stats = await redis.info("commandstats")
    return int(stats.get("cmdstat_hmget", {}).get("calls", 0))


async def _has_looked(redis: redis_async.Redis, times: int) -> bool:
    return await num_looks(redis) >= times


async def _is_none(aredis: redis_async.Redis) -> bool:
    return await num_subscribed(aredis) == 0
