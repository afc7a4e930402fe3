"""The order of things between an edge and the dispatcher, for every invocation.

    begin ─► version by route ─► submit ─► outcome ─► deliver to the edge
                 │                 │           └────► note (request log, counters)
                 └── refused ──────┴─► raised to the edge, and noted

Every invocation whose function is known is noted exactly once, whatever became of it. This module does not know
protocols; the edges (`samovar_gateway`) know nothing else of this room but `Ask` and `Journey`.
"""

from __future__ import annotations

import random
from collections.abc import Callable

from samovar.errors import SamovarError
from samovar_dispatch.ask import Ask, Handle
from samovar_dispatch.call import Call, Outcome, Owner, Version
from samovar_dispatch.dispatcher import Dispatcher

Note = Callable[[Ask, Call | None, Outcome, str], object]


class Journey:
    """One per process. notes: called with every ask when it ended: its last call if it had one, outcome and code."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self.notes: list[Note] = []
        self._dispatcher = dispatcher

    def begin(self, ask: Ask, body: bytes) -> None:
        """Take an invocation in; `ask.deliver` is called once, later, with its outcome.

        Raises: SamovarError (already noted) when it is refused: then `ask.deliver` is not called.
        """
        ask.body = body
        entry = ask.entry
        try:
            version = entry.only or entry.choose(ask, random.random())  # noqa: S311  shares of traffic are no secret
            ask.handle = self.attempt(version, ask, self)
        except SamovarError as error:
            self.note(ask, None, error, error.code)
            raise

    def attempt(self, version: Version, ask: Ask, owner: Owner) -> Handle:
        """Try one version for an ask; `owner` is told of the one call that stands for the attempt.

        Raises: what `Dispatcher.submit` raises; then `owner` is told nothing.
        """
        return self._dispatcher.submit(version, ask, owner)

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
