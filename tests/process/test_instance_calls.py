"""Invocations on real instances: answers, failures, deadlines, cancellation, crashes, the limits of admission."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from samovar import wire
from samovar.spec import Limits
from samovar_instance.server import EXIT_OVERRUN
from support.instance_driver import FUNCTIONS, Zygote

pytestmark = pytest.mark.process

LONG_GRACE = Limits(overrun_grace_s=20.0)


@pytest.mark.parametrize("tcp", [False, True], ids=["unix", "tcp"])
def test_calls_over_both_kinds_of_socket(zygote: Zygote, tcp: bool) -> None:
    instance = zygote.start(FUNCTIONS / "echo_sum", tcp=tcp)
    callers = [instance.connect() for _ in range(3)]
    sent = [[caller.invoke({"values": [number, k]}) for k in range(10)] for number, caller in enumerate(callers)]
    for number, caller in enumerate(callers):
        ends = caller.answers(10)
        assert [float(ends[call_id].body) for call_id in sent[number]] == [number + k for k in range(10)]


@pytest.mark.parametrize(
    ("body", "code", "status", "extra"),
    [
        (b'{"deed": ', "malformed", 400, {}),
        (b"\xff\xfe", "malformed", 400, {}),
        ({"deed": "raise", "amount": "much"}, "invalid_input", 422, {"path": "$.amount"}),
        ({}, "invalid_input", 422, {"path": "$.deed"}),
        ({"deed": "invalid"}, "invalid_input", 422, {"path": "$.amount"}),
        ({"deed": "raise"}, "function_raised", 500, {"type": "KeyError"}),
        ({"deed": "raise", "amount": 1}, "function_raised", 500, {"type": "Unprintable"}),
        ({"deed": "raise", "amount": 2}, "function_raised", 500, {"type": "ValueError"}),
        ({"deed": "exit"}, "function_raised", 500, {"type": "SystemExit"}),
        ({"deed": "interrupt"}, "function_raised", 500, {"type": "KeyboardInterrupt"}),
        ({"deed": "nan"}, "bad_output", 500, {"path": "$.a[1]"}),
        ({"deed": "unencodable"}, "bad_output", 500, {}),
    ],
    ids=lambda value: str(value)[:30] if isinstance(value, dict | bytes) else "",
)
def test_what_goes_wrong_is_told_and_the_instance_goes_on(
    zygote: Zygote, body: Any, code: str, status: int, extra: dict[str, Any]
) -> None:
    instance = zygote.start(FUNCTIONS / "misbehaves")
    caller = instance.connect()
    failure = caller.fail(body)
    assert (failure.code, failure.status) == (code, status)
    assert extra.items() <= failure.extra.items()
    assert "Traceback" not in failure.detail
    assert caller.call({"deed": "nothing"}) == "done"


def test_a_traceback_goes_to_the_log_and_only_there(zygote: Zygote) -> None:
    instance = zygote.start(FUNCTIONS / "misbehaves")
    failure = instance.connect().fail({"deed": "raise"})
    assert failure.detail == "KeyError: 'tea'"
    log = instance.log_text()
    assert "Traceback" in log and 'raise KeyError("tea")' in log
    assert "samovar_instance" not in log


def test_ten_megabytes_come_back_whole(zygote: Zygote) -> None:
    instance = zygote.start(FUNCTIONS / "misbehaves")
    assert instance.connect().call({"deed": "big", "amount": 10e6}) == "x" * 10_000_000


def test_a_full_instance_is_busy_at_once(zygote: Zygote) -> None:
    instance = zygote.start(FUNCTIONS / "misbehaves")
    caller = instance.connect()
    running = caller.invoke({"deed": "sleep", "amount": 2.0})
    calls = [caller.invoke({"deed": "nothing"}) for _ in range(wire.MAX_PIPELINED + 3)]
    busy = [caller.expect(wire.Busy) for _ in range(3)]
    assert [frame.id for frame in busy] == calls[-3:], "the last ones, and before anything ended"
    assert all(frame.load == 1 + wire.MAX_PIPELINED and not frame.draining for frame in busy)
    ends = caller.answers(1 + wire.MAX_PIPELINED)
    assert next(iter(ends)) == running and all(isinstance(end, wire.Result) for end in ends.values())


def test_a_deadline_in_the_queue_is_told_when_it_passes_and_nothing_is_started(zygote: Zygote) -> None:
    instance = zygote.start(FUNCTIONS / "misbehaves")
    caller = instance.connect()
    running = caller.invoke({"deed": "sleep", "amount": 2.0}, notify_start=True)
    caller.expect(wire.Started)
    waiting = caller.invoke({"deed": "print"}, timeout_ms=100)
    failure = caller.expect(wire.Failure)  # before the running call has ended
    assert (failure.id, failure.code, failure.extra["phase"], failure.started) == (
        waiting,
        "deadline_exceeded",
        "queue",
        False,
    )
    assert caller.expect(wire.Result).id == running
    assert "said" not in instance.log_text()


def test_a_call_that_overruns_keeps_its_slot_until_it_stops(zygote: Zygote) -> None:
    instance = zygote.start(FUNCTIONS / "misbehaves", limits=LONG_GRACE)
    caller = instance.connect()
    late = caller.invoke({"deed": "sleep", "amount": 1.5}, timeout_ms=100, notify_start=True)
    caller.expect(wire.Started)
    other = caller.invoke({"deed": "nothing"})
    ends = caller.answers(2)
    assert list(ends) == [late, other], "the second was started only when the first had stopped"
    assert ends[other].wait_us > 150_000


def test_a_call_beyond_the_grace_ends_the_process_and_nothing_else_is_lost(zygote: Zygote) -> None:
    instance = zygote.start(FUNCTIONS / "misbehaves")
    caller, other = instance.connect(), instance.connect()
    stuck = caller.invoke({"deed": "sleep", "amount": 60}, timeout_ms=100, notify_start=True)
    caller.expect(wire.Started)
    waiting = other.invoke({"deed": "nothing"})
    failure = caller.expect(wire.Failure)
    assert (failure.id, failure.code, failure.extra["phase"]) == (stuck, "deadline_exceeded", "run")
    assert caller.expect(wire.Goodbye).reason == "overrun"
    assert other.expect(wire.Busy) == wire.Busy(waiting, 0, draining=True), "never started: to be sent elsewhere"
    assert zygote.exit_code(instance) == EXIT_OVERRUN
    assert "after its deadline passed" in instance.log_text()


def test_kill_nine_mid_call_closes_the_connection(zygote: Zygote) -> None:
    instance = zygote.start(FUNCTIONS / "misbehaves")
    caller = instance.connect()
    caller.invoke({"deed": "sleep", "amount": 60}, notify_start=True)
    caller.expect(wire.Started)
    os.kill(instance.pid, signal.SIGKILL)
    with pytest.raises((EOFError, ConnectionResetError)):
        caller.next()
    assert zygote.exit_code(instance) == -signal.SIGKILL


def test_a_segfault_leaves_its_place_in_the_log(zygote: Zygote) -> None:
    instance = zygote.start(FUNCTIONS / "misbehaves")
    instance.connect().invoke({"deed": "segfault"})
    assert zygote.exit_code(instance) == -signal.SIGSEGV
    assert "Segmentation fault" in instance.log_text() and "app.py" in instance.log_text()


@pytest.mark.parametrize("timeout_ms", [float("nan"), float("inf"), -1.0, 0.0, 1e308])
def test_a_senseless_deadline_harms_nobody(zygote: Zygote, timeout_ms: float) -> None:
    instance = zygote.start(FUNCTIONS / "misbehaves")
    caller = instance.connect()
    caller.invoke({"deed": "nothing"}, timeout_ms=timeout_ms)
    (end,) = caller.answers(1).values()
    assert isinstance(end, wire.Result) if timeout_ms > 1 else end.code == "deadline_exceeded"
    instance.control().send(wire.Drain(timeout_ms))
    assert zygote.exit_code(instance) == 0


def test_cancel_in_the_queue_and_while_running(zygote: Zygote) -> None:
    instance = zygote.start(FUNCTIONS / "misbehaves", limits=LONG_GRACE)
    caller = instance.connect()
    running = caller.invoke({"deed": "sleep", "amount": 1.5}, notify_start=True)
    caller.expect(wire.Started)
    waiting = caller.invoke({"deed": "print"})
    caller.send(wire.Cancel(waiting), wire.Cancel(running), wire.Cancel(999_999))
    ends = caller.answers(2)
    assert list(ends) == [waiting, running]
    assert [(end.code, end.started) for end in ends.values()] == [("cancelled", False), ("cancelled", True)]
    assert "said" not in instance.log_text()
    assert caller.call({"deed": "nothing"}) == "done"


def test_calls_of_a_caller_that_vanished_are_not_run(zygote: Zygote) -> None:
    instance = zygote.start(FUNCTIONS / "misbehaves", limits=LONG_GRACE)
    gone, other = instance.connect(), instance.connect()
    gone.invoke({"deed": "sleep", "amount": 1.5}, notify_start=True)
    gone.expect(wire.Started)
    gone.invoke({"deed": "print"})
    gone.close()
    assert other.call({"deed": "nothing"}) == "done"
    assert "said" not in instance.log_text()


def test_stats_reach_the_manager(zygote: Zygote) -> None:
    instance = zygote.start(FUNCTIONS / "misbehaves")
    instance.connect().call({"deed": "nothing"})
    instance.connect().fail({"deed": "raise"})
    stats = instance.control().expect(wire.Stats)
    while stats.completed == 0:
        stats = instance.control().expect(wire.Stats)
    assert (stats.state, stats.in_flight, stats.completed, stats.failed) == ("ready", 0, 1, 1)
    assert stats.memory_bytes > 1_000_000


def test_async_calls_run_side_by_side_and_can_be_cancelled(zygote: Zygote) -> None:
    instance = zygote.start(FUNCTIONS / "async_echo")
    caller = instance.connect()
    assert caller.welcome.concurrency == 4
    first = caller.invoke({"text": "slow", "sleep_s": 30}, notify_start=True)
    caller.expect(wire.Started)
    quick = caller.invoke({"text": "quick"})
    assert caller.expect(wire.Result).id == quick
    caller.send(wire.Cancel(first))
    failure = caller.expect(wire.Failure)
    assert (failure.id, failure.code, failure.started) == (first, "cancelled", True)
    expired = caller.invoke({"text": "late", "sleep_s": 30}, timeout_ms=50)
    failure = caller.expect(wire.Failure)
    assert (failure.id, failure.code, failure.extra["phase"]) == (expired, "deadline_exceeded", "run")
    assert "cancelled slow\ncancelled late" in instance.log_text()


def test_an_async_handler_that_blocks_is_ended_after_the_grace(zygote: Zygote) -> None:
    instance = zygote.start(FUNCTIONS / "async_echo")
    caller = instance.connect()
    caller.invoke({"text": "block", "block_s": 60}, timeout_ms=100)
    assert caller.expect(wire.Failure).code == "deadline_exceeded"
    assert zygote.exit_code(instance) == EXIT_OVERRUN


def test_an_async_instance_drains(zygote: Zygote) -> None:
    instance = zygote.start(FUNCTIONS / "async_echo")
    caller = instance.connect()
    running = [caller.invoke({"text": str(k), "sleep_s": 0.2}, notify_start=True) for k in range(4)]
    assert {caller.expect(wire.Started).id for _ in range(4)} == set(running)
    waiting = [caller.invoke({"text": str(k), "sleep_s": 0.2}) for k in range(4)]
    instance.control().send(wire.Drain(5))
    ends = caller.answers(8)
    done = {call_id for call_id, end in ends.items() if isinstance(end, wire.Result)}
    given_back = {call_id for call_id, end in ends.items() if isinstance(end, wire.Busy)}
    assert done | given_back == {*running, *waiting} and given_back <= set(waiting)
    assert zygote.exit_code(instance) == 0


def test_a_drain_under_load_loses_nothing(zygote: Zygote) -> None:
    instance = zygote.start(FUNCTIONS / "echo_sum")
    callers = [instance.connect() for _ in range(4)]
    sent: list[set[int]] = [set() for _ in callers]
    for number, caller in enumerate(callers):
        sent[number] = {caller.invoke({"values": [k]}) for k in range(8)}
    instance.control().send(wire.Drain(5))
    for number, caller in enumerate(callers):
        sent[number] |= {caller.invoke({"values": [k]}) for k in range(8)}
    for number, caller in enumerate(callers):
        ends = caller.answers(16)
        assert set(ends) == sent[number]
        assert all(isinstance(end, wire.Result | wire.Busy) for end in ends.values())
    assert zygote.exit_code(instance) == 0
