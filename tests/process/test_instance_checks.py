"""A ready instance asked whether it is well: its own check, and its example, in its turn like a call."""

from __future__ import annotations

import pytest

from samovar import wire
from support.instance_driver import FUNCTIONS, Caller, Zygote

pytestmark = pytest.mark.process


def check(caller: Caller, number: int, timeout_ms: float = 10_000) -> wire.Message:
    """Return how one Check ended."""
    caller.send(wire.Check(number, timeout_ms))
    end = caller.next()
    while isinstance(end, wire.Stats):
        end = caller.next()
    assert isinstance(end, wire.Result | wire.Failure | wire.Busy)
    assert end.id == number
    return end


@pytest.mark.parametrize("name", ["echo_sum", "streams", "batched", "async_echo", "async_batched", "async_streams"])
def test_every_kind_of_handler_can_be_checked(zygote: Zygote, name: str) -> None:
    caller = zygote.start(FUNCTIONS / name).connect()
    for number in (10**6, 10**6 + 1):
        end = check(caller, number)
        assert isinstance(end, wire.Result), end
        assert end.body == b"null"


@pytest.mark.parametrize(("mood", "said"), [("unwell", "the samovar leaks"), ("forgetful", "forgot what tea is")])
def test_a_check_that_fails_is_told_and_the_instance_goes_on(zygote: Zygote, mood: str, said: str) -> None:
    caller = zygote.start(FUNCTIONS / "moody").connect()
    assert caller.call({"mood": mood}) == mood
    end = check(caller, 10**6)
    assert isinstance(end, wire.Failure)
    assert (end.code, end.status) == ("function_raised", 500)
    assert said in end.detail
    assert isinstance(check(caller, 10**6 + 1), wire.Failure)


def test_a_check_waits_its_turn(zygote: Zygote) -> None:
    caller = zygote.start(FUNCTIONS / "misbehaves").connect()
    running = caller.invoke({"deed": "sleep", "amount": 0.3})
    caller.send(wire.Check(10**6, 10_000))
    assert [caller.expect(wire.Result).id for _ in range(2)] == [running, 10**6]
