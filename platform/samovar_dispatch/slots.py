"""Which instance gets the next call: the least loaded one, while it has a slot free.

Beyond its slots an instance may be given a few calls ahead (the *prefetch allowance*), but only as many as it is
expected to start within MAX_PREFETCH_WAIT_S. Without it a function of a few microseconds would idle for a whole
round trip between calls; with a fixed allowance a slow function would lose late binding, calls would wait behind one
busy instance while another comes free. The allowance follows the measured service time, so fast functions are kept
fed and all others keep one central queue.

Seats are kept in one bucket per load, so the choice costs the same with 1 and with 1,000 instances. Among equals the
one used last goes first: its caches are warm, and the others stay idle until they can be let go.
This module does not know connections, calls or clocks.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from samovar.wire import MAX_PIPELINED

MAX_PREFETCH = MAX_PIPELINED
MAX_PREFETCH_WAIT_S = 0.002
EWMA_WEIGHT = 0.1

O = TypeVar("O")  # noqa: E741  the owner of a seat


class Seat(Generic[O]):
    """One instance's place in the table. slots: its concurrency, >= 1; limit: how many of them may be used now.

    load: calls given to it that have not ended.
    """

    __slots__ = ("limit", "load", "open", "owner", "slots")

    def __init__(self, owner: O, slots: int) -> None:
        self.owner = owner
        self.slots = self.limit = slots
        self.load = 0
        self.open = False


class SeatTable(Generic[O]):
    """The instances of one version that may be given calls. allowance: calls beyond its limit that each may hold.

    num_open: seats that may be chosen; num_slots: the sum of their limits.
    """

    __slots__ = ("_buckets", "_lowest", "_max_slots", "allowance", "num_open", "num_slots")

    def __init__(self) -> None:
        self._buckets: list[dict[Seat[O], None]] = [{}]
        self._lowest = 0
        self._max_slots = 0
        self.allowance = 0
        self.num_slots = self.num_open = 0

    def open(self, seat: Seat[O]) -> None:
        """From now on `seat` may be chosen. Idempotent."""
        if not seat.open:
            seat.open = True
            self.num_open += 1
            self.num_slots += seat.limit
            self._max_slots = max(self._max_slots, seat.slots)
            self._place(seat)

    def close(self, seat: Seat[O]) -> None:
        """From now on `seat` is not chosen; calls it holds still end by `give_back`. Idempotent."""
        if seat.open:
            seat.open = False
            self.num_open -= 1
            self.num_slots -= seat.limit
            del self._buckets[seat.load][seat]

    def take(self) -> Seat[O] | None:
        """Return the least loaded open seat with room, its load raised by one; None when all are full."""
        buckets, allowance = self._buckets, self.allowance
        level = self._lowest
        stop = min(len(buckets), self._max_slots + allowance)
        while level < stop and not buckets[level]:
            level += 1
        self._lowest = level
        while level < stop:
            for seat in reversed(buckets[level]):
                if level < seat.limit + allowance:
                    del buckets[level][seat]
                    seat.load = level + 1
                    self._place(seat)
                    return seat
            level += 1
        return None

    @property
    def num_free(self) -> int:
        """Return how many calls could be sent now without going beyond any seat's limit."""
        most = min(len(self._buckets), self._max_slots)
        return sum(max(0, seat.limit - load) for load in range(self._lowest, most) for seat in self._buckets[load])

    def take_beside(self, seat: Seat[O]) -> Seat[O] | None:
        """Return another open seat than `seat` that has a slot free, its load raised by one; None if there is none."""
        for bucket in self._buckets:
            for other in bucket:
                if other is not seat and other.load < other.limit:
                    del bucket[other]
                    other.load += 1
                    self._place(other)
                    return other
        return None

    def limit(self, seat: Seat[O], limit: int) -> None:
        """From now on `seat` gets no more than `limit` calls at a time, 1..slots, beside the allowance."""
        if seat.open:
            self.num_slots += limit - seat.limit
        seat.limit = limit

    def least_loaded(self) -> Seat[O] | None:
        """Return the open seat with the fewest calls, full or not, its load unchanged; None when none is open."""
        return next((seat for bucket in self._buckets for seat in bucket), None)

    def give_back(self, seat: Seat[O]) -> None:
        """One call of `seat` has really ended."""
        if seat.open:
            del self._buckets[seat.load][seat]
            seat.load -= 1
            self._place(seat)
        else:
            seat.load -= 1

    def _place(self, seat: Seat[O]) -> None:
        load, buckets = seat.load, self._buckets
        while load >= len(buckets):
            buckets.append({})
        buckets[load][seat] = None
        if load < self._lowest:
            self._lowest = load


def smoothed(mean_s: float, run_us: int, batch_size: int) -> float:
    """Return the moving average of one call's share of service time, seconds. mean_s: the average so far, 0 = none."""
    sample_s = max(run_us, 1) / max(batch_size, 1) * 1e-6
    return sample_s if mean_s == 0.0 else mean_s + EWMA_WEIGHT * (sample_s - mean_s)


def prefetch_allowance(service_s: float) -> int:
    """Return how many calls an instance may hold beyond its slots, 0..MAX_PREFETCH; 0 while nothing was measured."""
    if service_s <= 0.0:
        return 0
    return min(MAX_PREFETCH, int(MAX_PREFETCH_WAIT_S / service_s))
