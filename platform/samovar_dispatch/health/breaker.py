"""Whether calls may go to a version: a circuit breaker as a state machine, clock and chance passed in.

    CLOSED ──too many failed or slow, a crash loop, a failed load──► OPEN ──its time is over, a call comes──► HALF_OPEN
      ▲                                                               ▲                                           │
      └──────────────── every probe went well ────────────────────────┼───────────────────────────────────────────┤
                                                                      └──────────── one probe did not ────────────┘

| state     | a call that comes            | a call that ended well | a call that failed or was slow
|-----------|------------------------------|------------------------|----------------------------------------------------
| CLOSED    | goes through                 | counted                | counted; opens at the rates, from min_calls on
| OPEN      | refused until its time       | not counted            | not counted
| HALF_OPEN | goes through as a probe: one | a probe: the last one  | a probe: open again, for twice as long, at most
|           | first, then `probes` in all; | of them closes         | max_open_s
|           | else refused                 |                        |

A call that says nothing about the version (refused by us, malformed, cancelled) is not recorded; if it was a probe,
another may go in its place. How long it stays open is drawn within [1 - JITTER, 1] of the nominal time, so that callers
and gateways do not come back in step. Rates and the slow-call threshold are as in resilience4j's CircuitBreaker; that a
single bad probe opens again, and the doubling, as in Polly's and Finagle's.
This module does not know calls, instances, clocks or other gateways.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from enum import IntEnum
from typing import Literal

from samovar.policies import Breaker as Policy
from samovar_dispatch.health.window import FAILED, Window

JITTER = 0.2
CRASHES_TO_OPEN = 3  # in a row, without an answer in between
SIDE_BY_SIDE_S = 0.25  # instances lost within this time of each other count as one: a node that died is no crash loop
CRASH_MEMORY_S = 60.0  # a crash longer ago than this does not count any more
HALF_OPEN_WAIT_S = 1.0  # what a caller is told to wait while the probes are out
SPREAD = 0.1  # how much longer than it was told to a breaker stays open that another gateway opened
PROBE_LEASE_S = 5.0  # how long one gateway leaves the probing to another

ERROR_RATE, SLOW_CALLS, CRASH_LOOP, LOAD_FAILED, PROBE_FAILED = (
    "error_rate",
    "slow_calls",
    "crash_loop",
    "load_failed",
    "probe_failed",
)


class State(IntEnum):
    """False while calls simply go through."""

    CLOSED = 0
    OPEN = 1
    HALF_OPEN = 2

    @property
    def label(self) -> Literal["closed", "open", "half_open"]:
        """Its name in records."""
        return _LABELS[self]


_LABELS: dict[State, Literal["closed", "open", "half_open"]] = {
    State.CLOSED: "closed",
    State.OPEN: "open",
    State.HALF_OPEN: "half_open",
}


class Breaker:
    """One version's. All `_s` times are the caller's clock, seconds.

    slow_s: a call that took longer was slow. reason: why it opened last, "" while closed. until_s: no probe before
    then, while open. num_openings: in a row, the time open doubles with each. transitions: how often each state was
    entered. draw: returns chance, uniform in [0, 1).
    """

    __slots__ = (
        "_closed_s",
        "_crashed_s",
        "_draw",
        "_nominal_s",
        "_num_crashes",
        "_num_passed",
        "_policy",
        "_probes_left",
        "_round",
        "_window",
        "num_openings",
        "reason",
        "slow_s",
        "state",
        "transitions",
        "until_s",
    )

    def __init__(self, policy: Policy, draw: Callable[[], float]) -> None:
        self.state = State.CLOSED
        self.reason = ""
        self.until_s = 0.0
        self.slow_s = float("inf") if policy.slow_call_s is None else policy.slow_call_s
        self.num_openings = 0
        self.transitions: Counter[State] = Counter()
        self._policy = policy
        self._draw = draw
        self._window = Window(policy.window_calls, policy.window_s)
        self._closed_s = float("-inf")
        self._nominal_s = 0.0
        self._num_crashes = 0
        self._crashed_s = float("-inf")
        self._round = 0
        self._probes_left = self._num_passed = 0

    # ---- calls -----------------------------------------------------------------------------------------------------

    def admit(self, now_s: float) -> int:
        """Return the number of the round a call is a probe of, > 0, or 0 if it is refused. Only asked unless CLOSED."""
        if self.state is State.OPEN and now_s >= self.until_s:
            self._enter(State.HALF_OPEN)
            self._round += 1
            self._probes_left, self._num_passed = 1, 0
        if self.state is State.OPEN or not self._probes_left:
            return 0
        self._probes_left -= 1
        return self._round

    def record(self, flags: int, probe: int, now_s: float) -> None:
        """A call ended. flags: as in `window.py`, 0 = well. probe: what `admit` returned for it, 0 = it was none."""
        if not self.state:
            self._window.add(flags, now_s)
            if flags:
                self._judge(now_s)
            if not flags & FAILED:
                self._num_crashes = 0
        elif self.state is State.HALF_OPEN and probe == self._round:
            self._num_passed += 1
            if flags:
                self.open(PROBE_FAILED, now_s)
            elif self._num_passed == self._policy.probes:
                self.close(now_s)
            elif self._num_passed == 1:
                self._probes_left += self._policy.probes - 1

    def give_back(self, probe: int) -> None:
        """This probe found nothing out: another call may take its place. One of an earlier round is ignored."""
        if self.state is State.HALF_OPEN and probe == self._round:
            self._probes_left += 1

    def num_probes(self, now_s: float) -> int:
        """Return how many calls `admit` would let through now as probes. Only asked unless CLOSED."""
        return int(now_s >= self.until_s) if self.state is State.OPEN else self._probes_left

    def wait_s(self, now_s: float) -> float:
        """Return how long a refused caller should wait for the next probe, seconds, >= 0."""
        return max(0.0, self.until_s - now_s) if self.state is State.OPEN else HALF_OPEN_WAIT_S

    # ---- what opens and closes it at once -------------------------------------------------------------------------

    def crashed(self, now_s: float) -> None:
        """An instance was lost that nobody had asked to leave. A call's answer (`record`) ends a row of crashes."""
        if now_s - self._crashed_s < SIDE_BY_SIDE_S:
            return
        self._num_crashes = self._num_crashes + 1 if now_s - self._crashed_s < CRASH_MEMORY_S else 1
        self._crashed_s = now_s
        if self._num_crashes >= CRASHES_TO_OPEN and self.state is State.CLOSED:
            self.open(CRASH_LOOP, now_s)

    def load_failed(self, until_s: float) -> None:
        """It could not be brought up and may not be tried before `until_s`."""
        self.open_until(until_s, LOAD_FAILED, self.num_openings)

    def loaded(self, now_s: float) -> None:
        """An instance came up: if that was what was wrong, it is no more."""
        if self.reason == LOAD_FAILED:
            self.close(now_s)

    # ---- what other gateways say -----------------------------------------------------------------------------------

    def heard_open(self, now_s: float, remaining_s: float, reason: str, num_openings: int) -> None:
        """Another gateway opened its own for `remaining_s`: never believed for longer than max_open_s."""
        believed_s = min(max(0.0, remaining_s), self._policy.max_open_s)
        self.open_until(now_s + believed_s * (1.0 + SPREAD * self._draw()), reason, num_openings)

    def heard_probing(self, now_s: float, remaining_s: float) -> None:
        """Another gateway lets probes through now: wait for what it finds, `remaining_s` or PROBE_LEASE_S at most."""
        if self.state is State.OPEN:
            self.until_s = max(self.until_s, now_s + min(remaining_s, PROBE_LEASE_S))

    # ---- moves -----------------------------------------------------------------------------------------------------

    def open(self, reason: str, now_s: float) -> None:
        """Refuse calls for a time: open_s, doubled with every opening in a row up to max_open_s, jittered.

        A row ends when it has been closed for as long as it was last open.
        """
        if self.state is State.CLOSED and now_s - self._closed_s > self._nominal_s:
            self.num_openings = 0
        self.num_openings += 1
        doublings = min(self.num_openings - 1, 32)
        self._nominal_s = min(self._policy.max_open_s, self._policy.open_s * 2.0**doublings)
        self.open_until(now_s + self._nominal_s * (1.0 - JITTER * self._draw()), reason, self.num_openings)

    def open_until(self, until_s: float, reason: str, num_openings: int) -> None:
        """Refuse calls until then, as somebody else found: never shorter than it was to be open already."""
        if self.state is State.OPEN:
            self.until_s = max(self.until_s, until_s)
            return
        self.until_s = until_s
        self.reason = reason
        self.num_openings = num_openings
        self._enter(State.OPEN)

    def close(self, now_s: float) -> None:
        """Let calls through again and forget what was counted. Does nothing while closed."""
        if self.state is State.CLOSED:
            return
        self._window.clear()
        self._num_crashes = 0
        self._closed_s = now_s
        self.reason = ""
        self._enter(State.CLOSED)

    def _judge(self, now_s: float) -> None:
        window, policy = self._window, self._policy
        window.trim(now_s)
        if window.num < policy.min_calls:
            return
        if window.num_failed >= policy.error_rate * window.num:
            self.open(ERROR_RATE, now_s)
        elif self.slow_s < float("inf") and window.num_slow >= policy.slow_rate * window.num:
            self.open(SLOW_CALLS, now_s)

    def _enter(self, state: State) -> None:
        self.state = state
        self.transitions[state] += 1
