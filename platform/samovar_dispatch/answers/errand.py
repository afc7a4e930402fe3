"""One ask of a version that wishes for more than a call: a cache in front of it, or something else to answer with when
the call comes to nothing.

    begin ─► reuse.py (with a cache) ─► attempt ─► answer ─► kept
                                           │ 5xx
                                           └─► cached ─► version ─► function ─► value ─► else the first error

An errand is the owner of its calls and the handle of its ask; it answers once and is noted once. The calls of a link
are plain attempts: what they fall back to themselves is not asked, so chains end after one step, whatever they name.
A part of the deadline is held back while a link is left that answers at once (`fallbacks.reserve_s`).
This module does not know protocols or Redis.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Protocol

from samovar.errors import Cancelled, ProtocolError, SamovarError
from samovar.spec import stand_in
from samovar.wire import Result
from samovar_dispatch.answers import fallbacks
from samovar_dispatch.answers.cabinet import MAX_INPUT_BYTES, Cabinet, Lookup
from samovar_dispatch.answers.fallbacks import Header, Link, Recipe
from samovar_dispatch.answers.reuse import Reuse
from samovar_dispatch.answers.single_flight import Flights
from samovar_dispatch.ask import CACHED, FALLBACK, Ask, Handle
from samovar_dispatch.call import Call, Outcome, Owner, Version
from samovar_dispatch.stream import ChunkStream
from samovar_storage.answers import Answer

if TYPE_CHECKING:
    from samovar_dispatch.functions import FunctionEntry

MIN_ATTEMPT_S = 0.002


class Attempts(Protocol):
    """What an errand needs of the journey it is part of."""

    def attempt(self, version: Version, ask: Ask, owner: Owner) -> Handle: ...
    def note(self, ask: Ask, call: Call | None, outcome: Outcome, code: str) -> None: ...


class Errands:
    """What the errands of a process share. functions: entries by name."""

    def __init__(self, journey: Attempts, functions: Mapping[str, FunctionEntry], cabinet: Cabinet) -> None:
        self.journey = journey
        self.functions = functions
        self.cabinet = cabinet
        self.flights: Flights[Reuse] = Flights()
        self.loop = asyncio.get_running_loop()

    def begin(self, ask: Ask, version: Version, recipe: Recipe) -> None:
        """Take the ask in; `ask.deliver` is called once, perhaps before this returns. Refusals are delivered, too."""
        errand = Errand(self, ask, version, recipe)
        ask.handle = errand
        errand.begin()


class Errand:
    """See the module. is_done: it is answered. `ask.Handle` and `call.Owner`."""

    __slots__ = (
        "_deadline_s",
        "_failure",
        "_handle",
        "_link",
        "_links",
        "_lookup",
        "_reuse",
        "ask",
        "desk",
        "is_done",
        "recipe",
        "version",
    )

    def __init__(self, desk: Errands, ask: Ask, version: Version, recipe: Recipe) -> None:
        self.desk = desk
        self.ask = ask
        self.version = version
        self.recipe = recipe
        self.is_done = False
        self._links = recipe.links
        self._link: Link | None = None  # under way; None = the call itself
        self._deadline_s = ask.deadline_s
        self._handle: Handle | None = None
        self._lookup: Lookup | None = None
        self._failure: tuple[Call | None, SamovarError] | None = None
        self._reuse = Reuse(self, recipe.fresh) if recipe.fresh is not None else None

    def begin(self) -> None:
        """Answer from the cache, follow an identical call, or make the call."""
        if self._reuse is not None:
            self._reuse.begin()
        else:
            self.submit()

    def submit(self) -> None:
        """Make the call itself."""
        try:
            self._attempt(self.version)
        except SamovarError as error:
            self.failed(None, error)

    def reused(self, answer: Answer, headers: Sequence[Header]) -> None:
        """Answer with what somebody else's call gave."""
        self.ask.marks |= CACHED
        self.ask.answered_by = self._own_ref(answer)
        self.ask.more_headers = headers
        self._answer(None, _result(answer), "ok")

    def remaining_s(self) -> float:
        """Return the seconds until the deadline of the ask."""
        return self._deadline_s - time.monotonic()

    def cancel(self) -> None:
        """Nobody wants the answer any more. Idempotent."""
        if self._handle is not None:
            self._handle.cancel()
        elif not self.is_done:
            if self._lookup is not None:
                self._lookup.cancel()
            if self._reuse is not None:
                self._reuse.leave()
            self._answer(self._first_call(), Cancelled(), "cancelled")

    def place(self) -> int | None:
        """Return the place of the attempt that is under way, None if none is."""
        return self._handle.place() if self._handle is not None else None

    # ---- calls -----------------------------------------------------------------------------------------------------

    def _attempt(self, version: Version) -> None:
        """Call a version, to end in time for the links that are left. Raises: what an attempt raises."""
        self.ask.deadline_s = self._deadline_s - fallbacks.reserve_s(self._links, self.remaining_s())
        self._handle = self.desk.journey.attempt(version, self.ask, self)

    def deliver(self, call: Call, outcome: Outcome) -> None:
        """An attempt has its outcome."""
        if self.is_done:
            return
        if isinstance(outcome, ChunkStream):
            self._begin_stream(call, outcome)
            return
        self._handle = None
        if isinstance(outcome, Result):
            self._succeeded(call, outcome)
        elif isinstance(outcome, Cancelled):
            if self._reuse is not None:
                self._reuse.failed(outcome)
            self._answer(call, outcome, "cancelled")
        else:
            self.failed(call, outcome)

    def ended(self, call: Call, outcome: Outcome, code: str) -> None:
        """An attempt is over: a stream that is the answer is noted only now, all else was when it was delivered."""
        if self._handle is not None and call.stream is not None:
            self._handle = None
            self.desk.journey.note(self.ask, call, outcome, code)

    def _begin_stream(self, call: Call, stream: ChunkStream) -> None:
        if not self.ask.entry.streams:  # the edge took the ask for one that has a single value
            self._handle = None
            call.cancel()
            self.failed(call, ProtocolError("a stream cannot stand in for one value"))
            return
        self.is_done = True
        if self._link is not None:
            self._mark(self._link, call.version)
        self.ask.deliver(call, stream)

    def _succeeded(self, call: Call, result: Result) -> None:
        if self._link is not None:
            self._mark(self._link, call.version)
        else:
            self._keep(call, result)
        self._answer(call, result, "ok")

    def _keep(self, call: Call, result: Result) -> None:
        """Keep a good answer, unless its caller forbids it or it is too large; identical asks get it."""
        ask, recipe, cabinet = self.ask, self.recipe, self.desk.cabinet
        answer = Answer(result.body, result.content_type, call.version.label.decode(), time.time())
        may_keep = not ask.no_store and len(ask.body) <= MAX_INPUT_BYTES
        may_keep = may_keep and len(result.body) <= cabinet.max_answer_bytes
        if may_keep and recipe.stale is not None:
            cabinet.keep(recipe.stale, ask.key_id, ask.body, answer, accept=ask.accept)
        if self._reuse is not None and recipe.fresh is not None:
            if may_keep:
                cabinet.keep(recipe.fresh, ask.key_id, ask.body, answer, self._reuse.key, ask.accept)
            self._reuse.succeeded(answer, may_keep)
            ask.more_headers = ((b"cache-status", self._reuse.status),)

    # ---- the chain -------------------------------------------------------------------------------------------------

    def failed(self, call: Call | None, error: SamovarError) -> None:
        """An attempt came to nothing, or none could be made: the next link answers, or the first error does."""
        if self._failure is None:
            self._failure = (call, error)
            if self._reuse is not None:
                self._reuse.failed(error)
        first = self._failure[1]
        while self._links and fallbacks.falls_back(first):
            self._link, self._links = self._links[0], self._links[1:]
            if self._try(self._link):
                return
        if self.recipe.links and fallbacks.falls_back(first):
            self._count("none")
        self._answer(*self._failure, first.code)

    def _try(self, link: Link) -> bool:
        """Return whether the link answered, or is under way and will call back."""
        if link == "cached":
            return self._try_cached()
        if link == "value":
            self._mark(link, self.version)
            self._answer(self._first_call(), Result(0, self.recipe.value, 0, 0, 1, 0), "ok")
            return True
        target = self._previous() if link == "version" else self._other_function()
        if target is None or self.remaining_s() < max(MIN_ATTEMPT_S, target.service_s):
            return False
        try:
            self._attempt(target)
        except SamovarError:
            return False
        return True

    def _try_cached(self) -> bool:
        ask, cabinet, scope = self.ask, self.desk.cabinet, self.recipe.stale
        if scope is None or ask.no_store or len(ask.body) > MAX_INPUT_BYTES:
            return False
        key = cabinet.key(scope, ask.key_id, ask.body, ask.accept)
        answer, remaining_s = cabinet.look(key, scope.lifetime_s), self.remaining_s()
        if answer is not None:
            self._stale(answer)
            return True
        if remaining_s <= 0 or not cabinet.can_fetch:
            return False
        self._lookup = cabinet.fetch(key, scope.lifetime_s, remaining_s, self._looked)
        return True

    def _looked(self, answer: Answer | None) -> None:
        self._lookup = None
        if answer is not None:
            self._stale(answer)
        else:
            self.failed(*self._first())

    def _stale(self, answer: Answer) -> None:
        call, error = self._first()
        self._count("cached")
        self.ask.marks |= FALLBACK | CACHED
        self.ask.answered_by = self._own_ref(answer)
        age_s = self.desk.cabinet.age_s(answer)
        self.ask.more_headers = fallbacks.stale_headers(answer.version, age_s, error)
        self._answer(call, _result(answer), "ok")

    def _previous(self) -> Version | None:
        """Return the version to fall back to, if there is one."""
        entry = self.ask.entry
        wanted = stand_in(entry.record.route, self.version.manifest)
        return entry.versions.get(wanted) if wanted is not None else None

    def _other_function(self) -> Version | None:
        entry = self.desk.functions.get(self.recipe.function or "")
        return entry.choose(self.ask, 0.5) if entry is not None else None

    # ---- the end ---------------------------------------------------------------------------------------------------

    def _mark(self, link: Link, version: Version) -> None:
        """Say and count that `link` stands in; `version` is what answered."""
        self._count(link)
        self.ask.marks |= FALLBACK
        self.ask.answered_by = link if link == "value" else version.ref
        self.ask.more_headers = fallbacks.link_headers(link, version.manifest.name, version.label)

    def _answer(self, call: Call | None, outcome: Outcome, code: str) -> None:
        """Tell the caller and note it. call: the last one; its receipt goes with its own result alone."""
        self.is_done = True
        ask = self.ask
        ask.deadline_s = self._deadline_s
        is_own = not (ask.marks & CACHED or self._link == "value")
        ask.deliver(call if is_own else None, outcome)
        self.desk.journey.note(ask, call, outcome, code)

    def _first(self) -> tuple[Call | None, SamovarError]:
        assert self._failure is not None, "a link is tried only after something failed"
        return self._failure

    def _first_call(self) -> Call | None:
        return self._failure[0] if self._failure is not None else None

    def _own_ref(self, answer: Answer) -> str:
        return f"{self.version.manifest.name}@{answer.version}"

    def _count(self, what: str) -> None:
        counts = self.version.stats.fallbacks
        counts[what] = counts.get(what, 0) + 1


def _result(answer: Answer) -> Result:
    return Result(0, answer.body, 0, 0, 1, 0, answer.content_type)
