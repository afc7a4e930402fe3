"""Text generation by our engine in a real instance: streams, cancels, deadlines, refusals, and who is unharmed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from samovar import wire
from samovar.tasks.generation import GenerationOutput
from support.instance_driver import FUNCTIONS, Caller, Instance, Zygote
from support.pieces import failure, pieces_of, streamed, text_of
from support.tiny_models import tiny_model

pytestmark = pytest.mark.process

LONG: dict[str, Any] = {"prompt": "the cat and", "max_tokens": 400, "temperature": 0, "ignore_eos": True}
SHORT: dict[str, Any] = {"prompt": "the cat and", "max_tokens": 12, "temperature": 0, "ignore_eos": True}
ENDLESS = LONG | {"n": 128}  # minutes of work for an instance that computes one sequence at a time


@pytest.fixture(scope="module")
def instances(session_zygote: Zygote) -> Iterator[dict[str, Instance]]:
    """One of each for all tests: what a test leaves behind, the next one would notice."""
    names = ("chats", "chats_alone")
    yield {name: session_zygote.start(FUNCTIONS / name, weights=tiny_model("llama")) for name in names}
    session_zygote.clean()


@pytest.fixture
def caller(instances: dict[str, Instance]) -> Iterator[Caller]:
    caller = instances["chats"].connect()
    yield caller
    caller.close()


@pytest.fixture
def alone(instances: dict[str, Instance]) -> Iterator[Caller]:
    """A caller of the instance that computes one sequence at a time."""
    caller = instances["chats_alone"].connect()
    yield caller
    caller.close()


def test_text_comes_piece_by_piece(caller: Caller) -> None:
    pieces = streamed(caller, SHORT)
    assert len(pieces) > 2
    assert [piece.finish_reason for piece in pieces[:-1]] == [None] * (len(pieces) - 1)
    assert pieces[-1].finish_reason == "length"
    assert pieces[-1].usage is not None and pieces[-1].usage.completion_tokens == 12


def test_a_caller_that_takes_no_stream_gets_lines(caller: Caller) -> None:
    whole = text_of(streamed(caller, SHORT))
    caller.invoke(SHORT)
    lines = caller.expect(wire.Result).body.splitlines()
    assert "".join(msgspec.json.decode(line).get("text", "") for line in lines) == whole


def test_choices_logprobs_and_a_conversation(caller: Caller) -> None:
    body = {"messages": [{"role": "user", "content": "tea?"}], "n": 3, "seed": 5, "logprobs": 2, "max_tokens": 8}
    pieces = streamed(caller, body)
    assert {piece.index for piece in pieces} == {0, 1, 2}
    told = [each for piece in pieces for each in piece.logprobs]
    assert told and all(len(each.top) == 2 and each.logprob <= 0 for each in told)
    again = streamed(caller, body)
    assert [text_of(again, index) for index in range(3)] == [text_of(pieces, index) for index in range(3)]


def test_a_reader_who_is_behind_gets_what_waits_as_one(caller: Caller) -> None:
    """Beyond its credit nothing is sent, and the answer goes on: then the rest comes as one piece."""
    whole = text_of(streamed(caller, LONG))
    number = caller.invoke(LONG, accept_stream=True)
    first = [caller.expect(wire.Chunk) for _ in range(wire.STREAM_WINDOW)]
    done = caller.invoke(LONG | {"max_tokens": 450})  # ends later than the one that nobody reads
    assert caller.expect(wire.Result).id == done
    caller.send(wire.Credit(number, 1000))
    rest = [*pieces_of(caller, number)]
    assert len(rest) <= 2, "the one that was held, and all that came after it"
    heads = [msgspec.json.decode(chunk.body, type=GenerationOutput) for chunk in first]
    assert text_of(heads + rest) == whole


def test_a_cancel_frees_its_place_at_once(alone: Caller) -> None:
    number = alone.invoke(ENDLESS, accept_stream=True)
    alone.expect(wire.Chunk)
    alone.send(wire.Cancel(number))
    assert failure(alone).code == "cancelled"
    assert text_of(streamed(alone, SHORT))


def test_a_caller_who_vanishes_frees_its_place(instances: dict[str, Instance], alone: Caller) -> None:
    gone = instances["chats_alone"].connect()
    gone.invoke(ENDLESS, accept_stream=True)
    gone.expect(wire.Chunk)
    gone.close()
    assert text_of(streamed(alone, SHORT))


def test_a_deadline_ends_it_and_frees_its_place(instances: dict[str, Instance], alone: Caller) -> None:
    alone.invoke(ENDLESS, timeout_ms=400, accept_stream=True)
    failed = failure(alone)
    assert (failed.code, failed.extra["phase"]) == ("deadline_exceeded", "run")
    assert text_of(streamed(alone, SHORT))
    assert "DeadlineExceeded" not in instances["chats_alone"].log_text(), "it is no fault of the function's"


def test_a_tenant_who_floods_does_not_keep_another_waiting(instances: dict[str, Instance], alone: Caller) -> None:
    other = instances["chats_alone"].connect()
    flood = alone.invoke(ENDLESS | {"max_tokens": 30}, accept_stream=True, tenant="loud")
    alone.expect(wire.Chunk)
    quiet = other.invoke(SHORT, accept_stream=True, tenant="quiet")
    assert text_of([*pieces_of(other, quiet)])
    alone.send(wire.Cancel(flood))
    assert failure(alone).code == "cancelled", "the flood is not over yet"
    other.close()


BAD: list[tuple[str, str, Any]] = [
    ("malformed", "prompt", {"prompt": ""}),
    ("malformed", "prompt", {"prompt": [5, 99_999]}),
    ("malformed", "prompt", {"prompt": [70] * 2049}),
    ("malformed", "prompt", {"prompt": "x" * 10_000_000}),
    ("malformed", "messages", {"messages": [{"role": "user", "content": "x" * 10_000_000}]}),
    ("malformed", "messages", {"messages": []}),
    ("malformed", "max_tokens", {"prompt": "a", "max_tokens": -3}),
    ("malformed", "max_tokens", {"prompt": "a", "max_tokens": 5000}),
    ("malformed", "temperature", {"prompt": "a", "temperature": 1e300}),
    ("malformed", "stop", {"prompt": "a", "stop": ["x"] * 2000}),
    ("malformed", "logit_bias", {"prompt": "a", "logit_bias": {"99999": 1}}),
    ("malformed", "tools", {"prompt": "a", "tools": [{"function": {"name": "f"}}]}),
    (
        "malformed",
        "response_format",
        {"prompt": "a", "response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "tea"}}}},
    ),
    ("invalid_input", "", {"messages": [{"role": "kettle", "content": "hi"}]}),
    ("invalid_input", "", {"prompt": "a", "no_such_field": 1}),
    ("malformed", "", b'{"prompt": "a", "temperature": NaN}'),
    ("malformed", "", b'{"prompt": "\xff\xfe"}'),
    ("malformed", "", b'{"prompt": "\\ud83d"}'),
]


def test_bad_input_is_told_and_harms_nobody(instances: dict[str, Instance], caller: Caller) -> None:
    """All of it while another answer is under way: that one comes out as it does alone."""
    whole = text_of(streamed(caller, LONG))
    other = instances["chats"].connect()
    number = caller.invoke(LONG, accept_stream=True)
    answer = pieces_of(caller, number)
    pieces = [next(answer)]
    for code, param, body in BAD:
        failed = other.fail(body)
        assert (failed.code, failed.extra.get("param", "")) == (code, param), (failed, str(body)[:100])
        pieces += [next(answer)]
    assert text_of([*pieces, *answer]) == whole
    other.close()


def test_it_is_checked_and_warmed_before_it_is_ready(instances: dict[str, Instance]) -> None:
    assert instances["chats"].ready is not None
    assert {"check", "warmup"} <= instances["chats"].ready.boot_ms.keys()
