"""One version under load in simulated time: the real queue, seats, pace and shedding; clock and work are made up."""

from __future__ import annotations

import heapq
import itertools
import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, cast

from samovar.errors import SamovarError, Shed
from samovar_dispatch.ask import NORMAL, Ask
from samovar_dispatch.call import Call, Version
from samovar_dispatch.slots import Seat
from samovar_dispatch.waiting.waiting_room import WaitingRoom
from support.gateway import manifest

Draw = Callable[[random.Random], float]


@dataclass
class Member:
    """An instance that works on `slots` calls at once."""

    in_flight: dict[int, Call] = field(default_factory=dict)


@dataclass
class Tally:
    """What became of the calls of one load: how many were answered in time, late, or refused, by code."""

    good: int = 0
    late: int = 0
    codes: Counter[str] = field(default_factory=Counter)
    waits_s: list[float] = field(default_factory=list)


class Simulation:
    """`num_instances` instances with one slot each. work: draws how long a call holds its slot, seconds."""

    def __init__(self, work: Draw, num_instances: int = 2, *, max_queue: int = 1000) -> None:
        self.room = WaitingRoom(self, lambda version: None)
        plain = manifest()
        limits = type(plain.limits)(max_queue=max_queue)
        self.version = Version(manifest(limits=limits), self.room.backlog)
        self.tally = Tally()
        self.now_s = 100.0
        self._work = work
        self._dice = random.Random(7)
        self._events: list[tuple[float, int, Callable[[], object]]] = []
        self._numbers = itertools.count(1)
        for number in range(num_instances):
            member: Any = Member()
            self.version.members[str(number)] = member
            self.version.seats.open(Seat(member, 1))

    def fail(self, call: Call, error: SamovarError) -> None:
        """A call that waited is turned out."""
        call.done = True
        self.tally.codes[error.code] += 1

    def offer(self, rate: float, duration_s: float, timeout_s: float, priority: int = NORMAL) -> None:
        """Let calls arrive `rate` times a second from now on, for `duration_s`."""
        for number in range(int(rate * duration_s)):
            at_s = self.now_s + (number + self._dice.random()) / rate
            self.at(at_s, lambda: self.arrive(timeout_s, priority))

    def at(self, at_s: float, what: Callable[[], object]) -> None:
        """Do `what` at `at_s`."""
        heapq.heappush(self._events, (at_s, next(self._numbers), what))

    def arrive(self, timeout_s: float, priority: int = NORMAL, body: bytes = b"") -> Call | None:
        """One call arrives now; return it unless it was refused."""
        ask = Ask(cast(Any, None), "key", self.now_s, self.now_s + timeout_s, {}, b"", priority)
        ask.body = body
        call = Call(cast(Any, self), self.version, ask, cast(Any, None), next(self._numbers), self.now_s)
        seat = None if self.version.queue else self.version.seats.take()
        if seat is not None:
            self._start(call, seat)
            return call
        try:
            self.room.admit(call, self.now_s)
        except Shed as error:
            self.tally.codes[error.code] += 1
            return None
        return call

    def run(self, until_s: float = float("inf")) -> Tally:
        """Let time pass until `until_s`, or until nothing is left to happen; return the tally."""
        while self._events and self._events[0][0] <= until_s:
            self.now_s, _, what = heapq.heappop(self._events)
            what()
        return self.tally

    def _start(self, call: Call, seat: Seat[Any]) -> None:
        call.seat, call.sent_s = seat, self.now_s
        call.id = call.seq
        seat.owner.in_flight[call.id] = call
        self.tally.waits_s.append(self.now_s - call.submitted_s)
        took_s = self._work(self._dice)
        self.at(self.now_s + took_s, lambda: self._end(call, took_s))

    def _end(self, call: Call, took_s: float) -> None:
        version, seat = self.version, cast(Any, call.seat)
        del seat.owner.in_flight[call.id]
        self.tally.good += self.now_s <= call.deadline_s
        self.tally.late += self.now_s > call.deadline_s
        version.service_s = took_s if not version.service_s else version.service_s + 0.1 * (took_s - version.service_s)
        version.pace.ended(self.now_s, took_s, version.service_s, is_backlogged=bool(version.queue))
        version.seats.give_back(seat)
        self._pump()

    def _pump(self) -> None:
        version = self.version
        if version.queue:
            self.room.look(version, self.now_s)
        while version.queue and (seat := version.seats.take()) is not None:
            call = self.room.next(version, self.now_s)
            if call is None:
                version.seats.give_back(seat)
                break
            self._start(call, seat)
        if not version.queue:
            version.pace.emptied()
