"""Drafts by a small model with the same vocabulary, over a paged cache of its own.

    read      what the sequences got since the last time goes through the draft model, all of them in one forward
    draft     token by token, all sequences at once, each by its own rules and the noise of its own positions

The noise is what the large model's rows will draw by, so a draft model that agrees drafts what will be drawn.
This module does not know when drafts pay, nor how they are checked.
"""

from __future__ import annotations

from collections.abc import Sequence as Row
from dataclasses import dataclass, field
from typing import Any

from samovar_instance.engines.generation.blocks import Blocks
from samovar_instance.engines.generation.contract import Token
from samovar_instance.engines.generation.model import Runner
from samovar_instance.engines.generation.sampling import TokenSampler
from samovar_instance.engines.generation.sampling_state import SamplingState
from samovar_instance.engines.generation.scheduler import Run, Segment

READ_TOKENS = 256  # of one sequence in one step: a long prompt is read piece by piece, without drafts meanwhile


@dataclass(slots=True)
class _Row:
    """One sequence in the making of drafts. mirror: its tokens and drafts, in the draft model's cache."""

    mirror: Run
    state: SamplingState
    num_wanted: int
    drafts: list[int] = field(default_factory=list)

    @property
    def is_reading(self) -> bool:
        return self.mirror.num_remaining > READ_TOKENS

    def segment(self) -> Segment:
        start = self.mirror.table.num_tokens
        return Segment(self.mirror, start, min(self.mirror.num_remaining, READ_TOKENS), int(not self.is_reading))

    def take(self, token: Token | Exception) -> bool:
        """Take a draft; return whether more are wanted."""
        if isinstance(token, Exception):
            return False
        self.drafts.append(token.id)
        self.mirror.tokens.append(token.id)
        return len(self.drafts) < self.num_wanted


class DraftModel:
    """The speculation's `Proposer` by a model.

    Args:
        model: a causal model of transformers, on its device. num_vocabulary: of the large model.
        cache_bytes: memory of keys and values. block_tokens: of one block of it.
    Raises: ValueError if the vocabularies differ, Unsupported if the model cannot run over a paged cache.
    """

    def __init__(self, model: Any, *, num_vocabulary: int, cache_bytes: int, block_tokens: int = 16) -> None:
        self._runner = Runner(model)
        ours = self._runner.num_vocabulary
        if ours != num_vocabulary:
            raise ValueError(f"the draft model tells {ours} tokens apart, the model {num_vocabulary}: they must agree")
        num_blocks = max(1, cache_bytes // (self._runner.token_bytes * block_tokens))
        self._runner.allocate(num_blocks, block_tokens)
        self._blocks = Blocks(num_blocks, block_tokens, shares=False)
        self._sampler = TokenSampler()
        self._mirrors: dict[Run, Run] = {}

    def offer(self, run: Run, max_drafts: int) -> int:
        """Return as many as wanted, if the cache has room for the run."""
        mirror = self._mirrors.setdefault(run, Run(run.sequence, []))
        return max_drafts if self._blocks.can_grow(mirror.table, len(run.tokens) + max_drafts) else 0

    def propose(self, wanted: Row[tuple[Run, int]]) -> list[list[int]]:
        """Return what the draft model would go on with, by each sequence's own rules; nothing while it reads."""
        rows = [self._row(run, count) for run, count in wanted]
        active = [row for row in rows if row is not None]
        while active:
            active = self._forward(sorted(active, key=lambda row: row.mirror.num_remaining > 1))
        return [[] if row is None else row.drafts for row in rows]

    def forget(self, run: Run) -> None:
        """Give back what the run's tokens take."""
        mirror = self._mirrors.pop(run, None)
        if mirror is not None:
            self._blocks.release(mirror.table)

    def _row(self, run: Run, count: int) -> _Row | None:
        """Return the run with the draft model's cache cut down to what is true of it, None if there is no room."""
        mirror = self._mirrors[run]
        num_true = min(mirror.table.num_tokens, len(run.tokens))
        while mirror.tokens[:num_true] != run.tokens[:num_true]:
            num_true -= 1  # a draft that was wrong
        mirror.tokens[:] = run.tokens
        mirror.table.num_tokens = num_true
        if not self._blocks.can_grow(mirror.table, len(run.tokens) + count):
            return None
        self._blocks.grow(mirror.table, len(run.tokens) + count)
        return _Row(mirror, run.sequence.sampling.ahead(()), count)

    def _forward(self, rows: list[_Row]) -> list[_Row]:
        """Compute what each row lacks and give it a draft; return those that want another."""
        segments = [row.segment() for row in rows]
        logits = self._runner.forward(segments)
        for segment in segments:
            mirror = segment.run
            self._blocks.advance(mirror.table, mirror.tokens, segment.start + segment.count)
        drafting = [row for row, segment in zip(rows, segments, strict=True) if segment.num_logits]
        tokens = self._sampler(logits, [row.state for row in drafting]) if drafting else []
        return [row for row, token in zip(drafting, tokens, strict=True) if row.take(token)]
