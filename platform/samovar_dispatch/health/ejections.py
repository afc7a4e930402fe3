"""Instances that do worse than their peers: no more calls, until a check of their own went well.

    serving ──outlier──► left alone ──its time is over──► Check ──went well──► serving
                              ▲                              └───failed───┐
                              └────────── for twice as long ◄─────────────┘ from the third on: told to be replaced

    runs several at once, and says nothing for a call's whole time nor to its cancellation ──► told to be replaced

What an ejected instance holds still ends there. Each gateway judges for itself, by the calls it gave. This module knows
connections and seats; what makes an outlier is `outliers.py`, and who replaces an instance is not known here.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from samovar_dispatch.health.outliers import (
    INTERVAL_S,
    MAX_FAILED_CHECKS,
    MAX_IN_A_ROW,
    left_alone_s,
    may_eject,
    outliers,
)

if TYPE_CHECKING:
    from samovar_dispatch.call import Call, Version
    from samovar_dispatch.connection import InstanceConnection
    from samovar_dispatch.dispatcher import Dispatcher

log = logging.getLogger(__name__)

MAX_CHECK_S = 30.0  # longest a check may take; less if calls of the version may
GRACE_S = 2.0  # for the answer to come through
HANGS_S = 1.0  # an async instance confirms in milliseconds that a call was cancelled
BUSY_AGAIN_S = 1.0  # until an instance that is full is asked again


class Ejections:
    """One per dispatcher. first_s: how long an instance is left alone the first time. on_unwell: called with one whose
    checks keep failing, and what the last of them said."""

    def __init__(self, dispatcher: Dispatcher, loop: asyncio.AbstractEventLoop) -> None:
        self.first_s = 10.0
        self.on_unwell: Callable[[InstanceConnection, str], object] = _nobody
        self._dispatcher = dispatcher
        self._loop = loop

    def failed(self, version: Version, connection: InstanceConnection, sent_s: float, now_s: float) -> None:
        """A call that this instance got at `sent_s` failed there."""
        connection.health.failed(sent_s, now_s)
        if version.breaker.state or len(version.members) < 2:
            return
        if connection.health.in_a_row >= MAX_IN_A_ROW:
            self._eject(version, connection, f"{connection.health.in_a_row} failures in a row", now_s)
        if now_s - version.compared_s >= INTERVAL_S:
            self._compare(version, now_s)

    def expired(self, call: Call) -> None:
        """The deadline of a call passes while it runs. An instance with other slots free would be given more calls: if
        it does not answer at all, it hangs."""
        version, seat = call.version, call.seat
        if seat is None or seat.slots == 1 or version.manifest.batch is not None:
            return
        connection = seat.owner
        if connection.heard_s < call.sent_s:
            self._loop.call_later(HANGS_S, self._look_for_life, version, connection, connection.heard_s)

    def _look_for_life(self, version: Version, connection: InstanceConnection, heard_s: float) -> None:
        if connection.opened and connection.heard_s == heard_s and not connection.is_deaf:
            log.warning("instance %s of %s says nothing", connection.record.instance_id, version.ref)
            connection.is_deaf = True
            version.seats.close(connection.seat)
            self.on_unwell(connection, "it says nothing")
            self._loop.call_later(HANGS_S, self._listen, version, connection, heard_s)

    def _listen(self, version: Version, connection: InstanceConnection, heard_s: float) -> None:
        """Give it calls again once it says anything."""
        if not connection.opened or not connection.is_deaf:
            return
        if connection.heard_s > heard_s:
            connection.is_deaf = False
            self._dispatcher.reopen(connection, version)
        else:
            self._loop.call_later(HANGS_S, self._listen, version, connection, heard_s)

    def _compare(self, version: Version, now_s: float) -> None:
        """Look at every instance beside its peers; count anew from here."""
        version.compared_s = now_s
        serving = [member for member in version.members.values() if member.may_serve]
        calls = {member: (member.health.num_ok, member.health.num_failed) for member in serving}
        for member in serving:
            member.health.num_ok = member.health.num_failed = 0
        for member in outliers(calls):
            ok, failed = calls[member]
            self._eject(version, member, f"{failed} of {ok + failed} calls failed, more than its peers'", now_s)

    def _eject(self, version: Version, connection: InstanceConnection, why: str, now_s: float) -> None:
        num_serving = sum(member.may_serve for member in version.members.values())
        if not connection.may_serve or not may_eject(num_serving, len(version.members)):
            return
        connection.is_ejected = True
        version.stats.ejections += 1
        version.seats.close(connection.seat)
        alone_s = connection.health.eject(now_s, self.first_s)
        name = connection.record.instance_id
        log.warning("instance %s of %s: no calls for %.0f s, %s", name, version.ref, alone_s, why)
        if version.isolated is connection.seat:
            version.isolated = None
        self._loop.call_later(alone_s, self._check, version, connection)
        self._loop.call_soon(self._dispatcher.pump, version)

    def _check(self, version: Version, connection: InstanceConnection) -> None:
        """Ask the instance whether it is well, unless it is leaving or gone."""
        if connection.opened and connection.is_ejected:
            timeout_s = min(version.manifest.limits.timeout_s, MAX_CHECK_S)
            connection.check(timeout_s, partial(self._checked, version, connection))
            late = partial(connection.check_ended, connection.check_id, "no answer within its time")
            self._loop.call_later(timeout_s + GRACE_S, late)

    def _checked(self, version: Version, connection: InstanceConnection, fault: str | None, was_busy: bool) -> None:
        """The check ended. fault: what it said, None if all is well. was_busy: it never began."""
        if not connection.opened:
            return
        if was_busy:
            self._loop.call_later(BUSY_AGAIN_S, self._check, version, connection)
        elif fault is None:
            log.info("instance %s of %s: well again", connection.record.instance_id, version.ref)
            connection.health.take_back(time.monotonic())
            connection.is_ejected = False
            self._dispatcher.reopen(connection, version)
        else:
            self._still_unwell(version, connection, fault)

    def _still_unwell(self, version: Version, connection: InstanceConnection, fault: str) -> None:
        health = connection.health
        health.failed_checks += 1
        name = connection.record.instance_id
        log.warning("instance %s of %s: check %d failed: %s", name, version.ref, health.failed_checks, fault)
        if health.failed_checks >= MAX_FAILED_CHECKS:
            self.on_unwell(connection, fault)
        again_s = left_alone_s(health.num_ejections + health.failed_checks, self.first_s)
        self._loop.call_later(again_s, self._check, version, connection)


def _nobody(_connection: InstanceConnection, _fault: str) -> None:
    """Tell nobody: until somebody knows who replaces instances."""
