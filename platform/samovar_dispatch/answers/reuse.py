"""One ask of a version with a fresh cache: answered from what is kept, by an identical call in flight, or by a call.

    begin ─► kept and fresh? ──► hit
          ─► identical call in flight? ──► follow: its answer, or the failure that everybody would get
          ─► lead: look in Redis, then call; whoever leads and is out (left, late, refused) hands over to who follows

Everybody keeps their own deadline and may leave. A caller says no-cache to have it computed, no-store to stay out.
This module does not know protocols, Redis or fallbacks.
"""

from __future__ import annotations

import asyncio
import time
from typing import TYPE_CHECKING

from samovar.errors import Cancelled, DeadlineExceeded, QueueFull, SamovarError
from samovar_dispatch.answers import fallbacks
from samovar_dispatch.answers.cabinet import MAX_INPUT_BYTES, Lookup
from samovar_dispatch.answers.fallbacks import Scope
from samovar_storage.answers import Answer

if TYPE_CHECKING:
    from samovar_dispatch.answers.errand import Errand


class Reuse:
    """The part of an errand that spares calls. key: of the answer, "" when it may not be kept. status: what
    Cache-Status says of an answer that was computed."""

    __slots__ = ("_errand", "_leads", "_scope", "_waiting", "key", "status")

    def __init__(self, errand: Errand, scope: Scope) -> None:
        self.key = ""
        self.status = b"samovar; fwd=miss"
        self._errand = errand
        self._scope = scope
        self._leads = False
        self._waiting: Lookup | asyncio.TimerHandle | None = None

    def begin(self) -> None:
        """Answer the errand, or have it wait or call."""
        errand, scope = self._errand, self._scope
        ask, flights, cabinet = errand.ask, errand.desk.flights, errand.desk.cabinet
        if ask.no_store or len(ask.body) > MAX_INPUT_BYTES:
            self._bypass(b"request" if ask.no_store else b"bypass")
            return
        self.key = cabinet.key(scope, ask.key_id, ask.body, ask.accept)
        if b"no-cache" in ask.header.get(b"cache-control", b"").lower():
            self._bypass(b"request")
        elif (answer := cabinet.look(self.key, scope.lifetime_s)) is not None:
            self._hit(answer)
        elif flights.size(self.key) > errand.version.manifest.limits.max_queue:
            errand.failed(None, QueueFull("too many identical calls wait for one answer", retry_after_s=1.0))
        elif flights.join(self.key, self):
            self._lead()
        else:
            self._follow()

    def succeeded(self, answer: Answer, is_kept: bool) -> None:
        """The errand's call was answered: who follows gets it, too."""
        if is_kept:
            self.status += b"; stored"
        if self._leads:
            self._leads = False
            for follower in self._errand.desk.flights.land(self.key):
                follower._collapsed(answer)

    def failed(self, reason: SamovarError | Cancelled) -> None:
        """The errand's call came to nothing: so does that of who follows, or the next of them tries."""
        if not self._leads:
            return
        self._leads = False
        flights = self._errand.desk.flights
        if isinstance(reason, SamovarError) and fallbacks.is_shared(reason, self._scope):
            for follower in flights.land(self.key):
                follower._stop_waiting()
                follower._errand.failed(None, reason)
        elif (heir := flights.hand_over(self.key)) is not None:
            heir._stop_waiting()
            heir._leads = True
            self._errand.desk.loop.call_soon(heir._inherit)

    def leave(self) -> None:
        """The caller left while no call was under way."""
        self._stop_waiting()
        if self._leads:
            self.failed(Cancelled())
        elif self.key:
            self._errand.desk.flights.leave(self.key, self)

    def _bypass(self, why: bytes) -> None:
        self.status = b"samovar; fwd=" + why
        self._count("bypass")
        self._errand.submit()

    def _hit(self, answer: Answer) -> None:
        self._count("hit")
        age_s = self._errand.desk.cabinet.age_s(answer)
        self._errand.reused(answer, fallbacks.fresh_headers(answer.version, age_s, self._scope.lifetime_s))

    def _lead(self) -> None:
        self._leads = True
        cabinet = self._errand.desk.cabinet
        if cabinet.can_fetch:
            timeout_s = self._errand.remaining_s()
            self._waiting = cabinet.fetch(self.key, self._scope.lifetime_s, timeout_s, self._looked)
        else:
            self._looked(None)

    def _looked(self, answer: Answer | None) -> None:
        self._waiting = None
        if answer is None:
            self._count("miss")
            self._errand.submit()
        else:
            self.succeeded(answer, is_kept=False)
            self._hit(answer)

    def _inherit(self) -> None:
        """The leader is out, this one leads."""
        if not self._errand.is_done:
            self._errand.submit()

    def _follow(self) -> None:
        wait_s = self._errand.remaining_s()
        wait_s -= fallbacks.reserve_s(self._errand.recipe.links, wait_s)
        self._waiting = self._errand.desk.loop.call_later(max(0.0, wait_s), self._waited)

    def _waited(self) -> None:
        """A follower's own deadline has come."""
        self._waiting = None
        self._errand.desk.flights.leave(self.key, self)
        waited_s = time.monotonic() - self._errand.ask.arrived_s
        text = f"the deadline passed after {waited_s:.2f} s, while an identical call ran"
        self._errand.failed(None, DeadlineExceeded(text, phase="run"))

    def _collapsed(self, answer: Answer) -> None:
        self._stop_waiting()
        self._count("collapsed")
        self._errand.reused(answer, fallbacks.collapsed_headers(answer.version))

    def _stop_waiting(self) -> None:
        if self._waiting is not None:
            self._waiting.cancel()
            self._waiting = None

    def _count(self, what: str) -> None:
        counts = self._errand.version.stats.cache
        counts[what] = counts.get(what, 0) + 1
