"""Whether drafts pay, decided from what was measured: how often they are right, and what steps of what size take.

A step of n sequences gives n tokens in T(n) seconds. With r drafts it takes T(n + r), and gives one token more for each
draft that turns out right. Drafts pay as long as tokens per second rise, so with

    chance       of a sequence's j-th draft to be right: its measured rate to the power of j
    T            step seconds by rows, measured, a line between what is known

the drafts with the best chances are taken, as many as make (n + chances) / T(n + r) the highest. Few do in a large
batch, since there a row more costs nearly what a token does; many do where one sequence copies.

Estimates may be wrong, so there is an account: what steps with drafts took beyond what their tokens would have taken
without. It may not exceed `max_loss` of the time spent; then there are no drafts until it has recovered. Out of the
same account, now and then one sequence tries a few drafts that do not seem to pay: that is how the engine learns that
they do now. This module knows no clock, models or tokens.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Sequence
from dataclasses import dataclass

from samovar.acceleration.speculation import MAX_LOSS, MIN_GAIN

WINDOW_STEPS = 500  # how far back the account and the rates look
TRY_TOKENS = 2
PLAIN_EVERY = 24  # steps with drafts between two without, which keep T(n) fresh
FIRST_RATE = 0.5
WEIGHT = 0.2  # of a new measurement of a step
MAX_OUTLIER = 2.0  # a step that took this many times what is usual counts as that
ROW_SHARE = 0.1  # of a step of one row, for each row more, while nothing is measured


@dataclass(slots=True)
class Record:
    """How one sequence's drafts did. rate: chance of the next draft to be right, of which few are known at first."""

    rate: float
    num_tried: float = 0.0

    def note(self, num_right: int, num_wrong: int) -> None:
        """Of the drafts that were looked at, so many were right, and at most one, the last, was wrong."""
        for is_right in [1.0] * num_right + [0.0] * num_wrong:
            self.num_tried = min(16.0, self.num_tried + 1)
            self.rate += (is_right - self.rate) / (2 + self.num_tried)


class StepCosts:
    """Seconds of a step by its rows, as measured."""

    def __init__(self) -> None:
        self._rows: list[int] = []
        self._seconds: dict[int, float] = {}

    def note(self, rows: int, seconds: float) -> None:
        """A step of so many rows took so long."""
        known = self._seconds.get(rows)
        if known is None:
            insort(self._rows, rows)
            self._seconds[rows] = seconds
        else:
            self._seconds[rows] = known + WEIGHT * (min(seconds, MAX_OUTLIER * known) - known)

    def knows(self, rows: int) -> bool:
        """Return whether a step of exactly so many rows was measured."""
        return rows in self._seconds

    def seconds(self, rows: int) -> float:
        """Return what a step takes, on a line between the nearest that were measured; one has to be."""
        at = bisect_left(self._rows, rows)
        if at < len(self._rows) and self._rows[at] == rows:
            return self._seconds[rows]
        if at == 0:
            return self._seconds[self._rows[0]]
        low = self._rows[at - 1]
        if at < len(self._rows):
            high = self._rows[at]
            share = (rows - low) / (high - low)
            return self._seconds[low] + share * (self._seconds[high] - self._seconds[low])
        return self._seconds[low] * (1 + ROW_SHARE * rows) / (1 + ROW_SHARE * low)


@dataclass(frozen=True, slots=True)
class Candidate:
    """A sequence that could have drafts. rate: of its record; num_tried: of it; max_drafts: >= 1."""

    rate: float
    num_tried: float
    max_drafts: int


