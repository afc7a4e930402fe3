"""A job worker as a real process: what it takes runs and is settled, whatever comes in between."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest
import redis as redis_sync
import redis.asyncio as redis_async
from rq.worker import Worker

from samovar.jobs import JobState
from samovar.policies import Jobs
from samovar.spec import Limits
from samovar_storage.jobs.events import read_events
from samovar_storage.jobs.layout import QueueName
from samovar_storage.objects import ObjectStore
from support.gateway import environment
from support.job_worker import KEY, Bench, job_bench
from support.stores import Stores
from support.waiting import wait_until, wait_until_async

pytestmark = pytest.mark.process
RQ = str(Path(sys.executable).with_name("rq"))


@pytest.fixture
async def bench(
    stores: Stores, object_store: ObjectStore, redis: redis_sync.Redis, aredis: redis_async.Redis, short_path: Path
) -> AsyncIterator[Bench]:
    """Stores, and whatever a test starts on them."""
    async with job_bench(stores, object_store, redis, aredis, short_path) as bench:
        yield bench


async def test_jobs_of_several_keys_run_and_keep_their_results(bench: Bench) -> None:
    echo = bench.deploy()
    bench.start_instance(echo.ref, concurrency=4)
    bench.start_worker()
    ids = await bench.submit(bodies=[{"x": [number, 1]} for number in range(100)])
    ids += await bench.submit(bodies=[{"x": [number, 1]} for number in range(100)], key_id="k2", lane="low")
    records = await bench.ended(ids)
    assert [json.loads(record.result or b"") for record in records] == [{"sum": n % 100 + 1} for n in range(200)]
    assert {(record.state, record.attempt, record.version) for record in records} == {(JobState.FINISHED, 1, 1)}
    assert bench.counted("late") == 0


async def test_a_job_waits_for_an_instance_without_being_taken(bench: Bench) -> None:
    echo = bench.deploy()
    bench.start_worker()
    (job,) = await bench.submit()
    await wait_until_async(lambda: bench.store.waiting(), what="it waits")
    assert (await bench.store.get(job)).state is JobState.QUEUED
    bench.start_instance(echo.ref)
    (record,) = await bench.ended([job])
    assert (record.state, record.attempt) == (JobState.FINISHED, 1)


async def test_a_failing_job_is_tried_again_and_then_fails(bench: Bench) -> None:
    echo = bench.deploy()
    bench.start_instance(echo.ref)
    bench.start_worker()
    (job,) = await bench.submit(bodies=[{"fail": "tea spilt"}], retries=2, backoff_s=0.05)
    (record,) = await bench.ended([job])
    assert (record.state, record.attempt, record.failures) == (JobState.FAILED, 3, 3)
    assert record.error is not None and record.error["code"] == "function_raised"
    assert [event.kind for event in await read_events(bench.store._redis, job)] == ["retry", "retry"]


async def test_a_job_that_takes_down_instances_is_quarantined(bench: Bench) -> None:
    echo = bench.deploy()
    for _ in range(3):
        bench.start_instance(echo.ref)
    bench.start_worker()
    poison, *good = await bench.submit(bodies=[{"die": True}, *[{"x": [1]}] * 20], max_crashes=2)
    records = await bench.ended([poison, *good])
    assert (records[0].state, records[0].crashes) == (JobState.FAILED, 2)
    assert records[0].error is not None and records[0].error["code"] == "quarantined"
    assert {record.state for record in records[1:]} == {JobState.FINISHED}


async def test_streams_become_lines_and_events(bench: Bench) -> None:
    echo = bench.deploy(handler="generator")
    bench.start_instance(echo.ref)
    bench.start_worker(job_log_lines=2)
    (job,) = await bench.submit(bodies=[{"stream": 40}])
    (record,) = await bench.ended([job])
    assert (record.state, record.result_type) == (JobState.FINISHED, "application/x-ndjson")
    assert (record.result or b"").splitlines() == [b'{"n": %d}' % number for number in range(40)]
    events = await read_events(bench.store._redis, job)
    assert [event.kind for event in events] == ["output", "output", "log"]
    assert events[-1].data["line"].startswith("38 more")


async def test_a_result_beyond_the_bound_is_a_clear_failure(bench: Bench) -> None:
    echo = bench.deploy(handler="generator")
    bench.start_instance(echo.ref)
    bench.start_worker(job_result_bytes=100)
    (job, after) = await bench.submit(bodies=[{"stream": 1000}, {"x": [1]}])
    records = await bench.ended([job, after])
    assert records[0].error is not None and records[0].error["code"] == "bad_output"
    assert records[1].state is JobState.FINISHED


async def test_a_running_job_is_cancelled_once_it_has_stopped(bench: Bench) -> None:
    echo = bench.deploy()
    bench.start_instance(echo.ref)
    bench.start_worker()
    running, queued = await bench.submit(bodies=[{"sleep_s": 30}, {"x": [1]}], retries=5)
    await bench.in_state(running, "started")
    assert await bench.store.cancel(running) is JobState.STARTED
    stopped, after = await bench.ended([running, queued])
    assert (stopped.state, after.state) == (JobState.CANCELED, JobState.FINISHED)
    assert stopped.error is not None and "stopped by itself" in stopped.error["detail"]


async def test_rate_limits_hold_jobs_back_and_cost_no_attempt(bench: Bench) -> None:
    echo = bench.deploy(limits=Limits(timeout_s=10.0, rate="20/s", burst=5))
    bench.start_instance(echo.ref, concurrency=8)
    bench.start_worker()
    records = await bench.ended(await bench.submit(bodies=[{"x": [1]}] * 20))
    assert {(record.state, record.attempt) for record in records} == {(JobState.FINISHED, 1)}
    assert {record.token for record in records} == {1}, "none was taken before it could run"
    started = [record.started_at_s for record in records]
    assert started[-1] - started[0] >= 10 / 20
    assert started == sorted(started), "in the order of submission"


async def test_caps_hold_over_all_workers(bench: Bench) -> None:
    echo = bench.deploy(jobs=Jobs(max_running=3, max_running_per_key=2))
    bench.start_instance(echo.ref, concurrency=16)
    bench.start_worker()
    bench.start_worker()
    ids = [
        *await bench.submit(bodies=[{"sleep_s": 0.3}] * 10),
        *await bench.submit(bodies=[{"sleep_s": 0.3}] * 10, key_id="k2"),
    ]
    peaks = [0, 0]

    async def watch() -> bool:
        running = [bench.num_started("echo", key) for key in (KEY, "k2")]
        peaks[0] = max(peaks[0], sum(running))
        peaks[1] = max(peaks[1], *running)
        return not await bench.store.waiting() and not sum(running)

    await wait_until_async(watch, what="all have run")
    assert {record.state for record in await bench.ended(ids)} == {JobState.FINISHED}
    assert peaks == [3, 2]


async def test_a_group_is_reduced_in_the_order_of_its_inputs(bench: Bench) -> None:
    echo = bench.deploy()
    bench.start_instance(echo.ref, concurrency=4)
    bench.start_worker()
    group = "0" * 24
    for index in range(5):
        await bench.submit(bodies=[{"x": [index]}], group=group, index=index)
    (job,) = await bench.submit(bodies=[None], reduce_of=group)
    (record,) = await bench.ended([job])
    assert record.state is JobState.FINISHED, record.error
    assert json.loads(record.result or b"")["echo"] == {"results": [{"sum": number} for number in range(5)]}


# ---- workers that end ----------------------------------------------------------------------------------------------


async def test_a_worker_that_is_told_to_stop_finishes_what_runs(bench: Bench) -> None:
    echo = bench.deploy()
    bench.start_instance(echo.ref)
    worker = bench.start_worker()
    running, queued = await bench.submit(bodies=[{"sleep_s": 4.0}, {"x": [1]}])
    await bench.in_state(running, "started")
    worker.send(signal.SIGTERM)
    assert worker.process.wait(60) == 0, worker.log
    assert (await bench.store.get(running)).state is JobState.FINISHED
    assert (await bench.store.get(queued)).state is JobState.QUEUED
    assert await bench.store.beats() == {}


@pytest.mark.parametrize("signals", [1, 2])
async def test_what_does_not_end_in_time_is_given_back(bench: Bench, signals: int) -> None:
    echo = bench.deploy()
    bench.start_instance(echo.ref)
    worker = bench.start_worker(job_drain_timeout_s=0.2 if signals == 1 else 30)
    running, queued = await bench.submit(bodies=[{"sleep_s": 30}, {"x": [1]}])
    await bench.in_state(running, "started")
    for _ in range(signals):
        worker.send(signal.SIGTERM)
        wait_until(lambda: "leaving" in worker.log)
    assert worker.process.wait(60) == 0, worker.log
    record = await bench.store.get(running)
    assert (record.state, await bench.store.position(record)) == (JobState.QUEUED, 0), worker.log
    assert (await bench.store.get(queued)).state is JobState.QUEUED


async def test_the_jobs_of_a_killed_worker_run_elsewhere(bench: Bench) -> None:
    echo = bench.deploy()
    bench.start_instance(echo.ref, concurrency=2)
    worker = bench.start_worker()
    (job,) = await bench.submit(bodies=[{"sleep_s": 4.0}])
    await bench.in_state(job, "started")
    worker.process.kill()
    bench.start_worker()
    (record,) = await bench.ended([job])
    assert (record.state, record.token, record.failures, record.crashes) == (JobState.FINISHED, 2, 0, 0)
    assert bench.counted("reaped") == 1


async def test_a_worker_that_was_given_up_commits_nothing_and_comes_back(bench: Bench) -> None:
    echo = bench.deploy()
    bench.start_instance(echo.ref, concurrency=2)
    zombie = bench.start_worker()
    (job,) = await bench.submit(bodies=[{"sleep_s": 4.0}])
    await bench.in_state(job, "started")
    zombie.send(signal.SIGSTOP)
    helper = bench.start_worker()
    (record,) = await bench.ended([job])
    helper.send(signal.SIGTERM)
    assert helper.process.wait(60) == 0
    zombie.send(signal.SIGCONT)
    wait_until(lambda: "given up" in zombie.log)
    assert (await bench.store.get(job)) == record
    assert record.token == 2
    (after,) = await bench.ended(await bench.submit())
    assert after.state is JobState.FINISHED
    assert bench.counted("finished") == 2


# ---- RQ's own tools, and what a worker is made of --------------------------------------------------------------------


async def test_rq_sees_each_worker_under_a_name_of_its_own(bench: Bench, stores: Stores) -> None:
    first = bench.start_worker(worker_name="tea")
    second = bench.start_worker(worker_name="tea")
    wait_until(lambda: {worker.name for worker in Worker.all(bench.redis)} == {"tea", "tea-2"})
    assert "there is a worker named tea already" in second.log
    assert len(await bench.store.beats()) == 2
    assert "2 workers" in output_of(RQ, "info", "-u", stores.redis_url)
    await bench.submit()
    wait_until(lambda: "2 workers, 1 queues" in output_of(RQ, "info", "-u", stores.redis_url))
    assert "tea (" in output_of(RQ, "info", "-R", "-u", stores.redis_url), "by queue, too"
    first.send(signal.SIGTERM)
    assert first.process.wait(60) == 0
    assert "1 workers, 1 queues" in output_of(RQ, "info", "-u", stores.redis_url)
    assert [worker.name for worker in Worker.all(bench.redis)] == ["tea-2"]


async def test_rq_suspend_holds_jobs_and_resume_lets_them_go(bench: Bench) -> None:
    echo = bench.deploy()
    bench.start_instance(echo.ref)
    bench.redis.set("rq:suspended", 1)
    worker = bench.start_worker()
    wait_until(lambda: Worker.all(bench.redis))
    (job,) = await bench.submit()
    await wait_until_async(lambda: bench.store.waiting(), what="it waits")
    assert (await bench.store.get(job)).state is JobState.QUEUED, worker.log
    bench.redis.delete("rq:suspended")
    (record,) = await bench.ended([job])
    assert record.state is JobState.FINISHED


async def test_a_worker_is_small(bench: Bench) -> None:
    worker = bench.start_worker()
    assert psutil.Process(worker.process.pid).memory_info().rss < 160 << 20
    heavy = {"torch", "transformers", "litestar", "uvicorn", "pyarrow", "duckdb", "numpy"}
    code = f"import sys, samovar_jobs.__main__, samovar_jobs.worker; print({heavy!r} & sys.modules.keys())"
    assert output_of(sys.executable, "-P", "-c", code).strip() == "set()"


def output_of(*command: str) -> str:
    """Return what a command prints."""
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


async def test_a_stock_rq_worker_delays_a_job_and_loses_nothing(bench: Bench, stores: Stores) -> None:
    echo = bench.deploy()
    (job,) = await bench.submit(bodies=[{"x": [1, 2]}])
    queue = str(QueueName("echo", KEY))
    output_of(RQ, "worker", "--burst", "--worker-class", "rq.SimpleWorker", "-u", stores.redis_url, queue)
    assert (await bench.store.get(job)).state is JobState.SCHEDULED
    bench.start_instance(echo.ref)
    bench.start_worker()
    (record,) = await bench.ended([job])
    assert (record.state, record.attempt, record.result) == (JobState.FINISHED, 1, b'{"sum":3}')
