"""What several asks of one request yield, as one sequence: whoever has something is read in turn.

Nothing is read ahead: what waits is bounded by each stream's credit, which flows back as pieces are taken. An answer
that is one value, such as a fallback's, is one piece. This module does not know what is in pieces.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Sequence
from functools import partial

from samovar_dispatch.ask import Ask
from samovar_dispatch.call import Call, Outcome
from samovar_dispatch.journey import Journey
from samovar_dispatch.stream import ChunkStream, stream_of
from samovar_gateway.calling import pays_for_all


class Pieces:
    """Makes itself the asks' listener; to be begun once. calls: that answered each, None if none did (yet)."""

    def __init__(self, journey: Journey, asks: Sequence[Ask]) -> None:
        self.calls: list[Call | None] = [None] * len(asks)
        self._journey = journey
        self._asks = asks
        self._streams: list[ChunkStream | None] = [None] * len(asks)
        self._open = deque(range(len(asks)))
        self._news = asyncio.Event()
        pays_for_all(asks)
        for place, ask in enumerate(asks):
            ask.deliver = partial(self._deliver, place)

    def begin(self, bodies: Sequence[bytes]) -> None:
        """Begin every ask. Raises: SamovarError when one is refused; those before it are to be abandoned."""
        for ask, body in zip(self._asks, bodies, strict=True):
            self._journey.begin(ask, body)

    @property
    def is_over(self) -> bool:
        """Whether all was taken that will ever come."""
        return not self._open

    @property
    def last(self) -> tuple[Call, ChunkStream] | None:
        """The call that ended last, of those that answered, and its stream."""
        told = [(call, stream) for call, stream in zip(self.calls, self._streams, strict=True) if call and stream]
        return max(told, key=lambda one: one[0].ended_s, default=None)

    def take(self) -> tuple[int, bytes] | None:
        """Return the next piece that is there, and the place of its ask; None if none is.

        Raises: SamovarError, Cancelled: what an ask failed with.
        """
        self._news.clear()
        for place in [*self._open]:
            stream = self._streams[place]
            if stream is None:
                continue
            chunk = stream.take()
            if chunk is not None:
                self._open.remove(place)
                self._open.append(place)
                return place, chunk
            if stream.is_over:
                self._open.remove(place)
        return None

    async def wait(self, patience_s: float | None = None) -> bool:
        """Wait until there is news; return False if none came within `patience_s`."""
        try:
            async with asyncio.timeout(patience_s):
                await self._news.wait()
        except TimeoutError:
            return False
        return True

    def _deliver(self, place: int, call: Call | None, outcome: Outcome) -> None:
        self.calls[place] = call
        stream = stream_of(outcome)
        stream.on_news = self._news.set
        self._streams[place] = stream
        self._news.set()
