"""The order of things between an edge and the dispatcher, for every invocation.

    begin ─► rate limits ─► version by route ─► submit ─► outcome ─► deliver to the edge
                 │               │                │           └────► note (request log, counters)
                 └── refused ────┴────────────────┴─► raised to the edge, and noted

Asks of versions with a cache or a fallback take the longer way of `errand.py`, attempts at queued jobs a shorter one.
Every invocation whose function is known is noted exactly once, whatever became of it. This module does not know
protocols; the edges (`samovar_gateway`) know nothing else of this room but `Ask` and `Journey`.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import TYPE_CHECKING

from samovar.errors import SamovarError
from samovar_dispatch.ask import Ask, Handle
from samovar_dispatch.call import Call, Outcome, Owner, Version
from samovar_dispatch.dispatcher import Dispatcher
from samovar_dispatch.rates.rate_limits import RateLimits
from samovar_dispatch.retries.hedge import Hedge
from samovar_dispatch.shadow import Shadow

if TYPE_CHECKING:
    from samovar_dispatch.answers.errand import Errands

Note = Callable[[Ask, Call | None, Outcome, str], object]


class Journey:
    """One per process. notes: called with every ask when it ended: its last call if it had one, outcome and code.

    errands: takes over the asks of versions that wish for a cache or a fallback; set once, before the first ask.
    """

    errands: Errands

    def __init__(self, dispatcher: Dispatcher) -> None:
        self.notes: list[Note] = []
        self.rates = RateLimits()
        self.shadow = Shadow(self)
        self._dispatcher = dispatcher

    def begin(self, ask: Ask, body: bytes) -> None:
        """Take an invocation in; `ask.deliver` is called once, later or at once, with its outcome.

        Raises: SamovarError (already noted) when it is refused: then `ask.deliver` is not called.
        """
        ask.body = body
        entry = ask.entry
        try:
            if (ask.rate is not None or entry.rates is not None) and ask.num_paid:
                self.rates.take(ask.key_id, ask.rate, entry.record.name, entry.rates, ask.num_paid)
            version = ask.version or entry.only or entry.choose(ask, random.random())  # noqa: S311  no secret
            ask.version = version
            if entry.mirror is not None and random.random() < entry.mirror_share:  # noqa: S311
                self.shadow.offer(ask, entry.mirror)
            if version.recipe is None:
                ask.handle = self.attempt(version, ask, self)
            else:
                self.errands.begin(ask, version, version.recipe)
        except SamovarError as error:
            self.note(ask, None, error, error.code)
            raise

    def attempt(self, version: Version, ask: Ask, owner: Owner) -> Handle:
        """Try one version for an ask; `owner` is told of the one call that stands for the attempt: the first to
        answer, if the version has calls hedged.

        Raises: what `Dispatcher.submit` raises; then `owner` is told nothing.
        """
        if version.hedging is not None:
            return Hedge(self._dispatcher, version, version.hedging, ask, owner)
        return self._dispatcher.submit(version, ask, owner)

    def begin_job(self, ask: Ask, version: Version) -> None:
        """Take in an attempt at a queued job, with `ask.body` and for this version; as `begin`, but on the plain way:
        a job is run, not answered by others, nor twice, nor copied, and being refused is no news: it waits again.

        Raises: SamovarError when it is refused: then `ask.deliver` is not called, and nothing is noted.
        """
        entry = ask.entry
        if ask.rate is not None or entry.rates is not None:
            self.rates.take(ask.key_id, ask.rate, entry.record.name, entry.rates)
        ask.version = version
        ask.handle = self._dispatcher.submit(version, ask, self)

    def refuse(self, ask: Ask, error: SamovarError) -> SamovarError:
        """Note an invocation that is refused before it began; return the error, to be raised."""
        self.note(ask, None, error, error.code)
        return error

    def deliver(self, call: Call, outcome: Outcome) -> None:
        """Our side of `call.Owner`: the only call of its ask has an outcome."""
        call.ask.deliver(call, outcome)

    def ended(self, call: Call, outcome: Outcome, code: str) -> None:
        """Our side of `call.Owner`: the only call of its ask ended."""
        self.note(call.ask, call, outcome, code)

    def note(self, ask: Ask, call: Call | None, outcome: Outcome, code: str) -> None:
        """The ask ended."""
        for note in self.notes:
            note(ask, call, outcome, code)
