"""What there is to tell of one invocation: its items, what its handler says meanwhile, and how it ended, in order.

    begin ─► next, next, … None ─► news ─► next … ─► is_over ─► receipt
                                                        └─ raises what the call came to

What waits here is bounded: items by the stream's credit, which flows back as they are taken, what the handler says by
`heard.py`. This module does not know connections, ids or instances.
"""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec

from samovar.wire import LogLine, Progress, Result
from samovar_dispatch.ask import Ask
from samovar_dispatch.call import Call, Outcome
from samovar_dispatch.stream import ChunkStream, stream_of
from samovar_gateway import problems
from samovar_gateway.events import encoding
from samovar_gateway.events.heard import Heard
from samovar_gateway.state import GatewayState
from samovar_gateway.timing import phases_ms


class Source:
    """One invocation, whose listener it makes itself. news: set whenever `next` or `is_over` may have changed."""

    def __init__(self, state: GatewayState, ask: Ask) -> None:
        self.ask = ask
        self.news = asyncio.Event()
        self._state = state
        self._heard = Heard()
        self._call: Call | None = None
        self._stream: ChunkStream | None = None  # every outcome is one, once it is there
        self._content_type = encoding.JSON
        ask.deliver = self._deliver
        ask.hear = self._hear

    def begin(self, body: bytes) -> None:
        """Begin the invocation. Raises: SamovarError when it is refused."""
        self._state.journey.begin(self.ask, body)

    def next(self) -> tuple[str, bytes] | None:
        """Return kind and data of the next event that is there, None if none is."""
        stream = self._stream
        said = self._heard.take(stream.num_taken if stream is not None else 0)
        if isinstance(said, Progress):
            return "progress", msgspec.json.encode({"fraction": said.fraction, "message": said.message})
        if said is not None:
            return "log", msgspec.json.encode({"line": said.line})
        chunk = stream.take() if stream is not None else None
        return ("output", encoding.as_json(self._content_type, chunk)) if chunk is not None else None

    @property
    def is_over(self) -> bool:
        """Whether nothing comes after what `next` gave, and it was a clean end. Raises: what the call came to."""
        return self._stream is not None and self._stream.is_over

    def whereabouts(self) -> str:
        """Return where the call is: what a person who reads the raw stream wants to know."""
        return whereabouts(self._state, self.ask)

    def headers(self) -> problems.Headers:
        """Return what the answer's headers say of the call, as far as it is known now."""
        headers = [(b"x-request-id", self.ask.request_id)]
        if self._call is not None:
            headers.append((b"samovar-version", self._call.version.label))
        return [*headers, *self.ask.more_headers]

    def receipt(self) -> bytes:
        """Return what headers would say if they came last."""
        said = {name.decode(): value.decode("latin-1") for name, value in self.ask.more_headers}
        receipt: dict[str, Any] = {"num_outputs": self._stream.num_taken if self._stream is not None else 0}
        if self._call is not None and self._stream is not None:
            said["samovar-version"] = self._call.version.label.decode()
            receipt["timing_ms"] = phases_ms(self._call, self._stream.wait_us, self._stream.run_us)
        return msgspec.json.encode({**receipt, "headers": said})

    def _deliver(self, call: Call | None, outcome: Outcome) -> None:
        """Take the outcome: whatever it is, the rest of it is read as a stream."""
        self._call = call
        if isinstance(outcome, Result):
            self._content_type = outcome.content_type
        self._stream = stream_of(outcome)
        self._stream.on_news = self.news.set
        self.news.set()

    def _hear(self, message: Progress | LogLine) -> None:
        self._heard.add(self._stream.num_fed if self._stream is not None else 0, message)
        self.news.set()


def whereabouts(state: GatewayState, ask: Ask) -> str:
    """Return where what is under way for an ask is, in words for people."""
    place = ask.handle.place() if ask.handle is not None else None
    if place is None or ask.version is None:
        return "running"
    return f"waiting, phase {state.dispatcher.room.phase(ask.version)}, {place} ahead"
