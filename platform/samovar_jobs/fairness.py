"""Whose job goes next: functions take turns, and within a function its keys, each by the time it has used so far.

    next    the function that used least; of it the normal lane before the low one; of that the key that used least
    took    its jobs are charged what such jobs usually take …
    ended   … and in the end what they did take
    park    not before an instant, or before `wake`: no slot is free, a cap is reached, a limit refuses

Who comes back after a pause starts where the least served is, so nobody saves up turns. One tenant's 100,000 jobs
cost another's ten one turn each. A choice takes O(log n) in functions and keys. How much of the worker one function may
hold follows what is free (`room_for`), so that long jobs of one do not keep all others out.
Sources: start-time fair queueing (Goyal, Vin, Cheng 1996), with costs that are known afterwards; dynamic thresholds
(Choudhury, Hahne 1998). This module does not know Redis, instances or the clock.
"""

from __future__ import annotations

import heapq
from collections.abc import Hashable
from typing import Generic, TypeVar

from samovar_storage.jobs.layout import QueueName

FIRST_GUESS_S = 0.05  # what a job of a function takes of which none has ended
EWMA_WEIGHT = 0.2
SHARE_OF_FREE = 7  # a function may hold this many times what is left free
FORGET_ABOVE = 1000

K = TypeVar("K", bound=Hashable)


