"""Driving a generation engine by hand: listeners that write down what they hear, greedy sampling, `generate` beside."""

from __future__ import annotations

import functools
from collections.abc import Sequence as Row
from dataclasses import dataclass, field
from typing import Any

import torch
from transformers import AutoModelForCausalLM

from samovar.tasks.generation import FinishReason
from samovar.torch import load_pretrained
from samovar_instance.engines.generation.contract import EndReason, GenerationEngine, Sequence, Token
from support.tiny_models import tiny_model


@dataclass
class Heard:
    """A listener. stop_after: tokens after which it ends its sequence; raises: what it raises then instead."""

    stop_after: int | None = None
    raises: Exception | None = None
    tokens: list[int] = field(default_factory=list)
    ends: list[tuple[EndReason, Exception | None]] = field(default_factory=list)

    def token(self, token: Token) -> FinishReason | None:
        self.tokens.append(token.id)
        if self.stop_after != len(self.tokens):
            return None
        if self.raises is not None:
            raise self.raises
        return "stop"

    def ended(self, reason: EndReason, error: Exception | None) -> None:
        self.ends.append((reason, error))

    @property
    def reason(self) -> EndReason | None:
        """Why it ended, None if it has not. Ending twice is an error."""
        assert len(self.ends) <= 1
        return self.ends[0][0] if self.ends else None


def greedy(logits: Any, states: Row[Any]) -> list[Token | Exception]:
    """The sampler that takes the likeliest token; a state that is an error is its row's."""
    return [
        state if isinstance(state, Exception) else Token(token)
        for token, state in zip(logits.argmax(-1).tolist(), states, strict=True)
    ]


def sequence(prompt: Row[int], max_tokens: int, listener: Heard | None = None, **more: Any) -> Sequence:
    """A sequence with a listener of its own."""
    return Sequence(
        prompt=[*prompt],
        max_tokens=max_tokens,
        sampling=more.pop("sampling", None),
        listener=listener or Heard(),
        **more,
    )


def run_all(engine: GenerationEngine, sequences: Row[Sequence], *, max_steps: int = 10_000) -> None:
    """Add sequences and step until there is nothing left to do."""
    for each in sequences:
        engine.add(each)
    finish(engine, max_steps=max_steps)


def finish(engine: GenerationEngine, *, max_steps: int = 10_000) -> None:
    """Step until there is nothing left to do."""
    for _ in range(max_steps):
        if not engine.has_work:
            return
        engine.step()
    raise AssertionError(f"not finished after {max_steps} steps")


@functools.cache
def oracle(kind: str) -> Any:
    """A tiny model of a kind, as transformers loads it, for `expected`."""
    torch.set_num_threads(1)
    return AutoModelForCausalLM.from_pretrained(tiny_model(kind)).eval()


def load(kind: str) -> Any:
    """A tiny model of a kind as an engine gets it: it is the engine's own from then on."""
    torch.set_num_threads(1)
    return load_pretrained(tiny_model(kind), AutoModelForCausalLM)


@functools.cache
def expected(kind: str, prompt: tuple[int, ...], max_tokens: int) -> list[int]:
    """What `generate` makes of a prompt, greedily; the token that ends it included."""
    ids = torch.tensor([prompt])
    out = oracle(kind).generate(
        ids, attention_mask=torch.ones_like(ids), max_new_tokens=max_tokens, do_sample=False, pad_token_id=0
    )
    return list(out[0, len(prompt) :].tolist())
