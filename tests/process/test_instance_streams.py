"""Generator handlers on a real instance: chunks, credit, cancellation, failures half-way."""

from __future__ import annotations

import msgspec
import pytest

from samovar import wire
from support.instance_driver import FUNCTIONS, Caller, Instance, Zygote
from support.waiting import wait_until

pytestmark = pytest.mark.process


@pytest.fixture(params=["streams", "async_streams"])
def instance(zygote: Zygote, request: pytest.FixtureRequest) -> Instance:
    return zygote.start(FUNCTIONS / request.param)


@pytest.fixture
def caller(instance: Instance) -> Caller:
    return instance.connect()


def chunks(caller: Caller, count: int) -> list[int]:
    return [msgspec.json.decode(caller.expect(wire.Chunk).body)["i"] for _ in range(count)]


def test_every_item_is_a_chunk_and_an_end_follows(caller: Caller) -> None:
    number = caller.invoke({"n": 3}, accept_stream=True)
    assert chunks(caller, 3) == [0, 1, 2]
    assert caller.expect(wire.End).id == number


def test_a_caller_that_takes_no_stream_gets_lines(caller: Caller) -> None:
    caller.invoke({"n": 3})
    result = caller.expect(wire.Result)
    assert result.body == b'{"i":0}\n{"i":1}\n{"i":2}\n'
    assert result.content_type == "application/x-ndjson"


def test_a_stream_goes_no_further_than_its_credit(caller: Caller, instance: Instance) -> None:
    number = caller.invoke({"n": 100}, accept_stream=True)
    assert chunks(caller, wire.STREAM_WINDOW) == list(range(wire.STREAM_WINDOW))
    with pytest.raises(TimeoutError):
        while True:
            assert not isinstance(caller.next(timeout_s=0.2), wire.Chunk)
    caller.send(wire.Credit(number, 5))
    assert chunks(caller, 5) == list(range(wire.STREAM_WINDOW, wire.STREAM_WINDOW + 5))
    caller.send(wire.Credit(number, 1000))
    assert len(chunks(caller, 100 - wire.STREAM_WINDOW - 5)) == 79
    assert caller.expect(wire.End).id == number


@pytest.mark.parametrize("pause_s", [0.02, 0.0], ids=["while it runs", "while it waits for credit"])
def test_cancel_closes_the_generator(caller: Caller, instance: Instance, pause_s: float) -> None:
    number = caller.invoke({"n": 1_000_000, "pause_s": pause_s}, accept_stream=True)
    chunks(caller, 2)
    caller.send(wire.Cancel(number))
    frame = caller.next()
    while isinstance(frame, wire.Chunk):
        frame = caller.next()
    assert isinstance(frame, wire.Failure) and frame.code == "cancelled"
    wait_until(lambda: "stream closed" in instance.log_text())
    caller.invoke({"n": 1}, accept_stream=True)
    assert chunks(caller, 1) == [0], "the slot is free"


def test_a_reader_that_vanishes_closes_the_generator(caller: Caller, instance: Instance) -> None:
    caller.invoke({"n": 1_000_000}, accept_stream=True)
    chunks(caller, 1)
    caller.close()
    wait_until(lambda: "stream closed" in instance.log_text())


def test_an_error_half_way_ends_the_stream_with_it(zygote: Zygote) -> None:
    caller = zygote.start(FUNCTIONS / "streams").connect()
    caller.invoke({"n": 5, "fail_at": 2}, accept_stream=True)
    assert chunks(caller, 2) == [0, 1]
    assert caller.expect(wire.Failure).detail == "ValueError: spilt"


def test_wrong_input_fails_before_the_first_item(caller: Caller) -> None:
    caller.invoke({"n": "many"}, accept_stream=True)
    assert caller.expect(wire.Failure).code == "invalid_input"


def test_a_deadline_ends_a_stream(caller: Caller, instance: Instance) -> None:
    caller.invoke({"n": 1000, "pause_s": 0.02}, timeout_ms=100, accept_stream=True)
    frame = caller.next()
    while isinstance(frame, wire.Chunk):
        frame = caller.next()
    assert isinstance(frame, wire.Failure)
    assert (frame.code, frame.extra["phase"]) == ("deadline_exceeded", "run")


def test_a_drain_lets_streams_finish(caller: Caller, instance: Instance, zygote: Zygote) -> None:
    number = caller.invoke({"n": 5, "pause_s": 0.2}, accept_stream=True)
    chunks(caller, 1)
    instance.control().send(wire.Drain(5))
    frames = [caller.next() for _ in range(6)]
    (goodbye,) = [frame for frame in frames if isinstance(frame, wire.Goodbye)]
    assert goodbye.reason == "drain"
    assert [msgspec.json.decode(frame.body)["i"] for frame in frames if isinstance(frame, wire.Chunk)] == [1, 2, 3, 4]
    assert isinstance(frames[-1], wire.End) and frames[-1].id == number
    assert zygote.exit_code(instance) == 0


def test_async_streams_run_side_by_side(zygote: Zygote) -> None:
    caller = zygote.start(FUNCTIONS / "async_streams").connect()
    slow = caller.invoke({"n": 1000, "pause_s": 0.02}, accept_stream=True)
    quick = caller.invoke({"n": 3}, accept_stream=True)
    seen = []
    while not isinstance(frame := caller.next(), wire.End):
        seen.append(frame.id)
    assert frame.id == quick and slow in seen