def room_for(held: int, free: int) -> int:
    """Return how many more places of a worker somebody may take who holds `held`, while `free` are free.

    Alone, one may hold 7/8 of all; of two, each a little less than half: something is always left for who comes next.
    """
    if free <= 0:
        return 0
    if held == 0:
        return max(1, SHARE_OF_FREE * free // (SHARE_OF_FREE + 1))
    return max(0, (SHARE_OF_FREE * free - held) // (SHARE_OF_FREE + 1))


class Round(Generic[K]):
    """Those who take turns: the one that has used least goes first."""

    def __init__(self) -> None:
        self._used_s: dict[K, float] = {}
        self._in: dict[K, int] = {}  # who takes part → number of its newest entry in the heap
        self._heap: list[tuple[float, int, K]] = []
        self._floor_s = 0.0  # what the last one to go had used
        self._number = 0

    def __len__(self) -> int:
        return len(self._in)

    def __contains__(self, who: K) -> bool:
        return who in self._in

    def enter(self, who: K) -> None:
        """Take part from now on; idempotent. Turns that were not taken are not made up for."""
        if who not in self._in:
            self._used_s[who] = max(self._used_s.get(who, 0.0), self._floor_s)
            self._push(who)

    def leave(self, who: K) -> None:
        """Take no part any more; idempotent."""
        if self._in.pop(who, None) is not None and len(self._used_s) > FORGET_ABOVE + 2 * len(self._in):
            self._forget()

    def first(self) -> K | None:
        """Return whose turn it is, None if nobody takes part."""
        heap = self._heap
        while heap and self._in.get(heap[0][2]) != heap[0][1]:
            heapq.heappop(heap)
        if not heap:
            return None
        self._floor_s = max(self._floor_s, heap[0][0])
        return heap[0][2]

    def charge(self, who: K, cost_s: float) -> None:
        """It used so much more, or less if negative."""
        self._used_s[who] = self._used_s.get(who, self._floor_s) + cost_s
        if who in self._in:
            self._push(who)

    def _push(self, who: K) -> None:
        self._number = self._in[who] = self._number + 1
        heapq.heappush(self._heap, (self._used_s[who], self._number, who))

    def _forget(self) -> None:
        """Whoever used no more than the least served would start like a newcomer."""
        self._used_s = {who: s for who, s in self._used_s.items() if who in self._in or s > self._floor_s}


class Rota:
    """One per worker: the queues with waiting jobs, and whose turn it is."""

    def __init__(self) -> None:
        self._functions: Round[str] = Round()
        self._lanes: dict[tuple[str, bool], Round[QueueName]] = {}
        self._waiting: dict[str, set[QueueName]] = {}
        self._usual_s: dict[str, float] = {}
        self._parked: dict[str | QueueName, float] = {}
        self._due: list[tuple[float, int, str | QueueName]] = []
        self._number = 0

    @property
    def queues(self) -> set[QueueName]:
        """Return all queues with waiting jobs."""
        return {queue for queues in self._waiting.values() for queue in queues}

    def add(self, queue: QueueName) -> None:
        """Jobs wait there. Idempotent."""
        queues = self._waiting.setdefault(queue.function, set())
        if queue not in queues:
            queues.add(queue)
            self._admit(queue)

    def drop(self, queue: QueueName) -> None:
        """None waits there. Idempotent."""
        queues = self._waiting.get(queue.function, set())
        queues.discard(queue)
        self._lane(queue).leave(queue)
        if not queues:
            self._waiting.pop(queue.function, None)
            self._functions.leave(queue.function)

    def next(self) -> QueueName | None:
        """Return the queue whose turn it is, None if nobody who waits may go."""
        while (function := self._functions.first()) is not None:
            for is_low in (False, True):
                lane = self._lanes.get((function, is_low))
                queue = lane.first() if lane is not None else None
                if queue is not None:
                    return queue
            self._functions.leave(function)
        return None

    def num_rivals(self, queue: QueueName) -> int:
        """Return how many keys of its function and lane may go, `queue` among them, >= 1."""
        return max(1, len(self._lane(queue)))

    def took(self, queue: QueueName, count: int) -> float:
        """Jobs were taken; return what each of them was charged, seconds, for `ended`."""
        usual_s = self._usual_s.get(queue.function, FIRST_GUESS_S)
        self._charge(queue, count * usual_s)
        return usual_s

    def ended(self, queue: QueueName, charged_s: float, run_s: float | None) -> None:
        """A job ended that held its place for `run_s`; None: it never ran, which costs nothing."""
        if run_s is not None:
            usual_s = self._usual_s.get(queue.function)
            self._usual_s[queue.function] = run_s if usual_s is None else usual_s + EWMA_WEIGHT * (run_s - usual_s)
        self._charge(queue, (run_s or 0.0) - charged_s)

    def park(self, who: str | QueueName, until_s: float) -> None:
        """A function, or one queue, takes no part before `until_s` (any clock), or before it is woken."""
        self._parked[who] = until_s
        self._number += 1
        heapq.heappush(self._due, (until_s, self._number, who))
        if isinstance(who, str):
            self._functions.leave(who)
        else:
            self._lane(who).leave(who)

    def wake(self, who: str | QueueName) -> None:
        """It takes part again, if it has jobs. Idempotent."""
        if self._parked.pop(who, None) is None:
            return
        for queue in self._waiting.get(who, ()) if isinstance(who, str) else (who,):
            self._admit(queue)

    def wake_due(self, now_s: float) -> None:
        """Whose time has come takes part again."""
        while self._due and self._due[0][0] <= now_s:
            until_s, _, who = heapq.heappop(self._due)
            if self._parked.get(who) == until_s:
                self.wake(who)

    def next_due_s(self) -> float | None:
        """Return when somebody is woken next, None if nobody is parked."""
        while self._due and self._parked.get(self._due[0][2]) != self._due[0][0]:
            heapq.heappop(self._due)
        return self._due[0][0] if self._due else None

    def _admit(self, queue: QueueName) -> None:
        if queue in self._parked or queue not in self._waiting.get(queue.function, ()):
            return
        self._lane(queue).enter(queue)
        if queue.function not in self._parked:
            self._functions.enter(queue.function)

    def _charge(self, queue: QueueName, cost_s: float) -> None:
        self._functions.charge(queue.function, cost_s)
        self._lane(queue).charge(queue, cost_s)

    def _lane(self, queue: QueueName) -> Round[QueueName]:
        return self._lanes.setdefault((queue.function, queue.is_low), Round())
