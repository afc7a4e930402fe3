"""Functions that misbehave, instances that hang and a clock that jumps, under somebody else's load."""

from __future__ import annotations

import os
import signal
import time

import psutil
import pytest

from support.clock_step import SteppedClock
from support.faults import Bystander, Calls, answers, timed_call
from support.journeys import Caller
from support.waiting import wait_until

pytestmark = pytest.mark.e2e

TIMEOUT_S = 2.0


def deployed(caller: Caller, name: str) -> str:
    """Deploy the function that misbehaves under a name of its own, so that no fault is held against another test's."""
    caller.deploy("breaks", name)
    caller.scale(name, min_instances=1)
    caller.answer(name, {"deed": "answer"})
    return name


@pytest.mark.parametrize(
    ("deed", "code"),
    [
        ("segfault", "instance_lost"),
        ("loop", "deadline_exceeded"),
        ("nan", "bad_output"),
        ("huge", "ok"),
        ("none", "ok"),
    ],
)
def test_a_function_misbehaves(victim: Caller, bystander: Bystander, deed: str, code: str) -> None:
    """Its own call ends with the documented code by its deadline; its next calls are answered."""
    name = deployed(victim, f"breaks-{deed}")
    with bystander.watch(f"a function's call: {deed}") as row:
        ended = timed_call(victim, name, {"deed": deed}, TIMEOUT_S if deed == "loop" else 10.0)
        assert ended.code == code, ended
        wait_until(lambda: answers(victim, name, {"deed": "answer"}), what="an answer of the function")
        row.recovered()


def test_a_function_leaks_until_it_has_no_memory(victim: Caller, bystander: Bystander) -> None:
    """At its limit a call fails, which costs this function alone, and a fresh instance takes over."""
    name = deployed(victim, "breaks-leak")
    (instance,) = victim.instances(name, "ready")
    with bystander.watch("a function leaks memory to its limit") as row:
        codes = [timed_call(victim, name, {"deed": "leak"}, 10.0).code for _ in range(9)]
        assert codes[:4] == ["ok"] * 4 and set(codes[4:]) <= {"ok", "function_raised", "instance_lost"}, codes
        assert codes[-1] != "ok", "half a GiB takes eight times 64 MiB at the most"
        wait_until(lambda: not psutil.pid_exists(instance["pid"]), what="the full instance to be replaced")
        wait_until(lambda: timed_call(victim, name, {"deed": "leak"}, 10.0).code == "ok", what="room again")
        row.recovered()


def test_an_instance_hangs(victim: Caller, bystander: Bystander) -> None:
    """The call it runs for each gateway ends by its deadline, all others go elsewhere, and the manager replaces it."""
    name = deployed(victim, "breaks-hang")
    victim.scale(name, min_instances=2)  # how long one takes to start is not what is asked here
    instance, _ = wait_until(lambda: len(ready := victim.instances(name, "ready")) == 2 and ready, what="two of them")
    with bystander.watch("SIGSTOP of an instance, until it was replaced") as row:
        os.kill(instance["pid"], signal.SIGSTOP)
        codes = Calls(victim, name, {"deed": "answer"}, 4, TIMEOUT_S).codes()
        assert set(codes) <= {"ok", "deadline_exceeded"} and codes.count("ok") >= 2, codes
        assert victim.answer(name, {"deed": "answer"}) == "done", "the other instance"
        wait_until(lambda: not psutil.pid_exists(instance["pid"]), what="the hung one to be replaced")
        row.recovered()
    assert victim.answer(name, {"deed": "answer"}) == "done"


@pytest.mark.parametrize("seconds", [3600.0, -3600.0])
def test_the_clock_steps(victim: Caller, bystander: Bystander, clock: SteppedClock, seconds: float) -> None:
    """There and back: what is measured between processes must not be lost in the past or held back by the future."""
    before = deployed(victim, f"before{seconds:+.0f}".replace("+", "-plus"))
    after = f"after{seconds:+.0f}".replace("+", "-plus")
    with bystander.watch(f"the clock steps by {seconds:+.0f} s, until a cold start works") as row:
        clock.step(seconds)
        try:
            assert victim.answer(before, {"deed": "answer"}) == "done"
            victim.deploy("echo_sum", after)
            wait_until(lambda: answers(victim, after, {"values": [1]}), what="a cold start")
            row.recovered()
        finally:
            clock.step(0.0)
        began_s = time.monotonic()
        wait_until(lambda: time.monotonic() - began_s > 2.0, what="the clock to be back for a while")
        assert victim.answer(after, {"values": [2]}) == 2


def test_a_failed_boot_is_tried_again_after_the_clock_went_back(
    victim: Caller, bystander: Bystander, clock: SteppedClock
) -> None:
    """Its back-off ends at an instant of the wall clock, which is an hour away now."""
    clock.step(3600.0)
    try:
        victim.deploy("raises_in_load", "comes-back")
        assert timed_call(victim, "comes-back", {}, 10.0).code == "load_failed"
        with bystander.watch("the clock goes back during the back-off of a failed boot") as row:
            clock.step(0.0)
            first = victim.invoke("comes-back", {})
            assert float(first.headers.get("retry-after", "0")) < 120, first.text
            row.recovered()
    finally:
        clock.step(0.0)
