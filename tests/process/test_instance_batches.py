"""Batches on a real instance: what joins, what waits, who fails."""

from __future__ import annotations

import math

import pytest

from samovar import wire
from support.instance_driver import FUNCTIONS, Caller, Instance, Zygote

pytestmark = pytest.mark.process


@pytest.fixture
def instance(zygote: Zygote) -> Instance:
    return zygote.start(FUNCTIONS / "batched")


@pytest.fixture
def caller(instance: Instance) -> Caller:
    return instance.connect()


def together(caller: Caller, values: list[float]) -> list[wire.Result | wire.Failure]:
    """Send the values in one write; return their ends in the same order."""
    frames = [wire.Invoke(10_000 + k, b'{"x": %f}' % value, 30_000.0) for k, value in enumerate(values)]
    caller.send(*frames)
    ends = caller.answers(len(values))
    return [ends[frame.id] for frame in frames]


def roots(ends: list[wire.Result | wire.Failure]) -> list[float | str]:
    return [float(end.body) if isinstance(end, wire.Result) else end.code for end in ends]


def test_items_of_one_read_form_one_batch_up_to_max_size(caller: Caller) -> None:
    ends = together(caller, [float(k) for k in range(1, 13)])
    assert roots(ends) == [math.sqrt(k) for k in range(1, 13)]
    sizes = [end.batch_size for end in ends if isinstance(end, wire.Result)]
    assert sizes == [8] * 8 + [4] * 4


def test_an_idle_instance_does_not_wait(caller: Caller) -> None:
    (end,) = together(caller, [4.0])
    assert isinstance(end, wire.Result)
    assert (end.batch_size, float(end.body)) == (1, 2.0)


def test_only_the_culprit_of_a_batch_fails(caller: Caller, instance: Instance) -> None:
    ends = together(caller, [1.0, 4.0, -1.0, 9.0])
    assert roots(ends) == [1.0, 2.0, "function_raised", 3.0]
    assert [end.batch_size for end in ends if isinstance(end, wire.Result)] == [1, 1, 1], "they were run alone"
    assert instance.log_text().count("Traceback") == 1


def test_an_item_may_be_an_error_of_its_own(caller: Caller) -> None:
    ends = together(caller, [1.0, -2.0, 9.0])
    assert roots(ends) == [1.0, "function_raised", 3.0]
    assert isinstance(ends[1], wire.Failure) and ends[1].extra == {"type": "ValueError"}
    assert isinstance(ends[0], wire.Result) and ends[0].batch_size == 3


def test_a_bad_item_never_joins_a_batch(caller: Caller) -> None:
    caller.send(
        wire.Invoke(1, b'{"x": 1}', 30_000.0),
        wire.Invoke(2, b'{"x": "one"}', 30_000.0),
        wire.Invoke(3, b'{"x": 13}', 30_000.0),
        wire.Invoke(4, b'{"x": 5000}', 30_000.0),
        wire.Invoke(5, b'{"x": 4}', 30_000.0),
    )
    ends = caller.answers(5)
    assert [ends[k].code for k in (2, 3, 4)] == ["invalid_input", "function_raised", "invalid_input"]
    assert "cannot be weighed" in ends[3].detail and "costs 5000" in ends[4].detail
    assert [(ends[k].batch_size, float(ends[k].body)) for k in (1, 5)] == [(2, 1.0), (2, 2.0)]


def test_a_batch_keeps_below_max_cost(caller: Caller) -> None:
    ends = together(caller, [600.0, 300.0, 200.0])
    assert [end.batch_size for end in ends if isinstance(end, wire.Result)] == [2, 2, 1]


def test_a_wrong_number_of_outputs_is_everybodys_error(caller: Caller) -> None:
    ends = together(caller, [1.0, -3.0])
    assert roots(ends) == ["bad_output", "bad_output"]
    assert isinstance(ends[0], wire.Failure) and "0 outputs for 2 items" in ends[0].detail


def test_an_item_that_expires_while_the_model_is_busy_is_not_run(caller: Caller) -> None:
    caller.send(wire.Invoke(1, b'{"x": 0.5}', 30_000.0, True))
    caller.expect(wire.Started)
    caller.send(wire.Invoke(2, b'{"x": 4}', 50.0), wire.Invoke(3, b'{"x": 4}', 30_000.0))
    ends = caller.answers(3)
    assert list(ends) == [2, 1, 3]
    assert (ends[2].code, ends[2].started) == ("deadline_exceeded", False)
    assert ends[3].batch_size == 1


def test_items_wait_for_company_only_as_long_as_allowed(caller: Caller) -> None:
    together(caller, [float(k) for k in range(1, 9)])
    (end,) = together(caller, [4.0])
    assert isinstance(end, wire.Result)
    assert end.batch_size == 1, "nobody else came"


def test_an_async_batch_handler(zygote: Zygote) -> None:
    caller = zygote.start(FUNCTIONS / "async_batched").connect()
    caller.send(*[wire.Invoke(k, b'{"x": %d}' % k, 30_000.0) for k in (11, 12, 13, 14)])
    ends = caller.answers(4)
    assert [ends[k].body for k in (11, 12, 14)] == [b"22", b"24", b"28"]
    assert ends[13].code == "function_raised"
