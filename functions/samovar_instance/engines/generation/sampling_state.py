"""What one sequence asks of the sampler, and what it remembers between steps; the chance it draws from.

    uniform(seed, position)     the same number in any batch, after any preemption, on any machine

This module does not know logits, torch or the other sequences of a step.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Protocol

GREEDY_BELOW = 1e-5  # temperatures that would leave one token anyway


class Grammar(Protocol):
    """What the next token of one sequence may be; see `grammar.py`."""

    @property
    def is_finished(self) -> bool:
        """Whether the text is complete and nothing can follow."""

    def mask(self) -> bytes:
        """Return a bit per token of the vocabulary, lowest bit first. Raises: RequestError if it got stuck."""

    def consume(self, token_id: int) -> None:
        """The token was chosen."""

    def copy(self) -> Grammar:
        """Return one that goes on from here by itself."""


@dataclass(eq=False, slots=True)
class SamplingState:
    """Knobs of one sequence, with the ranges of `GenerationInput`, and its memory: how often each token was chosen.

    temperature: 0 = greedy. biases: token id to what is added to its logit. logprobs: alternatives to tell of, 0 to 20,
    None = tell no logprobs. seed: of this choice alone. position: tokens chosen so far. grammar: None = free text.
    """

    temperature: float = 1.0
    top_p: float = 1.0
    top_k: int = 0
    min_p: float = 0.0
    presence_penalty: float = 0.0
    frequency_penalty: float = 0.0
    biases: dict[int, float] = field(default_factory=dict)
    seed: int = 0
    logprobs: int | None = None
    grammar: Grammar | None = None
    position: int = 0
    counts: Counter[int] = field(default_factory=Counter)

    @property
    def is_greedy(self) -> bool:
        """Whether the likeliest token is the only one that can be chosen."""
        return self.temperature < GREEDY_BELOW

    @property
    def has_penalties(self) -> bool:
        """Whether what was chosen before makes itself less likely."""
        return bool(self.presence_penalty or self.frequency_penalty)

    @property
    def leaves_logits(self) -> bool:
        """Whether the logits are taken as the model gave them."""
        return not (self.biases or self.has_penalties or self.grammar)

    def accept(self, token_id: int) -> None:
        """The token was chosen: the next one is drawn at the next position, in the light of it."""
        self.position += 1
        if self.has_penalties:
            self.counts[token_id] += 1
        if self.grammar is not None:
            self.grammar.consume(token_id)

    def ahead(self, token_ids: Iterable[int]) -> SamplingState:
        """Return the state as it would be had these tokens been chosen; this one stays. For drafts."""
        state = replace(self, counts=self.counts.copy(), grammar=self.grammar and self.grammar.copy())
        for token_id in token_ids:
            state.accept(token_id)
        return state


def uniform(seed: int, position: int, lane: int = 0) -> float:
    """Return a number in [0, 1), 52 random bits of it, fixed by its arguments.

    lane: tells apart several draws at one position. Source: BLAKE2b as a counter-based generator.
    """
    return (_hash(seed, position, lane) >> 12) / (1 << 52)


def seed_of_choice(seed: int, index: int) -> int:
    """Return the seed of choice `index` of a request: choices of one request differ, and each comes out again."""
    return _hash(seed, index, -1)


def _hash(*numbers: int) -> int:
    text = " ".join(map(str, numbers)).encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")
