"""A job worker whose Redis dies while its jobs run: what they come to is settled when it is back, once."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import redis as redis_sync

from samovar.jobs import JobState
from samovar_storage.embedded import EmbeddedSeaweed, EmbeddedValkey
from samovar_storage.live import connect_async, connect_sync
from samovar_storage.objects import ObjectStore
from support.job_worker import job_bench
from support.processes import running
from support.stores import stores_for_a_test
from support.waiting import wait_until, wait_until_async

pytestmark = pytest.mark.process


async def test_results_wait_for_redis_to_come_back(seaweed: EmbeddedSeaweed, short_path: Path) -> None:
    folder = short_path / "valkey"
    folder.mkdir()
    valkey = EmbeddedValkey(folder)
    stores = stores_for_a_test(valkey, seaweed, 1)
    objects = ObjectStore.from_settings(stores.settings(short_path))
    objects.ensure_bucket()
    redis, aredis = connect_sync(stores.redis_url), connect_async(stores.redis_url)
    log = short_path / "valkey.log"
    with running(valkey.command(), log, valkey.environment(), valkey.stop_grace_s) as server:
        valkey.wait_ready(20)
        async with job_bench(stores, objects, redis, aredis, short_path) as bench:
            echo = bench.deploy()
            instance = bench.start_instance(echo.ref, concurrency=10)
            worker = bench.start_worker()
            go = short_path / "go"
            ids = await bench.submit(bodies=[{"until": str(go), "n": number} for number in range(10)])
            wait_until(lambda: instance.behave()["calls"] == 10, what="all run: taken, and written to Redis's file")
            server.kill()
            server.wait(60)
            go.touch()
            wait_until(lambda: "is not settled yet" in worker.log, what="a job has ended while Redis is away")
            with running(valkey.command(), log, valkey.environment(), valkey.stop_grace_s):
                valkey.wait_ready(20)
                records = await bench.ended(ids)
                assert [json.loads(record.result or b"")["echo"]["n"] for record in records] == [*range(10)]
                assert {(record.state, record.attempt) for record in records} == {(JobState.FINISHED, 1)}
                assert bench.counted("finished") == 10
                (after,) = await bench.ended(await bench.submit())
                assert after.state is JobState.FINISHED
                await wait_until_async(lambda: _is_empty(redis), what="nothing is held")
    await aredis.aclose()
    redis.close()
    objects.close()


def _is_empty(redis: redis_sync.Redis) -> bool:
    return not redis.zcard("rq:wip:sv:echo:k1")
