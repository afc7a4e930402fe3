"""What was answered for outlives a killed Valkey."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from samovar_storage.embedded import EmbeddedValkey
from samovar_storage.jobs.barrier import Barrier
from samovar_storage.jobs.redis_jobs import RedisJobs
from samovar_storage.live import connect_async
from samovar_storage.objects import ObjectStore
from support.new_jobs import FINISHED, QUEUE, new_job
from support.processes import running
from support.waiting import wait_until_async


@pytest.mark.parametrize("appends", ["yes", "no"])
async def test_the_barrier_passes_with_and_without_an_append_only_file(valkey: EmbeddedValkey, appends: str) -> None:
    redis = connect_async(valkey.redis_url)
    try:
        await redis.config_set("appendonly", appends)
        barrier = Barrier(redis)
        assert barrier.has_file
        await barrier.passed("aof")
        await barrier.passed("fsync")
        assert barrier.has_file == (appends == "yes")
    finally:
        await redis.config_set("appendonly", "yes")
        await redis.aclose()


async def test_a_killed_valkey_loses_nothing_that_was_answered_for(tmp_path: Path, object_store: ObjectStore) -> None:
    server = EmbeddedValkey(tmp_path)
    accepted: set[str] = set()
    taken_of: dict[str, int] = {}

    async def submit_and_take(url: str) -> None:
        """Submit and take as fast as it goes, until the server is gone."""
        redis = connect_async(url)
        jobs = RedisJobs(redis, object_store)

        async def submit() -> None:
            while True:
                accepted.update(await jobs.submit([new_job() for _ in range(5)]))

        async def take() -> None:
            await jobs.beat("w")
            while True:
                for taken in await jobs.take(QUEUE, "w", 3):
                    taken_of[taken.id] = taken.token
                await asyncio.sleep(0)

        tasks = [asyncio.create_task(run()) for run in (submit, submit, submit, take)]
        await wait_until_async(lambda: len(accepted) >= 300 and len(taken_of) >= 50)
        process.kill()
        await asyncio.gather(*tasks, return_exceptions=True)
        await redis.aclose()

    with running(server.command(), tmp_path / "log", server.environment()) as process:
        await asyncio.to_thread(server.wait_ready, 20)
        await submit_and_take(server.redis_url)
    with running(server.command(), tmp_path / "log", server.environment()):
        await asyncio.to_thread(server.wait_ready, 20)
        redis = connect_async(server.redis_url)
        jobs = RedisJobs(redis, object_store)
        records = await jobs.get_many(sorted(accepted))
        assert None not in records
        tokens = {job_id: (await jobs.get(job_id)).token for job_id in taken_of}
        assert tokens == taken_of
        assert await jobs.beat("w"), "the worker that held them is known still"
        returned = await jobs.reap("w", (await jobs.beats())["w"])
        assert {*taken_of} <= {*returned}
        await redis.aclose()


async def test_a_job_lives_through_a_restart(tmp_path: Path, object_store: ObjectStore) -> None:
    server = EmbeddedValkey(tmp_path)
    new = new_job()
    with running(server.command(), tmp_path / "log", server.environment()) as process:
        await asyncio.to_thread(server.wait_ready, 20)
        redis = connect_async(server.redis_url)
        jobs = RedisJobs(redis, object_store)
        await jobs.submit([new], "fsync")
        await jobs.beat("w")
        (taken,) = await jobs.take(QUEUE, "w", 1)
        process.kill()
    with running(server.command(), tmp_path / "log", server.environment()):
        await asyncio.to_thread(server.wait_ready, 20)
        assert await jobs.settle("w", taken, FINISHED), "over the same client"
        assert (await jobs.get(new.id)).state == "finished"
        await redis.aclose()
