"""Who is in an engine and how they leave it: the part that every engine has in common.

    add ──checked──► in ──token──► … ──► ended: stop, length, cancelled, failed; told exactly once

This module does not know how tokens come about.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from samovar.errors import DeadlineExceeded
from samovar.tasks.generation import CONTEXT_EXCEEDED, refusal
from samovar_instance.engines.generation.blocks import BlockTable
from samovar_instance.engines.generation.contract import EndReason, Sequence, Token
from samovar_instance.engines.generation.scheduler import Run

log = logging.getLogger(__name__)


class Register:
    """The sequences of one engine, in the order they came.

    Args:
        num_vocabulary: tokens that the model knows. max_context_tokens: prompt and generated tokens of one sequence.
        leave: is told of a run that is over, before its listener is.
    """

    def __init__(self, num_vocabulary: int, max_context_tokens: int, leave: Callable[[Run], None]) -> None:
        self.num_vocabulary = num_vocabulary
        self.max_context_tokens = max_context_tokens
        self._leave = leave
        self._runs: dict[Sequence, Run] = {}
        self._cancelled: set[Run] = set()

    def __len__(self) -> int:
        """How many are in."""
        return len(self._runs)

    def __contains__(self, run: Run) -> bool:
        """Whether a run is not over."""
        return run.sequence in self._runs

    def add(self, sequence: Sequence) -> Run:
        """Take a sequence in. Raises: RequestError if it can never fit or has a token the model does not know."""
        self._check(sequence)
        run = self._runs[sequence] = Run(sequence, [*sequence.prompt], BlockTable(salt=sequence.salt))
        return run

    def cancel(self, sequence: Sequence) -> None:
        """Let `end_unwanted` end a sequence. Idempotent; of one that ended, nothing."""
        if sequence in self._runs:
            self._cancelled.add(self._runs[sequence])

    def end_unwanted(self, now_s: float) -> None:
        """End what was cancelled and what is late. now_s: monotonic."""
        for run in self._cancelled:
            if run in self:
                self.end(run, "cancelled")
        self._cancelled.clear()
        for run in [run for run in self._runs.values() if run.sequence.deadline_s <= now_s]:
            self.end(run, "failed", DeadlineExceeded("the deadline passed in phase run", phase="run"))

    def tell(self, run: Run, token: Token | Exception) -> None:
        """Give a run its next token, or the error that ends it. What its listener raises ends it, too."""
        if isinstance(token, Exception):
            self.end(run, "failed", token)
            return
        sequence = run.sequence
        run.tokens.append(token.id)
        sequence.generated.append(token.id)
        try:
            reason: EndReason | None = sequence.listener.token(token)
        except Exception as error:  # noqa: BLE001 (whatever a listener raises ends its own sequence)
            self.end(run, "failed", error)
            return
        if reason is None and token.id in sequence.stop_ids:
            reason = "stop"
        if reason is None and len(sequence.generated) >= sequence.max_tokens:
            reason = "length"
        if reason is not None:
            self.end(run, reason)

    def end(self, run: Run, reason: EndReason, error: Exception | None = None) -> None:
        """A run is over: its blocks are free, then its listener hears of it."""
        del self._runs[run.sequence]
        self._leave(run)
        try:
            run.sequence.listener.ended(reason, error)
        except Exception:
            log.exception("a listener failed at the end of its sequence")

    def _check(self, sequence: Sequence) -> None:
        prompt, room = sequence.prompt, self.max_context_tokens
        if not prompt:
            raise refusal("prompt", "prompt is empty: it needs at least one token")
        if min(prompt) < 0 or max(prompt) >= self.num_vocabulary:
            known = self.num_vocabulary - 1
            raise refusal("prompt", f"prompt has a token that the model does not know: its ids are 0 to {known}")
        if sequence.max_tokens < 1:
            raise refusal("max_tokens", "max_tokens is at least 1")
        if len(prompt) + sequence.max_tokens > room:
            raise refusal(
                "max_tokens" if len(prompt) < room else "prompt",
                f"{len(prompt)} tokens of prompt and {sequence.max_tokens} to generate do not fit a context of {room}",
                reason=CONTEXT_EXCEEDED,
            )
