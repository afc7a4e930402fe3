"""What calls and instances show of a version's health, put to its breaker, and what follows when that opens.

| a call ended                                            | says of the version
|---------------------------------------------------------|---------------------------------------------------------
| with an answer                                          | well, or slow if it took longer than slow_call_s; a
|                                                         |   stream is never slow: it takes as long as it takes
| status 4xx, or its caller left                          | nothing: the caller's own doing
| before it reached an instance, or in a queue there      | nothing: too few instances are no fault of the version
| 504 while it ran, after its fair time                   | failed and slow
| 504 while it ran, its deadline shorter than a usual run | nothing: nobody could have answered
| 504 of a queued job; its instance was ended for another | nothing: its owner's own timeout; not its doing
| any other 5xx of the instance; the instance was lost    | failed

This module does not know how states travel between gateways, or what an edge makes of a refusal.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import TYPE_CHECKING

from samovar.errors import BreakerOpen, DeadlineExceeded, InstanceLost, SamovarError, rebuild
from samovar.values import Struct
from samovar_dispatch.call import Call, Outcome, Version
from samovar_dispatch.health.breaker import LOAD_FAILED, State
from samovar_dispatch.health.window import FAILED, SLOW
from samovar_storage.records import BootFailure

if TYPE_CHECKING:
    from samovar_dispatch.dispatcher import Dispatcher

log = logging.getLogger(__name__)

FAIR_RUNS = 3.0  # a deadline this many usual runs away was long enough
MAX_BACKOFF_S = 60.0  # the manager's longest; more than that is a clock that was set
SAYS_NOTHING = -1


class BreakerView(Struct, frozen=True, kw_only=True):
    """A breaker as people look at it. state: closed, open, half_open. retry_after_s: until the next probe, 0 if closed.
    reason: why it opened. num_openings: in a row, the last one included."""

    state: str
    reason: str = ""
    retry_after_s: float = 0.0
    num_openings: int = 0


class Guard:
    """One per dispatcher. on_change: called with a version whose breaker moved because of what was seen here."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self.on_change: Callable[[Version], object] = _nobody
        self._dispatcher = dispatcher

    def admit(self, version: Version, now_s: float) -> int:
        """Return the round a call is a probe of. Asked only while the breaker is not closed.

        Raises: BreakerOpen, or the error of the failed load that opened it.
        """
        before = version.breaker.state
        probe = version.breaker.admit(now_s)
        self._look(version, before)
        if not probe:
            raise refusal(version, now_s)
        return probe

    def ended(self, call: Call, outcome: Outcome, code: str, now_s: float) -> None:
        """Draw what can be drawn from a call that ended under `code`."""
        version = call.version
        breaker = version.breaker
        if code == "ok":
            if call.seat is not None:
                call.seat.owner.health.answered()
            flags = SLOW if now_s - call.sent_s > breaker.slow_s and call.stream is None else 0
        else:
            flags = verdict(call, outcome, now_s)
            if flags == SAYS_NOTHING:
                breaker.give_back(call.probe)
                return
            if call.seat is not None:
                self._dispatcher.ejections.failed(version, call.seat.owner, call.sent_s, now_s)
        before = breaker.state
        breaker.record(flags, call.probe, now_s)
        if breaker.state is not before:
            self._look(version, before)

    def crashed(self, version: Version, now_s: float) -> None:
        """An instance of this version was lost, and nobody had asked it to leave."""
        before = version.breaker.state
        version.breaker.crashed(now_s)
        self._look(version, before)

    def load_failed(self, version: Version, failure: BootFailure) -> None:
        """It could not be brought up; from its back-off on, calls are refused with `failure` until it may be tried."""
        remaining_s = min(failure.retry_at_s - time.time(), MAX_BACKOFF_S)
        if remaining_s > 0:
            before = version.breaker.state
            version.breaker.load_failed(time.monotonic() + remaining_s)
            self._look(version, before)

    def loaded(self, version: Version) -> None:
        """An instance of this version came up."""
        if version.breaker.state:
            before = version.breaker.state
            version.breaker.loaded(time.monotonic())
            self._look(version, before)

    def heard_open(self, version: Version, remaining_s: float, reason: str, num_openings: int) -> None:
        """Another gateway opened its breaker of this version for so long: so do we."""
        before = version.breaker.state
        version.breaker.heard_open(time.monotonic(), remaining_s, reason, num_openings)
        if before is not State.OPEN:
            self._opened(version)

    def heard_probing(self, version: Version, remaining_s: float) -> None:
        """Another gateway finds out whether this version works again, and tells within so long."""
        version.breaker.heard_probing(time.monotonic(), remaining_s)

    def heard_closed(self, version: Version) -> None:
        """Another gateway found that this version works again."""
        version.breaker.close(time.monotonic())

    @staticmethod
    def view(version: Version) -> BreakerView:
        """Return how the breaker of a version stands here and now."""
        breaker = version.breaker
        if not breaker.state:
            return BreakerView(state=breaker.state.label)
        wait_s = round(breaker.wait_s(time.monotonic()), 3)
        return BreakerView(
            state=breaker.state.label,
            reason=breaker.reason,
            retry_after_s=wait_s,
            num_openings=breaker.num_openings,
        )

    def _look(self, version: Version, before: State) -> None:
        state = version.breaker.state
        if state is before:
            return
        self.on_change(version)
        if state is State.OPEN:
            self._opened(version)
        else:
            log.info("breaker of %s: %s", version.ref, state.label)

    def _opened(self, version: Version) -> None:
        """Who waits is told at once: it is not their turn to find out whether the version works again."""
        now_s = time.monotonic()
        wait_s = version.breaker.wait_s(now_s)
        log.warning("breaker of %s: open for %.1f s, %s", version.ref, wait_s, version.breaker.reason)
        for call in [*version.suspects, *version.queue]:
            error = refusal(version, now_s)
            self._dispatcher.give_up(call, error, error.code)


