"""Queued jobs from the dispatcher's side, on real instances: heard, stopped, set apart, and nobody else blamed."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any, cast

import msgspec
import pytest

from samovar import wire
from samovar.errors import Cancelled, Draining, InstanceLost, Shed
from samovar.lifecycle import State
from samovar.policies import Breaker
from samovar_dispatch.ask import BACKGROUND, Ask
from samovar_dispatch.call import Call, Outcome, Version
from samovar_dispatch.dispatcher import Dispatcher
from samovar_dispatch.health.breaker import State as BreakerState
from samovar_dispatch.membership import Membership
from samovar_storage.records import InstanceRecord
from support.instance_driver import FUNCTIONS, TOKEN, Instance, Zygote, manifest_of

pytestmark = pytest.mark.process

TIMEOUT_S = 60.0


class Submitted:
    """A call and its owner. said: what its handler said; freed: whether its instance had to be ended for it."""

    def __init__(self, dispatcher: Dispatcher, version: Version, body: object, job: wire.JobTag | None, **more: Any):
        loop = asyncio.get_running_loop()
        now_s = loop.time()
        timeout_s = more.pop("timeout_s", TIMEOUT_S)
        ask = Ask(cast(Any, None), "key", now_s, now_s + timeout_s, {}, b"r-1", BACKGROUND, accept_stream=False)
        ask.body, ask.job, ask.alone = msgspec.json.encode(body), job, more.pop("alone", False)
        self.said: list[Any] = []
        ask.hear = self.said.append
        self.outcome: asyncio.Future[Outcome] = loop.create_future()
        self.freed: asyncio.Future[bool] = loop.create_future()
        self.call = dispatcher.submit(version, ask, self)

    def deliver(self, call: Call, outcome: Outcome) -> None:
        self.outcome.set_result(outcome)

    def ended(self, call: Call, outcome: Outcome, code: str) -> None:
        call.when_freed(self.freed.set_result)

    async def answer(self) -> Any:
        outcome = await self.outcome
        assert isinstance(outcome, wire.Result), outcome
        return msgspec.json.decode(outcome.body)


class Bench:
    """A dispatcher beside instances of one function."""

    def __init__(self, name: str) -> None:
        self.dispatcher = Dispatcher(asyncio.get_running_loop(), lambda version: None)
        strict = Breaker(min_calls=1, window_calls=1, error_rate=0.01)
        self.manifest = msgspec.structs.replace(manifest_of(FUNCTIONS / name), breaker=strict)
        self.version = self.dispatcher.version(self.manifest)
        self.membership = Membership(self.dispatcher, "bench")
        self._number = 0

    async def connect(self, *instances: Instance) -> None:
        """Return once these serve."""
        for instance in instances:
            name, ref = f"i{instance.pid}", self.manifest.ref
            self.membership.put(
                InstanceRecord(instance_id=name, state=State.READY, ref=ref, address=instance.address, token=TOKEN)
            )
        await until(lambda: all(f"i{instance.pid}" in self.version.members for instance in instances))

    def job(self, body: object, **more: Any) -> Submitted:
        self._number += 1
        return self.submit(body, wire.JobTag(f"job-{self._number}", 1, self._number), **more)

    def submit(self, body: object, job: wire.JobTag | None = None, **more: Any) -> Submitted:
        return Submitted(self.dispatcher, self.version, body, job, **more)

    def assert_nobody_is_blamed(self) -> None:
        """One failure would open the breaker, one crash be counted."""
        assert self.version.breaker.state is BreakerState.CLOSED and not self.version.breaker._num_crashes
        assert self.version.stats.retried == 0 and not self.version.suspects


async def until(predicate: Callable[[], object]) -> None:
    async with asyncio.timeout(TIMEOUT_S):
        while not predicate():  # noqa: ASYNC110 (nothing tells)
            await asyncio.sleep(0.005)


@asynccontextmanager
async def bench(name: str, *instances: Instance) -> AsyncIterator[Bench]:
    made = Bench(name)
    await made.connect(*instances)
    async with asyncio.timeout(2 * TIMEOUT_S):
        yield made
    await made.membership.close()


async def is_running(submitted: Submitted) -> None:
    await until(lambda: submitted.call.started)


async def test_what_a_handler_says_is_heard(zygote: Zygote) -> None:
    async with bench("works", zygote.start(FUNCTIONS / "works")) as made:
        job = made.job({"deed": "helped"})
        assert await job.answer() is None
        assert [type(message) for message in job.said] == [wire.LogLine, wire.Progress]
        assert await job.freed is False


async def test_a_job_that_hears_nothing_is_ended_with_its_instance_and_another_goes_on(zygote: Zygote) -> None:
    instance, promoted = zygote.start(FUNCTIONS / "works"), zygote.start(FUNCTIONS / "works")
    async with bench("works", instance) as made:
        job = made.job({"deed": "spins", "num": 60})
        await is_running(job)
        waiting = made.submit({"deed": "facts"})
        job.call.cancel()
        assert isinstance(await job.outcome, Cancelled)
        assert not job.freed.done(), "its slot is taken until the work has stopped"
        assert await job.freed is True
        await made.connect(promoted)
        assert (await waiting.answer())[0] == ""
        assert (await made.job({"deed": "facts"}).answer())[0] == "job-2"
        made.assert_nobody_is_blamed()
    assert zygote.exit_code(instance) == 70


async def test_a_job_that_listens_frees_its_slot_by_itself(zygote: Zygote) -> None:
    instance = zygote.start(FUNCTIONS / "works")
    async with bench("works", instance) as made:
        job = made.job({"deed": "polls"})
        await is_running(job)
        job.call.cancel()
        assert await job.freed is False
        assert (await made.job({"deed": "facts"}).answer())[0] == "job-2"
        never = made.job({"deed": "facts"})
        never.call.cancel()
        await never.freed
        assert instance.is_alive()


async def test_a_job_beyond_its_timeout_says_nothing_of_its_version(zygote: Zygote) -> None:
    async with bench("works", zygote.start(FUNCTIONS / "works")) as made:
        job = made.job({"deed": "spins", "num": 60}, timeout_s=0.3)
        assert cast(Any, await job.outcome).extra["phase"] == "run"
        assert await job.freed is True
        made.assert_nobody_is_blamed()


async def test_who_ran_beside_a_job_that_was_stopped_goes_elsewhere_unblamed(zygote: Zygote) -> None:
    instances = [zygote.start(FUNCTIONS / "async_echo") for _ in range(2)]
    async with bench("async_echo", instances[0]) as made:
        call, mate = made.submit({"text": "call", "sleep_s": 0.5}), made.job({"text": "mate", "sleep_s": 0.5})
        blocks = made.job({"text": "blocks", "block_s": 60})
        await is_running(blocks)
        blocks.call.cancel()
        assert isinstance(await mate.outcome, Draining), "given back: its next run has a token of its own"
        assert mate.call.num_attempts == 0
        assert await blocks.freed is True
        await made.connect(instances[1])
        assert await call.answer() == "call"
        made.assert_nobody_is_blamed()


@pytest.mark.parametrize("alone", [False, True])
async def test_a_job_whose_instance_dies_is_not_run_again_here(zygote: Zygote, alone: bool) -> None:
    instances = [zygote.start(FUNCTIONS / "works") for _ in range(2)]
    async with bench("works", *instances) as made:
        job = made.job({"deed": "spins", "num": 60}, alone=alone)
        await is_running(job)
        seat = job.call.seat
        assert seat is not None and (made.version.isolated is seat) is alone
        pid = int(seat.owner.record.instance_id[1:])
        next(instance for instance in instances if instance.pid == pid).kill(signal.SIGKILL)
        assert isinstance(await job.outcome, InstanceLost)
        assert (job.call.num_attempts, made.version.stats.retried) == (1, 0)
        assert made.version.breaker.state is BreakerState.OPEN, "this one is to blame"


async def test_a_suspect_waits_for_an_instance_to_itself(zygote: Zygote) -> None:
    async with bench("works_async") as made:
        suspect = made.job({"seconds": 0}, alone=True)
        assert made.version.num_queued == 1 and suspect.call.cold
        await made.connect(zygote.start(FUNCTIONS / "works_async"))
        assert await suspect.answer() == "job-1"
        beside = made.job({"seconds": 0.2})
        await is_running(beside)
        suspect = made.job({"seconds": 0}, alone=True)
        later = made.job({"seconds": 0})
        assert await suspect.answer() == "job-3"
        assert beside.outcome.done() and not later.outcome.done()
        assert await later.answer() == "job-4"


async def test_jobs_are_never_sent_ahead_of_a_free_slot(zygote: Zygote) -> None:
    async with bench("works", zygote.start(FUNCTIONS / "works")) as made:
        jobs = [made.job({"deed": "facts"}) for _ in range(200)]
        assert [(await job.answer())[0] for job in jobs] == [f"job-{number}" for number in range(1, 201)]
        assert made.version.seats.allowance == 0 and made.version.stats.redispatched == 0


async def test_of_an_instance_that_others_use_too_a_worker_takes_what_is_left(zygote: Zygote) -> None:
    instance = zygote.start(FUNCTIONS / "works_async")
    async with bench("works_async", instance) as one, bench("works_async", instance) as other:
        beside = one.job({"seconds": 1.5})
        await is_running(beside)
        (seat,) = (member.seat for member in other.version.members.values())
        long = [other.job({"seconds": 0.05}) for _ in range(2)]
        await until(lambda: seat.limit == 1)
        assert seat.open, "it goes on beside the other worker"
        assert [await job.answer() for job in long] == ["job-1", "job-2"]
        await until(lambda: seat.limit == 2)


async def test_a_job_that_never_finds_a_slot_is_given_back(zygote: Zygote) -> None:
    instance = zygote.start(FUNCTIONS / "works")
    async with bench("works", instance) as one, bench("works", instance) as other:
        running = one.job({"deed": "polls"})
        await is_running(running)
        waits = other.job({"deed": "facts"})
        assert isinstance(await waits.outcome, Shed)
        other.assert_nobody_is_blamed()
        running.call.cancel()
        assert await running.freed is False
        await until(lambda: other.version.seats.num_open)
        assert (await other.job({"deed": "facts"}).answer())[0] == "job-2"
