"""Batches of similar lengths on a real instance: who is batched with whom, and that each gets its own."""

from __future__ import annotations

import json
from typing import Any

import pytest

from samovar import wire
from support.instance_driver import FUNCTIONS, Caller, Zygote

pytestmark = pytest.mark.process


@pytest.fixture
def caller(zygote: Zygote) -> Caller:
    return zygote.start(FUNCTIONS / "ragged").connect()


def together(caller: Caller, texts: list[str]) -> list[wire.Result | wire.Failure]:
    """Send the texts in one write; return their ends in the same order."""
    frames = [wire.Invoke(k, json.dumps({"text": text}).encode(), 30_000.0) for k, text in enumerate(texts)]
    caller.send(*frames)
    ends = caller.answers(len(texts))
    return [ends[frame.id] for frame in frames]


def answers(ends: list[wire.Result | wire.Failure]) -> list[dict[str, Any]]:
    return [json.loads(end.body) for end in ends if isinstance(end, wire.Result)]


def test_texts_of_similar_lengths_are_batched_and_each_gets_its_own(caller: Caller) -> None:
    texts = ["a" * 4, "b" * 20, "c" * 5, "d" * 19, "e" * 4]
    found = answers(together(caller, texts))
    assert [answer["text"] for answer in found] == texts
    assert [(answer["longest"], answer["batch"]) for answer in found] == [(5, 3), (20, 2), (5, 3), (20, 2), (5, 3)]


def test_a_batch_keeps_below_max_tokens(caller: Caller) -> None:
    assert [answer["batch"] for answer in answers(together(caller, ["a" * 10] * 6))] == [4, 4, 4, 4, 2, 2]


def test_a_text_without_a_length_or_that_is_too_long_fails_alone(caller: Caller) -> None:
    ends = together(caller, ["fine", "?", "minus", "x" * 41, "good"])
    assert [end.code for end in ends if isinstance(end, wire.Failure)] == [
        "function_raised",
        "function_raised",
        "invalid_input",
    ]
    assert isinstance(ends[3], wire.Failure) and "41 tokens" in ends[3].detail
    assert [answer["batch"] for answer in answers(ends)] == [2, 2]


def test_one_withdrawn_from_the_middle_is_not_run_and_harms_nobody(caller: Caller) -> None:
    caller.send(wire.Invoke(100, b'{"text": "slow one"}', 30_000.0, True))
    caller.expect(wire.Started)
    texts = ["a" * 4, "b" * 20, "c" * 5, "d" * 20]
    caller.send(*[wire.Invoke(k, json.dumps({"text": text}).encode(), 30_000.0) for k, text in enumerate(texts)])
    caller.send(wire.Cancel(2))
    ends = caller.answers(5)
    assert [ends[2].code, ends[2].started] == ["cancelled", False]
    assert [json.loads(ends[k].body)["batch"] for k in (0, 1, 3)] == [1, 2, 2]
