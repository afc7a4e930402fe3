"""What the engine and the text side of generation are to each other: a sequence goes in, tokens come out.

    Engine   add(sequence) · cancel(sequence) · step() · has_work     one thread; only `step` computes
    Listener token(…) after each token · ended(…) exactly once        called within `step`, must not raise or block

The engine knows token ids, never text; the text side knows text, never blocks or batches. This module imports no torch.
"""

from __future__ import annotations

from collections.abc import Sequence as Row
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol

from samovar.tasks.generation import FinishReason

EndReason = Literal["stop", "length", "tool_calls", "cancelled", "failed"]


@dataclass(frozen=True, slots=True)
class Token:
    """One generated token. logprob: by the model's own distribution, natural logarithm; top: the likeliest ones, best
    first. Both only if the sequence's sampling asks for them (None, empty)."""

    id: int
    logprob: float | None = None
    top: tuple[tuple[int, float], ...] = ()


class Listener(Protocol):
    """Whoever hears what a sequence comes to."""

    def token(self, token: Token) -> FinishReason | None:
        """Take the next token; a reason ends the sequence with it, such as at a stop string."""

    def ended(self, reason: EndReason, error: Exception | None) -> None:
        """The sequence is over: nothing more comes. error: if it failed. Its blocks are free already."""


@dataclass(eq=False, slots=True)
class Sequence:
    """One row of tokens to be continued.

    prompt: token ids within the vocabulary, at least one. max_tokens: to generate, >= 1; with the prompt they fit the
    context. sampling: state of `sampling.py` for this row, opaque to the engine. stop_ids: tokens that end it, told to
    the listener like any other. tenant: shares of a crowded engine are per tenant. deadline_s: monotonic; passed, it
    ends as failed with DeadlineExceeded. num_cached: of the prompt's tokens, those found in the cache (engine writes).
    inputs: what the model is given beside the prompt, such as pixels, for engines that can; None = nothing. salt: among
    sequences with the same one, and no others, prompts that begin alike are computed once.
    """

    prompt: list[int]
    max_tokens: int
    sampling: Any
    listener: Listener
    stop_ids: frozenset[int] = frozenset()
    tenant: str = ""
    deadline_s: float = float("inf")
    num_cached: int = 0
    generated: list[int] = field(default_factory=list)
    inputs: Any = None
    salt: bytes = b""


class Sampler(Protocol):
    """How the next tokens are chosen, for all rows of one step at once."""

    def __call__(self, logits: Any, states: Row[Any]) -> list[Token | Exception]:
        """Return a token per row, or the error that ends that row's sequence as failed, such as logits that are NaN.

        logits: float32 [rows, vocabulary]; may be written to. states: each sequence's `sampling`, in order; each counts
        its token as generated from then on.
        """


class GenerationEngine(Protocol):
    """The engine as the text side sees it. Not thread-safe: all from the model thread."""

    @property
    def max_context_tokens(self) -> int:
        """Prompt and generated tokens of one sequence together: by the model and by the cache's size."""

    @property
    def has_work(self) -> bool:
        """Whether `step` has something to do."""

    def add(self, sequence: Sequence) -> None:
        """Take a sequence in; it starts when there is room. Raises: RequestError (`refusal`) if it can never fit, or
        has a token that the model does not know."""

    def cancel(self, sequence: Sequence) -> None:
        """End a sequence before the next step, `ended("cancelled", None)`. Idempotent; of one that ended, nothing."""

    def step(self) -> None:
        """Compute one step and tell the listeners. What goes wrong with one sequence ends that one."""
