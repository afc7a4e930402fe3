"""All resumable streams whose calls this gateway has. This module does not know HTTP or Redis."""

from __future__ import annotations

import asyncio
import time
from secrets import token_hex

from samovar.errors import StreamNotFound, Unavailable
from samovar_dispatch.ask import Ask
from samovar_gateway.events import places
from samovar_gateway.events.ledger import Budget
from samovar_gateway.events.resumable import Reader, Resumable
from samovar_gateway.events.source import Source

SWEEP_S = 0.1


class Streams:
    """gateway: what this process is called in the ids of its events. max_bytes: what all streams may keep."""

    def __init__(self, max_bytes: int) -> None:
        self.gateway = token_hex(places.GATEWAY_BYTES)
        self._budget = Budget(max_bytes)
        self._streams: dict[str, Resumable] = {}
        self._ending: set[asyncio.Task[None]] = set()

    def __len__(self) -> int:
        return len(self._streams)

    def begin(self, source: Source, body: bytes, keep_s: float) -> Reader:
        """Begin an invocation that outlives its connection by `keep_s`; return who reads it first.

        Raises: Unavailable when there are too many; what refuses the call.
        """
        if self._budget.is_used_up:
            detail = "this gateway keeps as much of resumable streams as it may; without Samovar-Resume it serves"
            raise Unavailable(detail, retry_after_s=5.0)
        source.begin(body)
        stream_id = token_hex(places.STREAM_BYTES)
        stream = self._streams[stream_id] = Resumable(source, keep_s, self.gateway, stream_id, self._budget)
        return stream.read(0, is_first=True)

    def resume(self, stream_id: str, number: int, key_id: str, function: str) -> Reader:
        """Return who goes on reading after event `number`.

        Raises: StreamNotFound if there is none that this key began with this function; else as `Ledger.arrive`.
        """
        return self.find(stream_id, key_id, function).read(number)

    def find(self, stream_id: str, key_id: str, function: str) -> Resumable:
        """Return the stream. Raises: StreamNotFound if there is none that this key began with this function."""
        stream = self._streams.get(stream_id)
        if stream is None or not _is_of(stream.source.ask, key_id, function):
            raise StreamNotFound(
                "there is no such stream of this key and function: it has ended, or nobody came back in time"
            )
        return stream

    @property
    def num_bytes(self) -> int:
        """What all of them keep now."""
        return self._budget.used

    @property
    def num_owed(self) -> int:
        """Streams whose end was told to nobody yet: somebody reads, or may be on the way back."""
        return sum(not stream.ledger.is_told for stream in self._streams.values())

    def end(self, stream: Resumable) -> None:
        """Its call ends, and nobody can go on with it any more. Idempotent."""
        if self._streams.pop(stream.id, None) is not None:
            stream.end_call()
            task = asyncio.create_task(stream.close())
            self._ending.add(task)
            task.add_done_callback(self._ending.discard)

    async def run(self) -> None:
        """End what nobody came back to, until cancelled; then end all."""
        try:
            while True:
                await asyncio.sleep(SWEEP_S)
                now_s = time.monotonic()
                for stream in [stream for stream in self._streams.values() if stream.ledger.is_due(now_s)]:
                    self.end(stream)
        finally:
            for stream in [*self._streams.values()]:
                self.end(stream)
            await asyncio.gather(*self._ending)


def _is_of(ask: Ask, key_id: str, function: str) -> bool:
    return ask.key_id == key_id and ask.entry.record.name == function
