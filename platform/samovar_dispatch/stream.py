"""The answer of a generator: chunks in order, bounded, ended by a clean end or an error.

The instance sends at most STREAM_WINDOW chunks ahead of Credit, which flows back as the reader consumes, so a slow
reader slows the generator and nothing piles up. This module does not know HTTP.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING

from samovar.errors import Cancelled, ProtocolError, SamovarError
from samovar.wire import STREAM_WINDOW, Result
from samovar_dispatch.requestlog.copies import StreamCopy

if TYPE_CHECKING:
    from samovar_dispatch.call import Outcome

CREDIT_STEP = STREAM_WINDOW // 2


class ChunkStream:
    """An async iterator over chunks; raises the SamovarError or Cancelled the stream failed with.

    give_credit: called with a number of chunks the reader has consumed. copy: gathers them for the request log.
    on_news: called when there is a chunk more, or the end. num_fed, num_taken: chunks that came, and that were read.
    wait_us, run_us: as the instance said at the clean end.
    """

    def __init__(
        self, loop: asyncio.AbstractEventLoop, give_credit: Callable[[int], None], copy: StreamCopy | None = None
    ) -> None:
        self.copy = copy
        self.on_news: Callable[[], object] | None = None
        self.num_fed = self.num_taken = 0
        self.wait_us = self.run_us = 0
        self._loop = loop
        self._give_credit = give_credit
        self._chunks: deque[bytes] = deque()
        self._end: SamovarError | Cancelled | None = None
        self._ended = False
        self._consumed = 0
        self._waiter: asyncio.Future[None] | None = None

    def feed(self, chunk: bytes) -> None:
        """Add one chunk. Raises ProtocolError when the instance ignores the window."""
        if len(self._chunks) >= STREAM_WINDOW + CREDIT_STEP:
            raise ProtocolError("the instance sent more chunks than its credit")
        self._chunks.append(chunk)
        self.num_fed += 1
        if self.copy is not None:
            self.copy.add(chunk)
        self._wake()

    def finish(self, error: SamovarError | Cancelled | None = None) -> None:
        """No more chunks come; readers get what is buffered, then the end or `error`. The first call counts."""
        if not self._ended:
            self._ended, self._end = True, error
            self._wake()

    @property
    def is_over(self) -> bool:
        """Whether everything was read that will ever come. Raises: what the stream failed with."""
        if self._chunks or not self._ended:
            return False
        if self._end is not None:
            raise self._end
        return True

    def take(self) -> bytes | None:
        """Return the next chunk, None if none is there now."""
        if not self._chunks:
            return None
        self.num_taken += 1
        self._consumed += 1
        if self._consumed == CREDIT_STEP and not self._ended:
            self._consumed = 0
            self._give_credit(CREDIT_STEP)
        return self._chunks.popleft()

    def __aiter__(self) -> ChunkStream:
        return self

    async def __anext__(self) -> bytes:
        while (chunk := self.take()) is None:
            if self.is_over:
                raise StopAsyncIteration
            self._waiter = self._loop.create_future()
            await self._waiter
        return chunk

    def _wake(self) -> None:
        if self.on_news is not None:
            self.on_news()
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)


def stream_of(outcome: Outcome) -> ChunkStream:
    """Return an outcome as a stream: itself, one chunk, or nothing but what it failed with."""
    if isinstance(outcome, ChunkStream):
        return outcome
    stream = ChunkStream(asyncio.get_running_loop(), _nobody_waits)
    if isinstance(outcome, Result):
        stream.wait_us, stream.run_us = outcome.wait_us, outcome.run_us
        stream.feed(outcome.body)
        stream.finish()
    else:
        stream.finish(outcome)
    return stream


def _nobody_waits(_num_chunks: int) -> None:
    """Give no credit: nothing more comes."""