class Profit:
    """Decides for one engine and one way to make drafts. drafting_s: what making a row of drafts takes, seconds."""

    def __init__(self, min_gain: float = MIN_GAIN, max_loss: float = MAX_LOSS) -> None:
        """min_gain: of tokens per second, from which on drafts are made, >= 1. max_loss: share of the time spent that
        they may cost, > 0."""
        self._min_gain = min_gain
        self._max_loss = max_loss
        self.costs = StepCosts()
        self.rate = FIRST_RATE  # of all sequences: what a new one starts with
        self.drafting_s = 0.0
        self._spent_s = 0.0
        self._lost_s = 0.0
        self._num_since_plain = 0

    def record(self) -> Record:
        """Return the record of a new sequence."""
        return Record(self.rate)

    def counts(self, num_sequences: int, candidates: Sequence[Candidate]) -> list[int]:
        """Return how many drafts each candidate is to have in the next step.

        Args:
            num_sequences: in the step, each with one row of its own, >= 1.
        """
        nothing = [0] * len(candidates)
        is_due = self._num_since_plain >= PLAIN_EVERY
        if not candidates or is_due or not self.costs.knows(num_sequences):
            return nothing
        if self._lost_s > self._max_loss * self._spent_s:
            return nothing
        counts = self._best(num_sequences, candidates)
        if any(counts):
            return counts
        return self._trial(num_sequences, candidates) or nothing

    def ran(
        self, num_sequences: int, num_drafts: int, num_tokens: int, seconds: float, drafting_s: float = 0.0
    ) -> None:
        """A step is over: it gave `num_tokens` tokens in `seconds`, of which `drafting_s` went into making drafts."""
        costs = self.costs
        costs.note(num_sequences + num_drafts, seconds - drafting_s)
        keep = 1 - 1 / WINDOW_STEPS
        self._spent_s = self._spent_s * keep + seconds
        if not num_drafts:
            self._num_since_plain = 0
            self._lost_s *= keep
            return
        self._num_since_plain += 1
        plain_s = costs.seconds(num_sequences) * num_tokens / num_sequences
        self._lost_s = max(0.0, self._lost_s * keep + seconds - plain_s)

    def note_drafting(self, seconds: float) -> None:
        """Making drafts took so long, for each of the longest row of them."""
        self.drafting_s += WEIGHT * (seconds - self.drafting_s) if self.drafting_s else seconds

    def judged(self, record: Record, num_right: int, num_drafts: int) -> None:
        """Of a sequence's drafts so many were right, before the first wrong one."""
        num_wrong = int(num_right < num_drafts)
        record.note(num_right, num_wrong)
        for is_right in [1.0] * num_right + [0.0] * num_wrong:
            self.rate += (is_right - self.rate) / 32

    def _best(self, num_sequences: int, candidates: Sequence[Candidate]) -> list[int]:
        """Return the drafts that make most tokens a second; a longer row of drafts also takes longer to make."""
        chances = sorted(
            (
                (-(candidate.rate**nth), nth, place)
                for place, candidate in enumerate(candidates)
                for nth in range(1, candidate.max_drafts + 1)
            ),
        )
        least = self._min_gain * num_sequences / self.costs.seconds(num_sequences)
        best, num_taken, longest, tokens = least, 0, 0, 0.0
        for rows, (chance, nth, _) in enumerate(chances, 1):
            tokens, longest = tokens - chance, max(longest, nth)
            seconds = self.costs.seconds(num_sequences + rows) + longest * self.drafting_s
            if (num_sequences + tokens) / seconds > best:
                best, num_taken = (num_sequences + tokens) / seconds, rows
        counts = [0] * len(candidates)
        for _, _, place in chances[:num_taken]:
            counts[place] += 1
        return counts

    def _trial(self, num_sequences: int, candidates: Sequence[Candidate]) -> list[int] | None:
        """Return a few drafts for the sequence that is known least, if the account can bear that all are wrong."""
        place = min(range(len(candidates)), key=lambda place: candidates[place].num_tried)
        count = min(TRY_TOKENS, candidates[place].max_drafts)
        costs = self.costs
        risk_s = costs.seconds(num_sequences + count) - costs.seconds(num_sequences) + count * self.drafting_s
        if self._lost_s + risk_s > self._max_loss * self._spent_s:
            return None
        return [count * (at == place) for at in range(len(candidates))]
