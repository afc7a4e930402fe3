"""Records that cannot be used stop nobody but their own function: real gateways, job workers and pool managers."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest
import redis as redis_sync
import redis.asyncio as redis_async

from samovar.jobs import JobState
from samovar_storage import keys
from samovar_storage.objects import ObjectStore
from samovar_storage.registry import Registry
from support.bad_records import ASTRAY, TORN, WORTHLESS, spoil
from support.gateway import Gateway, running_gateway
from support.job_worker import job_bench
from support.pool import Pool, call, quick_scaling
from support.stores import Stores
from support.waiting import wait_until

pytestmark = pytest.mark.process


def is_refused(gateway: Gateway, name: str) -> bool:
    answer = gateway.invoke(name)
    assert answer.status_code in (404, 409), answer.text
    return answer.status_code == 409 and f"what is stored of {name} cannot be used" in answer.json()["detail"]


def is_served(gateway: Gateway, name: str) -> None:
    instance = gateway.start_instance(gateway.deploy(name).ref)
    assert gateway.invoke(name, {"x": [1, 2]}).json() == {"sum": 3}
    assert instance.behave()["calls"] == 1


def test_a_gateway_serves_all_but_the_functions_that_cannot_be_used(
    stores: Stores, object_store: ObjectStore, short_path: Path
) -> None:
    first, second = short_path / "a", short_path / "b"
    first.mkdir()
    second.mkdir()
    with running_gateway(stores, object_store, first) as gateway:
        is_served(gateway, "before")
        spoil(gateway.registry, gateway.redis)
        for name in (WORTHLESS, ASTRAY, TORN):
            wait_until(partial(is_refused, gateway, name), what=f"{name} is refused")
        is_served(gateway, "after")
        with running_gateway(stores, object_store, second) as late:
            assert all(is_refused(late, name) for name in (WORTHLESS, ASTRAY, TORN)), "one that starts is ready, too"
            assert late.invoke("before", {"x": [2]}).json() == {"sum": 2}
            is_served(late, "latest")
        for name in (WORTHLESS, ASTRAY, TORN):
            is_served(gateway, name)  # deployed again, it is as good as any
    log = (first / "gateway.log").read_text()
    assert log.count(f"what is stored of function {WORTHLESS} cannot be used") == 1
    assert "Traceback" not in log


async def test_a_job_worker_runs_all_but_their_jobs(
    stores: Stores, object_store: ObjectStore, redis: redis_sync.Redis, aredis: redis_async.Redis, short_path: Path
) -> None:
    async with job_bench(stores, object_store, redis, aredis, short_path) as bench:
        spoil(bench.registry, redis)
        bench.start_instance(bench.deploy().ref)
        bench.start_worker()
        (waiting,) = await bench.submit(WORTHLESS)
        (done,) = await bench.ended(await bench.submit())
        assert done.state is JobState.FINISHED
        assert (await bench.store.get(waiting)).state is JobState.QUEUED, "until it is deployed again"


def test_a_pool_manager_starts_all_others(pool: Pool) -> None:
    spoil(pool.registry, pool.redis)
    try:
        ref = pool.deploy("echo_sum", name="beside", scaling=quick_scaling()).ref
        pool.demand(ref)
        (record,) = pool.ready(ref)
        assert call(record, b'{"values": [1, 2]}') == b"3.0"
        assert pool.stop() == 0
        pool.start()
        (record,) = pool.ready(ref)
        assert call(record, b'{"values": [2, 2]}') == b"4.0", "one that finds them when it starts does so, too"
    finally:
        pool.redis.hdel(keys.FUNCTIONS, TORN, ASTRAY)
        pool.redis.hdel(keys.INSTANCES, "torn")
        pool.redis.hdel(keys.API_KEYS, "torn")
        pool.redis.delete(keys.demand("nobody"))


def test_an_index_with_torn_rows_is_rebuilt(object_store: ObjectStore, redis: redis_sync.Redis) -> None:
    registry = Registry(object_store, redis)
    registry.ensure_built()
    spoil(registry, redis)
    redis.hset(keys.FUNCTIONS, WORTHLESS, b"{")
    registry.rebuild()
    assert registry.record(WORTHLESS).route.latest == 1, "read anew from object storage"
