"""Which of the waiting items make a good batch, where each has a length and the batch is padded to its longest.

The work of such a batch is its padded tokens: longest times count. So a batch is made of items of similar lengths:

    nobody starves     the oldest item is in every batch; so are those whose deadline does not leave time for the next,
                       as far as they fit beside it
    no waste           an item is padded by at most `max_padding` tokens, by more only for the sake of a deadline:
                       that is what a batch of its own would cost beside its tokens
    no batch too big   longest times count within `max_tokens`, besides `max_size` and `max_cost`

Of the batches that keep these, the one that gets most tokens done for its work. Queued jobs take the room that
invocations leave. Pure; this module does not know what an item is.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple, Protocol

from samovar.spec import BatchSpec


class Waiting(Protocol):
    """An item. Monotonic seconds; cost in the function's own unit, >= 0; length: tokens, >= 0; job: None for what is no
    queued job."""

    received_at_s: float
    deadline_s: float
    cost: float
    length: int
    job: Any


class _Batch(NamedTuple):
    """A batch in the making. places: into the waiting items. longest, tokens: of its members, padding not counted."""

    places: tuple[int, ...] = ()
    longest: int = 0
    tokens: int = 0
    cost: float = 0.0

    def with_item(self, place: int, item: Waiting) -> _Batch:
        return _Batch(
            (*self.places, place), max(self.longest, item.length), self.tokens + item.length, self.cost + item.cost
        )

    def fits(self, spec: BatchSpec) -> bool:
        is_short = spec.max_tokens is None or self.longest * len(self.places) <= spec.max_tokens
        is_cheap = spec.max_cost is None or self.cost <= spec.max_cost
        return len(self.places) <= spec.max_size and is_short and is_cheap

    def gain(self, spec: BatchSpec) -> float:
        """Return which share of its work is neither padding nor the price of a batch."""
        return self.tokens / (self.longest * len(self.places) + spec.max_padding + 1)


def choose(waiting: Sequence[Waiting], spec: BatchSpec, pressing_s: float) -> list[int]:
    """Return the places of the items to run now, oldest first.

    Args:
        waiting: at least one, oldest first, queued jobs last. spec: limits of a batch.
        pressing_s: monotonic seconds; an item whose deadline is before it cannot wait for the next batch.
    """
    calls = [place for place, item in enumerate(waiting) if item.job is None]
    jobs = range(len(calls), len(waiting))
    batch = _Batch()
    if calls:
        batch = _filled(_musts(batch, waiting, calls, pressing_s, spec), waiting, calls, spec)
    if len(batch.places) == len(calls) and jobs:
        batch = _filled(_musts(batch, waiting, jobs, pressing_s, spec), waiting, jobs, spec)
    return sorted(batch.places)


def _musts(
    batch: _Batch, waiting: Sequence[Waiting], places: Sequence[int], pressing_s: float, spec: BatchSpec
) -> _Batch:
    """Return the batch with the oldest of `places` if it is still empty, and those in need that fit beside it."""
    if not batch.places:
        batch = batch.with_item(places[0], waiting[places[0]])
    in_need = [place for place in places if waiting[place].deadline_s < pressing_s and place not in batch.places]
    for place in sorted(in_need, key=lambda place: waiting[place].deadline_s):
        larger = batch.with_item(place, waiting[place])
        batch = larger if larger.fits(spec) else batch
    return batch


def _filled(batch: _Batch, waiting: Sequence[Waiting], places: Sequence[int], spec: BatchSpec) -> _Batch:
    """Return the best of the batches that hold this one and some of `places`."""
    taken = set(batch.places)
    rest = sorted((place for place in places if place not in taken), key=lambda place: -waiting[place].length)
    shortest = min(waiting[place].length for place in batch.places)
    lengths = {waiting[place].length for place in rest}
    longer = sorted(length for length in lengths if batch.longest < length <= shortest + spec.max_padding)
    made = (_up_to(longest, batch, waiting, rest, spec) for longest in (batch.longest, *longer))
    return max(made, key=lambda one: one.gain(spec))


def _up_to(longest: int, batch: _Batch, waiting: Sequence[Waiting], rest: Iterable[int], spec: BatchSpec) -> _Batch:
    """Return the batch filled with items of nearly `longest` tokens, longest first. rest: places, longest first."""
    for place in rest:
        item = waiting[place]
        if item.length > longest:
            continue
        if item.length < longest - spec.max_padding:
            break
        larger = batch.with_item(place, item)
        if larger.fits(spec):
            batch = larger
    return batch
