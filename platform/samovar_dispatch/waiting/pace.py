"""How fast a version gets through its calls: measured, and turned into what a newcomer would have to wait.

    lane      what works on one call (or, with batching, on one batch) at a time: a slot, or a batching instance
    lane_s    lane-seconds one call takes, overhead and other gateways' calls included: measured as departures while
              calls wait, since only then is every lane busy; while nobody waits it follows the bare service time
    held_s    from sending a call to its result, with its mean deviation (as TCP keeps its round-trip time, RFC 6298)
    first_s   the same to the first item of a stream: how long that goes on is up to who asks (`max_tokens`), so no more
              is expected of a newcomer itself; of those it waits for, what they usually take
    arrival   an instance that is starting: when it will serve, judged by the fastest of the last boots

This module does not know queues, instances or clocks.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from samovar.lifecycle import State

EWMA_WEIGHT = 0.1
WINDOW_WEIGHT = 0.2
MIN_DEPARTURES = 16  # fewer tell too little: where many ask, every moment of optimism is used
MAX_WINDOW_S = 2.0
USUAL_DEVIATIONS = 5
USUAL_SHARE = 0.25
NUM_BOOTS = 4
MIN_GIVEN_UP_S = 10.0  # an instance that takes so long, and GIVEN_UP_BOOTS boots, is not waited for
GIVEN_UP_BOOTS = 10
FRESH_S = 1.0  # what was measured longer ago does not keep a call from an idle instance


class Arrival(NamedTuple):
    """An instance to come. in_s: seconds until it serves, >= 0. lanes: what it adds, > 0."""

    in_s: float
    lanes: float


class Pace:
    """The measured speed of one version; all zero until its first result. measured_s: when the last one came.

    streams: whether it answers item by item.
    """

    __slots__ = (
        "_num_departed",
        "_window_s",
        "dev_s",
        "first_dev_s",
        "first_s",
        "held_s",
        "lane_s",
        "measured_s",
        "service_s",
        "streams",
    )

    def __init__(self, *, streams: bool = False) -> None:
        self.streams = streams
        self.lane_s = self.service_s = self.held_s = self.dev_s = self.measured_s = 0.0
        self.first_s = self.first_dev_s = 0.0
        self._window_s = 0.0
        self._num_departed = 0

    @property
    def per_call_s(self) -> float:
        """Lane-seconds one call takes. The service time tells sooner when calls become slower."""
        return max(self.lane_s, self.service_s)

    @property
    def own_s(self) -> tuple[float, float]:
        """What a newcomer has to have the time for once it has a slot, with its mean deviation, seconds."""
        return (self.first_s, self.first_dev_s) if self.streams else (self.held_s, self.dev_s)

    def usual_s(self, left_s: float) -> float:
        """Return what a call needs in its slot, all but the rare ones, seconds; that care may cost it no more than
        USUAL_SHARE of the `left_s` it has."""
        mean_s, dev_s = self.own_s
        return mean_s + min(USUAL_DEVIATIONS * dev_s, USUAL_SHARE * left_s)

    def left_s(self, running_s: float) -> float:
        """Return how long a call that has held its slot for `running_s` still will: as long again if it is overdue."""
        left_s = self.held_s + 2 * self.dev_s - running_s
        return left_s if left_s > 0 else self.held_s

    def began(self, first_s: float) -> None:
        """The first item of a stream came `first_s` after it was sent."""
        if self.first_s == 0.0:
            self.first_s, self.first_dev_s = first_s, first_s / 2
            return
        off_s = first_s - self.first_s
        self.first_s += EWMA_WEIGHT * off_s
        self.first_dev_s += EWMA_WEIGHT * (abs(off_s) - self.first_dev_s)

    def ended(self, now_s: float, held_s: float, service_s: float, *, is_backlogged: bool) -> None:
        """A call's result came `held_s` after it was sent. service_s: the mean lane time by the instances' word."""
        self.measured_s, self.service_s = now_s, service_s
        if self.held_s == 0.0:
            self.held_s, self.dev_s, self.lane_s = held_s, held_s / 2, service_s
            return
        off_s = held_s - self.held_s
        self.held_s += EWMA_WEIGHT * off_s
        self.dev_s += EWMA_WEIGHT * (abs(off_s) - self.dev_s)
        if not is_backlogged:
            self.lane_s += EWMA_WEIGHT * (service_s - self.lane_s)

    def departed(self, now_s: float, lanes: float) -> None:
        """A waiting call was sent while others wait on; `lanes` work."""
        if self._window_s == 0.0:
            self._window_s, self._num_departed = now_s, 0
            return
        self._num_departed += 1
        elapsed_s = now_s - self._window_s
        is_enough = self._num_departed >= MIN_DEPARTURES and elapsed_s >= 2 * self.held_s  # of whole batches
        if is_enough or elapsed_s >= MAX_WINDOW_S + 2 * self.held_s:
            self.lane_s += WINDOW_WEIGHT * (elapsed_s * lanes / self._num_departed - self.lane_s)
            self._window_s, self._num_departed = now_s, 0

    def emptied(self) -> None:
        """Nobody waits any more."""
        self._window_s = 0.0

    def is_hopeless(self, left_s: float, now_s: float) -> bool:
        """Return whether a call with `left_s` to its deadline cannot be answered in time even if it starts at once."""
        mean_s, dev_s = self.own_s
        return left_s < mean_s - 2 * dev_s and now_s - self.measured_s < FRESH_S


class Boots:
    """What is known of a version's instances that do not serve yet.

    starting: when each was first heard of, monotonic seconds. connecting: those that are ready, but not connected to.
    """

    __slots__ = ("_recent_s", "connecting", "starting")

    def __init__(self) -> None:
        self.starting: dict[str, float] = {}
        self.connecting: set[str] = set()
        self._recent_s: deque[float] = deque(maxlen=NUM_BOOTS)

    def arrived(self, instance_id: str, boot_s: float) -> None:
        """The instance serves; it took `boot_s` from claim to ready, 0 if unknown."""
        self.forget(instance_id)
        if boot_s > 0:
            self._recent_s.append(boot_s)

    def hear(self, instance_id: str, state: str, now_s: float) -> None:
        """The pool manager says that an instance we are not connected to is in `state`."""
        if state in (State.STARTING, State.LOADING):
            self.starting.setdefault(instance_id, now_s)
            return
        self.forget(instance_id)
        if state == State.READY:
            self.connecting.add(instance_id)

    def forget(self, instance_id: str) -> None:
        """The instance serves, or never will."""
        self.starting.pop(instance_id, None)
        self.connecting.discard(instance_id)

    def arrivals(self, now_s: float, lanes: float, lanes_to_ask_for: float = 0.0) -> list[Arrival]:
        """Return who will serve and when, soonest first; nobody while no boot was measured.

        lanes: of each. lanes_to_ask_for: of the instance that a call will bring by waiting, if none is on its way.
        """
        if not self._recent_s:
            return []
        boot_s = min(self._recent_s)
        given_up_s = now_s - max(MIN_GIVEN_UP_S, GIVEN_UP_BOOTS * boot_s)
        starting = [since_s for since_s in self.starting.values() if since_s > given_up_s]
        coming = [Arrival(0.0, lanes) for _ in self.connecting]
        coming += [Arrival(max(0.0, since_s + boot_s - now_s), lanes) for since_s in sorted(starting)]
        return coming or [Arrival(boot_s, lanes_to_ask_for)] * (lanes_to_ask_for > 0)


def wait_s(work_s: float, lanes: float, arrivals: Sequence[Arrival]) -> float:
    """Return when `work_s` lane-seconds are done, by `lanes` from now on and the `arrivals`, soonest first.

    Inf if there is nobody to do them. Source: fluid limit of a queue with several servers.
    """
    done_at_s = 0.0
    for arrival in arrivals:
        if lanes and work_s <= lanes * (arrival.in_s - done_at_s):
            break
        work_s -= lanes * (arrival.in_s - done_at_s)
        done_at_s, lanes = arrival.in_s, lanes + arrival.lanes
    return done_at_s + work_s / lanes if lanes else float("inf")
