"""Text generation by our engine in a real instance: streams, cancels, deadlines, refusals, and who is unharmed."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

from samovar import wire
from samovar.tasks.generation import GenerationOutput
from support.instance_driver import FUNCTIONS, Caller, Instance, Zygote
from support.tiny_models import tiny_model

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def instance(session_zygote: Zygote) -> Iterator[Instance]:
    """One instance for all: what a test leaves behind, the next one would notice."""
    instance = session_zygote.start(FUNCTIONS / "chats", weights=tiny_model("llama"))
    yield instance
    session_zygote.clean()


@pytest.fixture
def caller(instance: Instance) -> Iterator[Caller]:
    caller = instance.connect()
    yield caller
    caller.close()


def streamed(caller: Caller, body: dict[str, Any]) -> list[GenerationOutput]:
    """Return the pieces of an answer, read as they come."""
    number = caller.invoke(body, accept_stream=True)
    pieces: list[GenerationOutput] = []
    while not isinstance(frame := caller.next(), wire.End):
        assert isinstance(frame, wire.Chunk), frame
        pieces.append(msgspec.json.decode(frame.body, type=GenerationOutput))
        caller.send(wire.Credit(number, 1))
    return pieces


def test_text_comes_piece_by_piece(caller: Caller) -> None:
    pieces = streamed(caller, {"prompt": "the cat and", "max_tokens": 12, "temperature": 0, "ignore_eos": True})
    assert len(pieces) > 2
    assert [piece.finish_reason for piece in pieces[:-1]] == [None] * (len(pieces) - 1)
    assert pieces[-1].finish_reason == "length"
    assert pieces[-1].usage is not None and pieces[-1].usage.completion_tokens == 12
