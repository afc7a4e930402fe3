"""What is read to say why jobs wait, in one round trip, from a real server; and the backlog as the pool mirrors it."""

from __future__ import annotations

import asyncio
import time

import msgspec
import redis.asyncio as redis_async

from samovar_pool.job_backlog import JobBacklog
from samovar_storage import breakers, keys, live
from samovar_storage.breakers import BreakerNews
from samovar_storage.jobs.facts import read_facts, tell_worker, workers
from samovar_storage.jobs.layout import QueueName, new_job_id
from samovar_storage.jobs.records import Hold, JobSpec, NewJob, WorkerStatus
from samovar_storage.jobs.redis_jobs import RedisJobs
from samovar_storage.jobs.waiting import Facts
from samovar_storage.objects import ObjectStore
from samovar_storage.records import BootFailure, VersionStatus
from support.waiting import wait_until_async

REFS = ["f@1", "f@2"]


async def test_facts_hold_what_was_said_of_these_versions_and_by_living_workers(
    aredis: redis_async.Redis, object_store: ObjectStore
) -> None:
    assert await read_facts(aredis, REFS) == Facts()
    store, at_s = RedisJobs(aredis, object_store), time.time()
    told = WorkerStatus(worker="w", at_s=at_s, holds={"f": Hold(reason="busy")}, taken_per_s={"sv:f:k": 2.5})
    for name in ("w", "silent"):
        await store.beat(name)
    await tell_worker(aredis, told)
    await tell_worker(aredis, WorkerStatus(worker="never-beaten", at_s=at_s))
    status = VersionStatus(ref="f@1", desired=1, ready=0, starting=1, draining=0, reason="cold", at_s=at_s)
    failure = BootFailure(ref="f@2", code="load_failed", status=500, detail="no", retry_at_s=at_s + 9, failed_at_s=at_s)
    news = BreakerNews(ref="f@2", gateway="g", state="open", until_s=at_s + 9, reason="crash_loop")
    await live.put_status(aredis, status, msgspec.structs.replace(status, ref="g@1"))
    await live.put_boot_failure(aredis, failure)
    await breakers.tell(aredis, news, at_s)
    assert await read_facts(aredis, REFS, 3) == Facts((told,), (status,), (failure,), (news,), 3)
    assert await workers(aredis) == [told]
    assert (await read_facts(aredis, [])).workers == (told,)
    assert 0 < await aredis.ttl(keys.jobs_worker("w")) <= keys.WORKER_LIFETIME_S


async def test_the_backlog_is_what_lies_in_the_queues_and_a_filled_queue_is_heard_of(
    aredis: redis_async.Redis, object_store: ObjectStore
) -> None:
    store, woken = RedisJobs(aredis, object_store), asyncio.Event()
    backlog = JobBacklog(store.waiting, woken.set)
    await aredis.sadd(keys.JOBS_WAITING, "sv:gone:k", "somebody-s")
    await backlog.count()
    assert backlog.functions == {} and not woken.is_set()
    following = asyncio.get_running_loop().create_task(backlog.follow(aredis))
    try:
        await wait_until_async(lambda: _num_listeners(aredis), what="it listens")
        spec = JobSpec(function="f", key_id="k", created_at_s=time.time())
        await store.submit([NewJob(id=new_job_id(int(time.time() * 1000)), spec=spec, input=b"1") for _ in range(3)])
        async with asyncio.timeout(5):
            await woken.wait()
        queue = QueueName("f", "k")
        assert backlog.functions == {"f": {queue: 1}}, "one until it is counted"
        await backlog.count()
        assert backlog.functions == {"f": {queue: 3}}
        await store.beat("w")
        await store.take(queue, "w", 3)
        await backlog.count()
        assert backlog.functions == {}
    finally:
        following.cancel()
        await asyncio.gather(following, return_exceptions=True)


async def _num_listeners(redis: redis_async.Redis) -> int:
    ((_, number),) = await redis.pubsub_numsub(keys.CHANNEL_JOBS)
    return int(number)
