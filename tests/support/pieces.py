"""What an instance streams when it generates: pieces of answers, read from its frames."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from samovar import wire
from samovar.tasks.generation import GenerationOutput
from support.instance_driver import Caller


def pieces_of(caller: Caller, number: int) -> Iterator[GenerationOutput]:
    """Yield the pieces of one answer as they come; frames of other calls must not come meanwhile."""
    while not isinstance(frame := caller.next(), wire.End):
        assert isinstance(frame, wire.Chunk) and frame.id == number, frame
        caller.send(wire.Credit(number, 1))
        yield msgspec.json.decode(frame.body, type=GenerationOutput)


def streamed(caller: Caller, body: dict[str, Any]) -> list[GenerationOutput]:
    """Return the pieces of one answer."""
    return [*pieces_of(caller, caller.invoke(body, accept_stream=True))]


def text_of(pieces: list[GenerationOutput], index: int = 0) -> str:
    """Return the text of one choice."""
    return "".join(piece.text for piece in pieces if piece.index == index)


def failure(caller: Caller) -> wire.Failure:
    """Return how a stream failed, skipping what came of it before."""
    while not isinstance(frame := caller.next(), wire.Failure):
        assert isinstance(frame, wire.Chunk), frame
    return frame