def verdict(call: Call, outcome: Outcome, now_s: float) -> int:
    """Return the flags of a call that ended without an answer, or SAYS_NOTHING (see the module's table)."""
    if not isinstance(outcome, SamovarError) or outcome.status < 500:
        return SAYS_NOTHING
    if isinstance(outcome, InstanceLost):
        return FAILED if call.num_attempts else SAYS_NOTHING
    if call.seat is None:
        return SAYS_NOTHING
    if isinstance(outcome, DeadlineExceeded):
        if call.ask.job is not None:
            return SAYS_NOTHING
        fair_s = min(call.version.manifest.limits.timeout_s, FAIR_RUNS * call.version.service_s)
        is_fair = outcome.extra.get("phase") == "run" and now_s - call.sent_s >= 0.9 * fair_s
        return FAILED | SLOW if is_fair else SAYS_NOTHING
    return FAILED


def refusal(version: Version, now_s: float) -> SamovarError:
    """Return what a call is refused with while the breaker is not closed. now_s: monotonic seconds."""
    breaker = version.breaker
    wait_s = breaker.wait_s(now_s)
    if version.boot_failure is not None and breaker.reason == LOAD_FAILED:
        return boot_error(version.boot_failure, wait_s)
    reason = breaker.reason.replace("_", " ")
    return BreakerOpen(f"{version.ref} fails too often ({reason})", retry_after_s=wait_s, reason=breaker.reason)


def boot_error(failure: BootFailure, wait_s: float) -> SamovarError:
    """Return the error callers get for a failed boot. wait_s: until the next one may be tried, seconds."""
    extra = {"phase": failure.phase, "log_tail": failure.log_tail, "num_failures": failure.num_failures}
    error = rebuild(failure.code, failure.status, failure.detail, extra)
    error.retry_after_s = max(1.0, wait_s)
    return error


def _nobody(_version: Version) -> None:
    """Tell nobody: until somebody shares the breakers' states."""
