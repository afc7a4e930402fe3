"""Drafts beside the tokens of a step: several tokens of a sequence for one forward, when that pays.

    tokens … t          drafts d1 d2 d3            one forward of t d1 d2 d3, logits of each
    the sampler says    d1 d2 x                    d1 and d2 were right: the step gave d1 d2 x; the cache forgets d3

Each row draws its token by the sequence's own rules and by the noise of its own position, as it would without drafts,
and a draft counts if it is that token. So answers are the same, token by token: greedy ones and drawn ones, with
penalties, logprobs and seeds. That is speculative sampling (Leviathan et al. 2023) for drafts that are certain of
themselves, with the noise shared instead of fresh: a draft stands with the chance that the model gives it.

A step that has pieces of prompts has no drafts; neither has a sequence that follows a grammar.
This module does not know where drafts come from, nor what they cost: `proposals.py`, `draft.py`; `profit.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from collections.abc import Sequence as Row
from dataclasses import replace
from typing import Protocol

from samovar.acceleration.speculation import MATCH_TOKENS
from samovar_instance.engines.generation.blocks import Blocks
from samovar_instance.engines.generation.contract import Token
from samovar_instance.engines.generation.profit import Candidate, Profit, Record
from samovar_instance.engines.generation.proposals import Echo
from samovar_instance.engines.generation.sampling_state import SamplingState
from samovar_instance.engines.generation.scheduler import Run, Segment


class Proposer(Protocol):
    """Where drafts come from."""

    def offer(self, run: Run, max_drafts: int) -> int:
        """Return how many drafts the run could have now, 0 … `max_drafts`."""

    def propose(self, wanted: Row[tuple[Run, int]]) -> list[list[int]]:
        """Return drafts for each run, at most as many as it says."""

    def forget(self, run: Run) -> None:
        """The run is over."""


class PromptLookup:
    """Drafts out of the sequence's own tokens; see `proposals.py`."""

    def __init__(self, sizes: Row[int] = MATCH_TOKENS) -> None:
        """sizes: how many tokens have to match, the longest tried first."""
        self._sizes = sizes
        self._echoes: dict[Run, Echo] = {}
        self._offers: dict[Run, list[int]] = {}

    def offer(self, run: Run, max_drafts: int) -> int:
        """Look what followed the newest tokens before."""
        drafts = self._echoes.setdefault(run, Echo(self._sizes)).propose(run.tokens, max_drafts)
        self._offers[run] = drafts
        return len(drafts)

    def propose(self, wanted: Row[tuple[Run, int]]) -> list[list[int]]:
        """Return the beginnings of what was offered."""
        return [self._offers[run][:count] for run, count in wanted]

    def forget(self, run: Run) -> None:
        """Drop the run's index."""
        self._echoes.pop(run, None)
        self._offers.pop(run, None)


class Speculation:
    """Drafts of one engine. num_drafts, num_right: made so far, and of these the ones that became tokens."""

    def __init__(
        self,
        proposer: Proposer,
        blocks: Blocks,
        profit: Profit,
        *,
        max_drafts: int,
        max_rows: int,
        clock_s: Callable[[], float],
    ) -> None:
        """max_drafts: of one sequence in one step, >= 1. max_rows: of one step. clock_s: of what steps take."""
        self.num_drafts = self.num_right = 0
        self._proposer = proposer
        self._blocks = blocks
        self._max_drafts = max_drafts
        self._max_rows = max_rows
        self._profit = profit
        self._clock_s = clock_s
        self._records: dict[Run, Record] = {}
        self._started_s = self._drafting_s = 0.0

    def drafted(self, segments: list[Segment]) -> list[Segment]:
        """Return the segments of a step, some of them with drafts; blocks for these are in the tables."""
        self._started_s = self._clock_s()
        wanted = self._wanted(segments) if all(map(_is_decode, segments)) else []
        if not wanted:
            self._drafting_s = 0.0
            return segments
        drafts = dict(zip((run for run, _ in wanted), self._proposer.propose(wanted), strict=True))
        with_drafts = [self._with(segment, drafts.get(segment.run, [])) for segment in segments]
        self._note_drafting(max(map(len, drafts.values())))
        return sorted(with_drafts, key=lambda segment: segment.count > 1)

    def kept(self, segment: Segment, tokens: Row[Token | Exception]) -> list[Token | Exception]:
        """Return what a segment came to, of a token per row: up to the first that is not what was drafted.

        The sequence's own state has counted them then, the first by the sampler.
        """
        kept = [tokens[0]]
        for draft, token in zip(segment.drafts, tokens[1:], strict=True):
            last = kept[-1]
            if isinstance(last, Exception) or last.id != draft:
                break
            kept.append(token)
            if not isinstance(token, Exception):
                segment.run.sequence.sampling.accept(token.id)
        if segment.drafts:
            num_right = len(kept) - 1
            self.num_drafts += len(segment.drafts)
            self.num_right += num_right
            self._profit.judged(self._record(segment.run), num_right, len(segment.drafts))
        return kept

    def ran(self, segments: Row[Segment], num_tokens: int) -> None:
        """The step is over; it gave `num_tokens` tokens."""
        if all(segment.count == 1 + len(segment.drafts) for segment in segments):
            num_drafts = sum(len(segment.drafts) for segment in segments)
            seconds = self._clock_s() - self._started_s
            self._profit.ran(len(segments), num_drafts, num_tokens, seconds, self._drafting_s)

    def forget(self, run: Run) -> None:
        """The run is over."""
        self._records.pop(run, None)
        self._proposer.forget(run)

    def _wanted(self, segments: Row[Segment]) -> list[tuple[Run, int]]:
        runs, candidates = [], []
        for run in (segment.run for segment in segments):
            max_drafts = min(self._max_drafts, run.sequence.max_tokens - len(run.sequence.generated) - 1)
            offer = self._proposer.offer(run, max_drafts) if max_drafts > 0 and _is_free(run) else 0
            if offer:
                record = self._record(run)
                runs.append(run)
                candidates.append(Candidate(record.rate, record.num_tried, offer))
        room = self._max_rows - len(segments)
        wanted = []
        for run, count in zip(runs, self._profit.counts(len(segments), candidates), strict=True):
            if 0 < count <= room:
                wanted.append((run, count))
                room -= count
        return wanted

    def _with(self, segment: Segment, drafts: list[int]) -> Segment:
        """Return the segment with drafts, if there are any and blocks for them: nobody gives way for drafts."""
        run, num_rows = segment.run, 1 + len(drafts)
        if not drafts or not self._blocks.can_grow(run.table, segment.start + num_rows):
            return segment
        self._blocks.grow(run.table, segment.start + num_rows)
        return replace(segment, count=num_rows, num_logits=num_rows, drafts=tuple(drafts))

    def _note_drafting(self, longest: int) -> None:
        self._drafting_s = self._clock_s() - self._started_s
        if longest:
            self._profit.note_drafting(self._drafting_s / longest)

    def _record(self, run: Run) -> Record:
        record = self._records.get(run)
        if record is None:
            record = self._records[run] = self._profit.record()
        return record


def states(segment: Segment) -> list[SamplingState]:
    """Return the sampler's state for each row: the sequence's own, and what it would be after each draft."""
    own: SamplingState = segment.run.sequence.sampling
    return [own, *(own.ahead(segment.drafts[:count]) for count in range(1, len(segment.drafts) + 1))]


def _is_decode(segment: Segment) -> bool:
    return segment.count == 1 and segment.num_logits == 1


def _is_free(run: Run) -> bool:
    sampling: SamplingState = run.sequence.sampling
    return sampling.grammar is None
