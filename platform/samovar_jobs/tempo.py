"""How many jobs a second a worker takes from each queue, from the times of the newest.

With every second without any the figure sinks; after FORGET_AFTER_S nothing is said any more. This module does not know
the clock.
"""

from __future__ import annotations

from collections import OrderedDict, deque

from samovar_storage.jobs.layout import QueueName

NUM_TAKES = 32  # the newest, of each queue
MIN_SPAN_S = 0.5  # takes closer together than this say little: they came in one round
FORGET_AFTER_S = 300.0
MAX_QUEUES = 500  # those taken from last: a worker's status stays small


class Tempo:
    """One worker's. All `now_s` are the caller's clock, seconds, never going back."""

    def __init__(self) -> None:
        self._takes: OrderedDict[str, deque[tuple[float, int]]] = OrderedDict()

    def took(self, queue: QueueName, num_jobs: int, now_s: float) -> None:
        """So many jobs (>= 1) were taken from a queue."""
        name = str(queue)
        self._takes.setdefault(name, deque(maxlen=NUM_TAKES)).append((now_s, num_jobs))
        self._takes.move_to_end(name)
        if len(self._takes) > MAX_QUEUES:
            self._takes.popitem(last=False)

    def per_s(self, now_s: float) -> dict[str, float]:
        """Return queue → jobs a second, > 0, of the queues that were taken from more than once lately."""
        found: dict[str, float] = {}
        for name, takes in list(self._takes.items()):
            if now_s - takes[-1][0] > FORGET_AFTER_S:
                del self._takes[name]
            elif len(takes) > 1:
                num_jobs = sum(num for _, num in takes) - takes[0][1]  # the first began the time, it did not fill it
                found[name] = num_jobs / max(MIN_SPAN_S, now_s - takes[0][0])
        return found
