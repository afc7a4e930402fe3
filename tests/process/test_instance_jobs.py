"""Queued jobs on a real instance: what handlers see and say, how a job is stopped, and that jobs give way."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from samovar import wire
from samovar_instance.server import EXIT_OVERRUN
from support.instance_driver import FUNCTIONS, Caller, Zygote

pytestmark = pytest.mark.process

JOB = wire.JobTag("tea-1", 2, 7)


def run(caller: Caller, body: object, job: wire.JobTag | None = JOB, **options: Any) -> tuple[list[Any], Any]:
    """Make one call; return what its handler said meanwhile, and its end."""
    caller.invoke(body, job=job, **options)
    said = []
    while isinstance(frame := caller.next(), wire.Progress | wire.LogLine):
        said.append(frame)
    return said, frame


def test_a_handler_sees_the_job_it_works_on_and_an_invocation_is_none(zygote: Zygote) -> None:
    caller = zygote.start(FUNCTIONS / "works").connect()
    _, end = run(caller, {"deed": "facts"}, timeout_ms=200_000, request_id="r-9")
    *facts, remaining_s, is_cancelled = msgspec.json.decode(end.body)
    assert (facts, is_cancelled) == (["tea-1", 2, 7, "r-9"], False) and 100 < remaining_s <= 200
    _, end = run(caller, {"deed": "facts"}, None, timeout_ms=200_000)
    *facts, remaining_s, is_cancelled = msgspec.json.decode(end.body)
    assert (facts, is_cancelled) == (["", 1, 0, ""], False) and 100 < remaining_s <= 200


def test_of_much_progress_a_little_is_sent_and_always_the_last(zygote: Zygote) -> None:
    caller = zygote.start(FUNCTIONS / "works").connect()
    said, end = run(caller, {"deed": "reports", "num": 5000})
    assert isinstance(end, wire.Result) and 1 <= len(said) < 100
    assert said[-1] == wire.Progress(end.id, 1.0, "row 5000")
    assert [frame.fraction for frame in said] == sorted(frame.fraction for frame in said)
    assert run(caller, {"deed": "reports", "num": 50}, None)[0] == [], "nobody listens to this invocation"
    said, end = run(caller, {"deed": "reports", "num": 50}, None, hear=True)
    assert said[-1] == wire.Progress(end.id, 1.0, "row 50"), "to this one its caller does"


def test_log_lines_go_to_the_events_and_to_the_log_within_bounds(zygote: Zygote) -> None:
    instance = zygote.start(FUNCTIONS / "works")
    said, _ = run(instance.connect(), {"deed": "logs", "num": 500})
    lines = [frame.line for frame in said]
    assert lines[0].startswith("line 0 éé") and len(lines[0].encode()) <= 8192
    assert lines[1] == "line 1 " and 100 < len(lines) < 450, "a hundred a second, and a word on the others"
    num_lost = sum(int(line.split()[1]) for line in lines if line.startswith("[samovar]"))
    num_kept = sum(line.startswith("line") for line in lines)
    assert num_lost + num_kept == 500
    assert "line 499" in instance.log_text(), "the log has them all"


def test_any_thread_may_speak_but_nobody_after_the_end(zygote: Zygote) -> None:
    caller = zygote.start(FUNCTIONS / "works").connect()
    said, end = run(caller, {"deed": "helped"})
    assert {type(frame) for frame in said} == {wire.LogLine, wire.Progress}
    assert {frame.id for frame in said} == {end.id}
    run(caller, {"deed": "keeps"})
    assert run(caller, {"deed": "keeps"})[0] == []


@pytest.mark.parametrize("deed", ["polls", "raises"])
def test_a_sync_job_that_listens_ends_by_itself_when_cancelled(zygote: Zygote, deed: str) -> None:
    instance = zygote.start(FUNCTIONS / "works")
    caller = instance.connect()
    running = caller.invoke({"deed": deed}, job=JOB, notify_start=True)
    caller.expect(wire.Started)
    caller.send(wire.Cancel(running))
    failure = caller.expect(wire.Failure)
    assert (failure.id, failure.code) == (running, "cancelled")
    assert caller.call({"deed": "facts"})[0] == "", "the process goes on"


@pytest.mark.parametrize("deed", ["polls", "raises"])
def test_a_handler_sees_that_its_deadline_passed(zygote: Zygote, deed: str) -> None:
    caller = zygote.start(FUNCTIONS / "works").connect()
    _, end = run(caller, {"deed": deed}, timeout_ms=100)
    if deed == "raises":
        assert (end.code, end.extra["phase"]) == ("deadline_exceeded", "run")
    assert caller.call({"deed": "facts"})[0] == ""


def test_a_sync_job_that_hears_nothing_is_ended_and_innocent_calls_are_given_back(zygote: Zygote) -> None:
    instance = zygote.start(FUNCTIONS / "works")
    worker, gateway = instance.connect(), instance.connect()
    running = worker.invoke({"deed": "spins", "num": 30}, job=JOB)
    worker.expect(wire.Progress)
    waiting = gateway.invoke({"deed": "facts"})
    worker.send(wire.Cancel(running))
    failure = worker.expect(wire.Failure)
    assert (failure.id, failure.code) == (running, "cancelled")
    assert worker.expect(wire.Goodbye).reason == "abandoned"
    assert gateway.expect(wire.Busy) == wire.Busy(waiting, 0, draining=True)
    assert zygote.exit_code(instance) == EXIT_OVERRUN


def test_a_job_beyond_its_deadline_is_no_breakdown_of_the_instance(zygote: Zygote) -> None:
    instance = zygote.start(FUNCTIONS / "works")
    worker = instance.connect()
    worker.invoke({"deed": "spins", "num": 30}, job=JOB, timeout_ms=300)
    worker.expect(wire.Progress)
    assert worker.expect(wire.Failure).code == "deadline_exceeded"
    assert worker.expect(wire.Goodbye).reason == "abandoned"


def test_an_async_job_is_cancelled_and_a_stream_is_closed(zygote: Zygote) -> None:
    instance = zygote.start(FUNCTIONS / "works_async")
    caller = instance.connect()
    assert run(caller, {"seconds": 0})[0][0].message == "half"
    running = caller.invoke({"seconds": 30}, job=JOB)
    caller.expect(wire.Progress)
    caller.send(wire.Cancel(running))
    assert caller.expect(wire.Failure).code == "cancelled"
    assert "tea-1 was cancelled: True" in instance.log_text()
    streaming = zygote.start(FUNCTIONS / "works_streaming")
    caller = streaming.connect()
    running = caller.invoke({"num": 10_000}, job=JOB)
    caller.expect(wire.Progress)
    caller.send(wire.Cancel(running))
    while isinstance(frame := caller.next(), wire.Progress):
        pass
    assert (frame.id, frame.code) == (running, "cancelled")
    assert "closed, cancelled: True" in streaming.log_text()


def test_each_item_of_a_batch_has_its_own_context(zygote: Zygote) -> None:
    caller = zygote.start(FUNCTIONS / "works_batched").connect()
    jobs = [wire.JobTag(f"job-{number}", 1, 1) for number in range(2)]
    caller.send(*(wire.Invoke(tag + 1, b'{"text": "t%d"}' % tag, 9e3, job=jobs[tag]) for tag in range(2)))
    lines = sorted((frame.id, frame.line) for frame in (caller.expect(wire.LogLine) for _ in jobs))
    ends = caller.answers(2)
    assert lines == [(1, "t0 with 2"), (2, "t1 with 2")]
    assert [ends[number].body for number in (1, 2)] == [b'"job-0:t0+t1"', b'"job-1:t0+t1"']


def test_a_job_is_admitted_only_while_a_slot_is_free(zygote: Zygote) -> None:
    instance = zygote.start(FUNCTIONS / "works")
    worker, gateway = instance.connect(), instance.connect()
    running = worker.invoke({"deed": "polls"}, job=JOB, notify_start=True)
    worker.expect(wire.Started)
    refused = worker.invoke({"deed": "facts"}, job=JOB)
    assert worker.expect(wire.Busy) == wire.Busy(refused, 1)
    ahead = [gateway.invoke({"deed": "facts"}) for _ in range(3)]
    loads = [1]
    while loads[-1] < 4:  # the two connections are read in any order
        worker.invoke({"deed": "facts"}, job=JOB)
        loads.append(worker.expect(wire.Busy).load)
    worker.send(wire.Cancel(running))
    assert list(gateway.answers(3)) == ahead, "an invocation waits for one job at most"


def test_of_what_comes_together_invocations_run_first(zygote: Zygote) -> None:
    caller = zygote.start(FUNCTIONS / "works").connect()
    frames = [
        wire.Invoke(number, b'{"deed": "facts"}', 9e3, job=JOB if number == 1 else None) for number in range(1, 4)
    ]
    caller.send(*frames)
    assert list(caller.answers(3)) == [2, 3, 1]


def test_jobs_that_wait_for_the_next_batch_give_way_to_invocations(zygote: Zygote) -> None:
    caller = zygote.start(FUNCTIONS / "works_batched").connect()
    slow = caller.invoke({"text": "slow"}, notify_start=True)
    caller.expect(wire.Started)
    jobs = [caller.invoke({"text": "job"}, job=JOB) for _ in range(2)]
    assert caller.invoke({"text": "job"}, job=JOB) == caller.expect(wire.Busy).id
    calls = [caller.invoke({"text": "call"}) for _ in range(3)]
    ends = caller.answers(1)
    while len(ends) < 6:
        frame = caller.next()
        if isinstance(frame, wire.Result):
            ends[frame.id] = frame
    assert list(ends) == [slow, *calls, *jobs]
