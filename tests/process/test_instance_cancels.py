"""Callers who leave: whatever runs for them stops, within the grace, and nobody else is harmed."""

from __future__ import annotations

import time
from typing import Any

import pytest

from samovar import wire
from samovar.spec import Limits
from samovar_instance.server import EXIT_OVERRUN
from support.instance_driver import FUNCTIONS, Caller, Zygote

pytestmark = pytest.mark.process

SHORT_GRACE, LONG_GRACE = Limits(overrun_grace_s=0.1), Limits(overrun_grace_s=20.0)


def start(caller: Caller, body: object) -> int:
    """Send a call and wait until user code has it."""
    number = caller.invoke(body, notify_start=True)
    caller.expect(wire.Started)
    return number


def test_sync_code_whose_caller_left_is_ended_after_the_grace(zygote: Zygote) -> None:
    instance = zygote.start(FUNCTIONS / "hangs")
    caller, other = instance.connect(), instance.connect()
    left = start(caller, {"sleep_s": 60})
    waiting = other.invoke({"sleep_s": 0})
    left_s = time.monotonic()
    caller.send(wire.Cancel(left))
    failure = caller.expect(wire.Failure)
    assert (failure.id, failure.code) == (left, "cancelled")
    assert time.monotonic() - left_s >= 0.3, "it had the grace to stop by itself"
    assert caller.expect(wire.Goodbye).reason == "abandoned"
    assert other.expect(wire.Busy) == wire.Busy(waiting, 0, draining=True), "never started: to be sent elsewhere"
    assert zygote.exit_code(instance) == EXIT_OVERRUN
    assert "after its caller left" in instance.log_text()


def test_sync_code_that_ends_within_the_grace_keeps_its_process(zygote: Zygote) -> None:
    instance = zygote.start(FUNCTIONS / "hangs", limits=LONG_GRACE)
    caller = instance.connect()
    left = start(caller, {"sleep_s": 1.5})
    caller.send(wire.Cancel(left))
    assert caller.expect(wire.Failure).code == "cancelled"
    assert caller.call({"sleep_s": 0}) == "awake"


def test_a_gateway_that_dies_takes_no_busy_instance_with_it(zygote: Zygote) -> None:
    instance = zygote.start(FUNCTIONS / "hangs", limits=SHORT_GRACE)
    gone, other = instance.connect(), instance.connect()
    start(gone, {"sleep_s": 1.5})
    gone.close()
    assert other.call({"sleep_s": 0}) == "awake"


def test_a_call_that_is_only_to_be_withdrawn_goes_on_once_it_runs(zygote: Zygote) -> None:
    instance = zygote.start(FUNCTIONS / "hangs")
    caller = instance.connect()
    running = start(caller, {"sleep_s": 1.5})
    waiting = caller.invoke({"sleep_s": 0})
    caller.send(wire.Cancel(running, if_waiting=True), wire.Cancel(waiting, if_waiting=True))
    ends = caller.answers(2)
    assert list(ends) == [waiting, running]
    assert isinstance(ends[running], wire.Result) and ends[waiting].code == "cancelled"


def test_a_patient_cancel_ends_no_process(zygote: Zygote) -> None:
    caller = zygote.start(FUNCTIONS / "hangs", limits=SHORT_GRACE).connect()
    spare = start(caller, {"sleep_s": 1.5})
    caller.send(wire.Cancel(spare, patient=True))
    assert caller.expect(wire.Failure).code == "cancelled"
    assert caller.call({"sleep_s": 0}) == "awake"


def test_an_item_leaves_the_batch_that_forms_and_its_mates_do_not_notice(zygote: Zygote) -> None:
    caller = zygote.start(FUNCTIONS / "batched").connect()
    start(caller, {"x": 0.5})
    stays, leaves = caller.invoke({"x": 4}), caller.invoke({"x": 9})
    caller.send(wire.Cancel(leaves))
    failure = caller.expect(wire.Failure)
    assert (failure.id, failure.code, failure.started) == (leaves, "cancelled", False)
    ends = caller.answers(2)
    assert (ends[stays].body, ends[stays].batch_size) == (b"2.0", 1)


def test_a_running_batch_is_not_ended_while_one_member_is_wanted(zygote: Zygote) -> None:
    instance = zygote.start(FUNCTIONS / "batched", limits=SHORT_GRACE)
    caller = instance.connect()
    body = [b'{"x": 0.5}', b'{"x": 4}']
    caller.send(*(wire.Invoke(number, data, 30_000.0, True) for number, data in enumerate(body, 1)))
    caller.expect(wire.Started)
    caller.send(wire.Cancel(1))
    ends: dict[int, Any] = {}
    while len(ends) < 2:
        frame = caller.next()
        if isinstance(frame, wire.Result | wire.Failure):
            ends[frame.id] = frame
    assert (ends[1].code, ends[2].body) == ("cancelled", b"2.0")
    assert caller.call({"x": 9}) == 3.0


def test_a_batch_that_nobody_wants_is_ended_after_the_grace(zygote: Zygote) -> None:
    instance = zygote.start(FUNCTIONS / "batched", limits=SHORT_GRACE)
    caller = instance.connect()
    left = start(caller, {"x": 0.5})
    caller.send(wire.Cancel(left))
    assert caller.expect(wire.Failure).code == "cancelled"
    assert zygote.exit_code(instance) == EXIT_OVERRUN


def test_an_async_batch_is_cancelled_once_nobody_wants_it(zygote: Zygote) -> None:
    instance = zygote.start(FUNCTIONS / "async_batched")
    caller = instance.connect()
    frames = [wire.Invoke(number, b'{"x": 60}', 30_000.0, True) for number in (1, 2)]
    caller.send(*frames)
    for _ in frames:
        caller.expect(wire.Started)
    caller.send(wire.Cancel(1), wire.Cancel(2))
    assert {caller.expect(wire.Failure).code for _ in frames} == {"cancelled"}
    assert "batch cancelled" in instance.log_text()
    assert caller.call({"x": 4}) == 8
    late = caller.fail({"x": 60}, timeout_ms=100)
    assert (late.code, late.extra["phase"]) == ("deadline_exceeded", "run")
    assert caller.call({"x": 5}) == 10


def test_a_coroutine_that_will_not_stop_keeps_its_slot_while_its_mates_are_wanted(zygote: Zygote) -> None:
    instance = zygote.start(FUNCTIONS / "stubborn")
    caller = instance.connect()
    left = start(caller, {"sleep_s": 60, "ignores": True})
    mate = caller.invoke({"sleep_s": 0.8})
    caller.send(wire.Cancel(left))
    assert caller.expect(wire.Result).id == mate
    failure = caller.expect(wire.Failure)
    assert (failure.id, failure.code) == (left, "cancelled")
    assert zygote.exit_code(instance) == EXIT_OVERRUN, "nobody it held up is left"
