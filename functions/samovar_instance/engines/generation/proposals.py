"""Drafts out of a sequence's own tokens: what followed the last time its newest tokens occurred ("prompt lookup").

    … the cat sat on the mat. Repeat: the cat sat     drafts: on the mat
              └── the same five tokens ──┘

Costs a few dictionary entries per token, and no model. It is right where text is repeated: summaries, edits of code,
quotations. Source: prompt lookup decoding (Saxena 2023). This module knows no models, tensors or schedules.
"""

from __future__ import annotations

from collections.abc import Sequence

from samovar.acceleration.speculation import MATCH_TOKENS


class Echo:
    """What followed what within one sequence; grows with it."""

    __slots__ = ("_next_of", "_num_seen", "_sizes")

    def __init__(self, sizes: Sequence[int] = MATCH_TOKENS) -> None:
        """sizes: how many tokens have to match, the longest tried first, each >= 1."""
        self._sizes = sizes
        self._next_of: tuple[dict[tuple[int, ...], int], ...] = tuple({} for _ in sizes)
        self._num_seen = 0  # tokens whose predecessors are in the index

    def propose(self, tokens: Sequence[int], max_tokens: int) -> list[int]:
        """Return up to `max_tokens` tokens that may come next, none if the newest ones occur nowhere before.

        Args:
            tokens: all of the sequence: those of the last call and what came since.
        """
        self._read(tokens)
        for size, next_of in zip(self._sizes, self._next_of, strict=True):
            place = next_of.get(tuple(tokens[-size:])) if len(tokens) >= size else None
            if place is not None:
                return list(tokens[place : place + max_tokens])
        return []

    def _read(self, tokens: Sequence[int]) -> None:
        """Index every group of tokens that something follows."""
        for size, next_of in zip(self._sizes, self._next_of, strict=True):
            for place in range(max(size, self._num_seen), len(tokens)):
                next_of[tuple(tokens[place - size : place])] = place
        self._num_seen = len(tokens)
