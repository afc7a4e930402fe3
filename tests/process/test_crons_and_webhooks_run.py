"""Cron jobs and webhooks with real workers: ten schedulers make each run once; a job that ended is told."""

from __future__ import annotations

import signal
import sys
import time
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import ExitStack
from pathlib import Path

import pytest
import redis as redis_sync
import redis.asyncio as redis_async

from samovar.jobs import CronJob, JobOptions, Webhook
from samovar_jobs.cron_rules import run_id
from samovar_storage import keys
from samovar_storage.jobs.crons import Crons
from samovar_storage.jobs.redis_jobs import RedisJobs
from samovar_storage.jobs.webhook_secrets import WebhookSecrets
from samovar_storage.objects import ObjectStore
from samovar_storage.records import ApiKeyRecord, dumps
from support.gateway import environment
from support.job_worker import KEY, Bench, job_bench
from support.processes import running
from support.receiver import receiving
from support.stores import Stores
from support.waiting import wait_until, wait_until_async

pytestmark = pytest.mark.process

SCHEDULER = Path(__file__).parents[1] / "support" / "cron_worker.py"
T0 = 1_800_000_000.0
NUM_SCHEDULERS, NUM_RUNS = 10, 8


@pytest.fixture
async def bench(
    stores: Stores, object_store: ObjectStore, redis: redis_sync.Redis, aredis: redis_async.Redis, short_path: Path
) -> AsyncIterator[Bench]:
    """Stores, and whatever a test starts on them, with a key that may call."""
    async with job_bench(stores, object_store, redis, aredis, short_path) as bench:
        record = ApiKeyRecord(key_id=KEY, name="k", secret_sha256="", scopes=["invoke"])
        redis.hset(keys.API_KEYS, KEY, dumps(record))
        yield bench


async def test_ten_schedulers_some_killed_make_each_run_once(
    aredis: redis_async.Redis, object_store: ObjectStore, settings_file: Callable[..., Path], tmp_path: Path
) -> None:
    await aredis.hset(keys.API_KEYS, KEY, dumps(ApiKeyRecord(key_id=KEY, name="k", secret_sha256="", scopes=["admin"])))
    await aredis.set(keys.REGISTRY_BUILT, 1)
    cron = CronJob(name="n", function="echo", schedule="* * * * *", key_id=KEY, missed="all", overlap="queue")
    await Crons(aredis, object_store).put(cron, T0)
    command = [sys.executable, "-P", str(SCHEDULER), str(settings_file()), str(time.monotonic())]
    with ExitStack() as stack:
        schedulers = [
            stack.enter_context(running(command, tmp_path / f"{number}.log", environment(), grace_s=0.0))
            for number in range(NUM_SCHEDULERS)
        ]
        wait_until(lambda: all(process.poll() is None for process in schedulers))

        async def num_runs() -> int:
            return int(await aredis.zcard(keys.jobs_of(f"echo:{KEY}")))

        await wait_until_async(num_runs, what="the first run")
        for process in schedulers[:3]:
            process.send_signal(signal.SIGKILL)
        until = await num_runs() + NUM_RUNS

        async def has_more() -> bool:
            return await num_runs() >= until

        await wait_until_async(has_more)
        assert all(process.poll() is None for process in schedulers[3:])
    page = await RedisJobs(aredis, object_store).list(["echo"], None, KEY, None, "", 1000)
    counts = Counter(job.id for job in page.jobs)
    expected = [run_id("n", T0 + 60 * minute) for minute in range(1, len(page.jobs) + 1)]
    assert sorted(counts) == expected, "every minute once, and none left out"
    assert set(counts.values()) == {1}


async def test_a_worker_makes_the_run_that_is_due_and_tells_of_it(
    bench: Bench, aredis: redis_async.Redis, object_store: ObjectStore
) -> None:
    bench.start_instance(bench.deploy().ref)
    with receiving() as receiver:
        options = JobOptions(webhook=Webhook(url=f"{receiver.url}/hook", events=["started", "finished"]))
        cron = CronJob(
            name="n", function="echo", schedule="* * * * *", key_id=KEY, input={"x": [1, 2]}, options=options
        )
        crons = Crons(aredis, object_store)
        await crons.put(cron, time.time() - 120)
        bench.start_worker(webhook_allow="127.0.0.0/8")
        await wait_until_async(lambda: len(receiver.seen) >= 2)
        await crons.delete("n")
    secret = WebhookSecrets(object_store).get(KEY).secret
    events = {event["type"]: event for event in (request.event(secret) for request in receiver.seen)}
    assert events["job.finished"]["job"]["result"] == {"sum": 3}
    assert events["job.started"]["job"]["state"] == "started"


async def test_without_the_setting_a_worker_calls_nothing_on_this_side(
    bench: Bench, aredis: redis_async.Redis, object_store: ObjectStore
) -> None:
    bench.start_instance(bench.deploy().ref)
    with receiving() as receiver:
        bench.start_worker()
        (job,) = await bench.submit(webhook=Webhook(url=f"{receiver.url}/"))
        await bench.ended([job])

        async def refused() -> bool:
            found = await aredis.hget(keys.webhook(f"{job}.finished"), "last_error")
            return found is not None and b"private, local or reserved" in found

        await wait_until_async(refused)
        assert receiver.seen == []
