"""A real pool manager and jobs that wait in real queues: it wakes, scales up to the cap, and goes back to zero."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

import pytest

from samovar.jobs import JobState
from samovar.policies import Jobs
from samovar_storage import keys
from samovar_storage.jobs.layout import LOW, QueueName, new_job_id
from samovar_storage.jobs.records import JobSpec, NewJob, Settlement
from samovar_storage.jobs.redis_jobs import RedisJobs
from samovar_storage.live import connect_async
from samovar_storage.records import Demand, dumps
from support.pool import Pool, quick_scaling

pytestmark = pytest.mark.process

R = TypeVar("R")
WORKER = "jobs-test"


def on_store(pool: Pool, deed: Callable[[RedisJobs], Awaitable[R]]) -> R:
    """Do something with the store of jobs that the pool's manager looks at."""

    async def do() -> R:
        where = pool.redis.connection_pool.connection_kwargs
        redis = connect_async(f"redis://:{where['password']}@{where['host']}:{where['port']}/{where['db']}")
        try:
            return await deed(RedisJobs(redis, pool.store))
        finally:
            await redis.aclose()

    return asyncio.run(do())


def submit(pool: Pool, function: str, num_jobs: int, lane: str = "") -> QueueName:
    at_s = time.time()
    spec = JobSpec(function=function, key_id="k", created_at_s=at_s, lane=lane)
    jobs = [NewJob(id=new_job_id(int(at_s * 1000)), spec=spec, input=b"{}") for _ in range(num_jobs)]
    on_store(pool, lambda store: store.submit(jobs))
    return QueueName(function, "k", lane)


def finish_all(pool: Pool, queue: QueueName) -> None:
    async def run(store: RedisJobs) -> None:
        await store.beat(WORKER)
        for taken in await store.take(queue, WORKER, 1000):
            assert await store.settle(WORKER, taken, Settlement(state=JobState.FINISHED))
        await store.leave(WORKER)

    on_store(pool, run)


def test_one_waiting_job_wakes_a_cold_version_which_sleeps_again_when_it_is_done(pool: Pool) -> None:
    ref = pool.deploy("echo_sum", name="woken", scaling=quick_scaling()).ref
    queue = submit(pool, "woken", 1)
    pool.ready(ref)
    first = [decision for decision in pool.decisions("woken") if decision.action == "scale"][-1]
    assert (first.desired, first.rule, first.detail) == (1, "cold", "1 instance for 1 waiting job, capped at 4")
    finish_all(pool, queue)
    pool.until(lambda: not pool.instances(ref), what="nobody waits any more")


def test_a_backlog_is_capped_calls_are_not_and_running_jobs_hold_what_they_have(pool: Pool) -> None:
    ref = pool.deploy("echo_sum", name="capped", scaling=quick_scaling(max_instances=4)).ref
    queue = submit(pool, "capped", 500)
    pool.ready(ref, 2)
    status = pool.until(lambda: (s := pool.status(ref)) and s.ready == 2 and s, what="both are told")
    assert (status.desired, status.starting) == (2, 0) and "500 waiting jobs, capped at 2" in status.reason
    pool.demand(ref, queued=2)
    pool.ready(ref, 4)
    pool.demand(ref, 0)
    pool.until(lambda: len(pool.instances(ref)) == 2, what="what calls needed goes with them")
    finish_all(pool, queue)

    def runs() -> bool:
        """What a worker tells that still runs two jobs."""
        pool.redis.hset(keys.demand(WORKER), ref, dumps(Demand(queued=0, running=2, jobs=2)))
        pool.redis.expire(keys.demand(WORKER), keys.DEMAND_LIFETIME_S)
        pool.redis.zadd(keys.GATEWAYS, {WORKER: time.time()})
        return "2 running jobs, capped at 2" in getattr(pool.status(ref), "reason", "")

    pool.until(runs, what="running jobs are demand, too")
    assert len(pool.in_state("ready", ref)) == 2
    pool.until(lambda: not pool.instances(ref), what="nothing is left of them")


def test_low_jobs_start_nothing_where_they_may_not_nor_does_what_is_no_job(pool: Pool) -> None:
    patient = pool.deploy("echo_sum", name="patient", scaling=quick_scaling(), jobs=Jobs(low_scales=False)).ref
    eager = pool.deploy("echo_sum", name="eager", scaling=quick_scaling()).ref
    pool.redis.publish(keys.CHANNEL_JOBS, "default")
    pool.redis.publish(keys.CHANNEL_JOBS, "sv:nobody-s:k")
    submit(pool, "patient", 5, LOW)
    submit(pool, "eager", 5, LOW)
    pool.ready(eager, 4)
    assert not pool.instances(patient)
    assert all(decision.desired == 0 for decision in pool.decisions("patient"))
    submit(pool, "patient", 1)
    pool.ready(patient)
    for name in ("patient", "eager"):
        for lane in ("", LOW):
            finish_all(pool, QueueName(name, "k", lane))
