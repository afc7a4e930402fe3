"""Cron jobs in the real stores: kept in object storage, fired in one step, never twice."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any

import msgspec
import pytest
import redis.asyncio as redis_async

from samovar.errors import Conflict, NotFound
from samovar.jobs import CronJob, JobOptions, JobState
from samovar.policies import Jobs as JobRules
from samovar_jobs.cron import Scheduler
from samovar_jobs.cron_rules import run_id
from samovar_storage import keys
from samovar_storage.jobs.crons import Crons
from samovar_storage.jobs.layout import QueueName
from samovar_storage.jobs.records import JobRecord, Settlement
from samovar_storage.jobs.redis_jobs import RedisJobs
from samovar_storage.objects import ObjectStore
from samovar_storage.records import ApiKeyRecord, dumps

KEY = "0123456789ab"
HOUR_S = 3600.0
T0 = 1_800_000_000.0  # a full hour
QUEUE = QueueName("echo", KEY)


def cron(**more: Any) -> CronJob:
    """Return an hourly cron job."""
    fields: dict[str, Any] = {"name": "n", "function": "echo", "schedule": "0 * * * *", "key_id": KEY} | more
    return CronJob(**fields)


class Setup:
    """Two schedulers over the same stores, whose clock is `now_s`."""

    def __init__(self, redis: redis_async.Redis, objects: ObjectStore) -> None:
        self.now_s = T0
        self.redis = redis
        self.crons = Crons(redis, objects)
        self.jobs = RedisJobs(redis, objects)
        self.rules: Callable[[str], JobRules | None] = lambda name: JobRules() if name == "echo" else None
        self.one, self.two = self._scheduler(Crons(redis, objects)), self._scheduler(Crons(redis, objects))

    def _scheduler(self, crons: Crons) -> Scheduler:
        return Scheduler(self.redis, crons, self.jobs, lambda name: self.rules(name), lambda: self.now_s)

    async def look(self, after_s: float) -> list[JobRecord]:
        """Let both look at once, that long after T0; return the jobs there are, oldest first."""
        self.now_s = T0 + after_s
        await asyncio.gather(self.one.look(), self.two.look())
        page = await self.jobs.list(["echo"], None, KEY, None, "", 200)
        return page.jobs[::-1]

    async def notice(self) -> str:
        """Return what was left out the last time."""
        return (await self.crons.states(["n"]))["n"].notice

    async def run(self) -> JobState:
        """Let a worker take the next job and finish it."""
        (taken,) = await self.jobs.take(QUEUE, "w", 1)
        assert await self.jobs.settle("w", taken, Settlement(state=JobState.FINISHED, result=taken.input))
        return (await self.jobs.get(taken.id)).state


@pytest.fixture
async def setup(aredis: redis_async.Redis, object_store: ObjectStore) -> Setup:
    """A platform with one key and a worker."""
    record = ApiKeyRecord(key_id=KEY, name="k", secret_sha256="", scopes=["invoke"])
    await aredis.hset(keys.API_KEYS, KEY, dumps(record))
    await aredis.set(keys.REGISTRY_BUILT, 1)
    setup = Setup(aredis, object_store)
    await setup.jobs.beat("w")
    return setup


async def test_two_schedulers_submit_a_run_once(setup: Setup) -> None:
    await setup.crons.put(cron(input={"a": 1}), T0)
    assert await setup.look(10) == []
    for hour in (1, 2, 3):
        jobs = await setup.look(hour * HOUR_S + 1)
        assert [job.id for job in jobs] == [run_id("n", T0 + number * HOUR_S) for number in range(1, hour + 1)]
        assert jobs[-1].spec.cron == "n"
        assert await setup.jobs.input(jobs[-1]) == b'{"a":1}'
        await setup.run()
    assert setup.one.num_fired + setup.two.num_fired == 3
    state = (await setup.crons.states(["n"]))["n"]
    assert (state.last_s, state.last_job) == (T0 + 3 * HOUR_S, jobs[-1].id)


async def test_a_clock_that_steps_back_makes_no_run_again_not_even_a_forgotten_one(setup: Setup) -> None:
    await setup.crons.put(cron(missed="all"), T0)
    (job,) = await setup.look(HOUR_S)
    await setup.run()
    assert await setup.jobs.purge("echo", None, 0, None) == 1
    assert await setup.look(HOUR_S - 100) == []
    assert await setup.look(HOUR_S + 100) == []
    with pytest.raises(NotFound):
        await setup.jobs.get(job.id)


async def test_a_scheduler_that_slept_over_a_run_does_nothing(setup: Setup) -> None:
    await setup.crons.put(cron(), T0)
    stale = (await setup.crons.states(["n"]))["n"]
    await setup.look(HOUR_S)
    await setup.run()
    await setup.jobs.purge("echo", None, 0, None)
    assert not await setup.crons.fire("n", stale.last, stale)


@pytest.mark.parametrize(("missed", "hours"), [("skip", []), ("last", [3]), ("all", [1, 2, 3])])
async def test_missed_runs(setup: Setup, missed: str, hours: list[int]) -> None:
    await setup.crons.put(cron(missed=missed), T0)
    jobs = await setup.look(3 * HOUR_S + 600)
    assert [job.id for job in jobs] == [run_id("n", T0 + hour * HOUR_S) for hour in hours]
    assert [job.state for job in jobs] == [JobState.QUEUED, JobState.DEFERRED, JobState.DEFERRED][: len(jobs)]
    assert bool(await setup.notice()) == (len(hours) < 3)
    for _ in jobs:
        assert await setup.run() is JobState.FINISHED


async def test_overlap_skip_leaves_a_run_out_with_notice(setup: Setup) -> None:
    await setup.crons.put(cron(), T0)
    await setup.look(HOUR_S)
    assert len(await setup.look(2 * HOUR_S)) == 1
    assert "had not ended" in await setup.notice()
    await setup.run()
    assert len(await setup.look(3 * HOUR_S)) == 2
    assert await setup.notice() == ""


async def test_overlap_queue_waits_for_the_end(setup: Setup) -> None:
    await setup.crons.put(cron(overlap="queue"), T0)
    await setup.look(HOUR_S)
    jobs = await setup.look(2 * HOUR_S)
    assert [job.state for job in jobs] == [JobState.QUEUED, JobState.DEFERRED]
    await setup.run()
    await setup.run()


async def test_overlap_cancel_replaces_the_last_run(setup: Setup) -> None:
    await setup.crons.put(cron(overlap="cancel"), T0)
    await setup.look(HOUR_S)
    jobs = await setup.look(2 * HOUR_S)
    assert [job.state for job in jobs] == [JobState.CANCELED, JobState.QUEUED]


async def test_unique_leaves_a_run_out(setup: Setup) -> None:
    await setup.crons.put(cron(overlap="queue", options=JobOptions(unique="u")), T0)
    assert len(await setup.look(HOUR_S)) == 1
    assert len(await setup.look(2 * HOUR_S)) == 1
    assert "not run" in await setup.notice()
    assert (await setup.crons.states(["n"]))["n"].last_s == T0 + 2 * HOUR_S


async def test_a_function_that_is_gone_or_a_key_that_is_revoked_runs_nothing(setup: Setup) -> None:
    await setup.crons.put(cron(), T0)
    setup.rules = lambda name: None
    assert await setup.look(HOUR_S) == []
    assert "no function" in await setup.notice()
    setup.rules = lambda name: JobRules()
    await setup.redis.hdel(keys.API_KEYS, KEY)
    assert await setup.look(2 * HOUR_S) == []
    assert "revoked" in await setup.notice()


async def test_while_the_keys_are_not_known_a_run_waits(setup: Setup) -> None:
    await setup.crons.put(cron(), T0)
    await setup.redis.delete(keys.REGISTRY_BUILT)
    assert await setup.look(HOUR_S) == []
    await setup.redis.set(keys.REGISTRY_BUILT, 1)
    assert len(await setup.look(HOUR_S + 10)) == 1


async def test_a_lost_redis_loses_no_schedule_and_makes_up_for_nothing(setup: Setup, aredis: redis_async.Redis) -> None:
    await setup.crons.put(cron(missed="all"), T0)
    await aredis.flushdb()
    (found,) = await setup.crons.all()
    assert found == await setup.crons.get("n")
    assert (await setup.crons.states(["n"]))["n"].last_s > 0


async def test_another_schedule_counts_from_now_and_the_same_one_goes_on(setup: Setup) -> None:
    first = await setup.crons.put(cron(), T0)
    again = await setup.crons.put(cron(input=5, key_id="ffffffffffff"), T0 + 50)
    assert (again.key_id, again.created_at_s, again.input) == (KEY, first.created_at_s, 5)
    assert (await setup.crons.states(["n"]))["n"].last_s == T0
    await setup.crons.put(cron(schedule="30 * * * *"), T0 + 3000)
    assert (await setup.crons.states(["n"]))["n"].last_s == T0 + 3000
    assert await setup.look(3010) == [], "half past was before"


async def test_a_disabled_one_does_not_run(setup: Setup) -> None:
    await setup.crons.put(cron(enabled=False), T0)
    assert await setup.look(HOUR_S) == []


async def test_a_deleted_one_is_gone_everywhere(setup: Setup, aredis: redis_async.Redis) -> None:
    await setup.crons.put(cron(), T0)
    state = (await setup.crons.states(["n"]))["n"]
    await setup.crons.delete("n")
    assert await setup.crons.all() == []
    assert not await setup.crons.fire("n", state.last, state)
    assert not await aredis.exists("sv:cron:n")
    with pytest.raises(NotFound):
        await setup.crons.delete("n")
    with pytest.raises(NotFound):
        await setup.crons.get("n")


async def test_of_two_writers_at_once_one_is_told(setup: Setup) -> None:
    results = await asyncio.gather(
        *(setup.crons.put(cron(input=number), T0) for number in range(2)), return_exceptions=True
    )
    failed = [result for result in results if isinstance(result, Exception)]
    assert all(isinstance(error, Conflict) for error in failed) and len(failed) <= 1


async def test_the_index_heals_where_a_writer_died_in_between(setup: Setup, object_store: ObjectStore) -> None:
    await setup.crons.put(cron(), T0)
    await setup.crons.put(cron(name="m"), T0)
    changed = msgspec.structs.replace(await setup.crons.get("n"), input=7)
    await asyncio.to_thread(object_store.put, "crons/n.json", dumps(changed))
    await asyncio.to_thread(object_store.delete, "crons/m.json")
    await asyncio.to_thread(object_store.put, "crons/unreadable.json", b"{")
    await setup.crons.reconcile()
    assert await setup.crons.all() == [changed]
