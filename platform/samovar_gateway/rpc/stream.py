"""ModelStreamInfer: many requests on one stream, each answered when it is, by as many messages as it takes.

    request ─► admit ─► infer ─► response, response, …            each with the request's id
                  └──────┴─────► response with error_message      the others, and those to come, go on

MAX_TOGETHER requests of a stream are under way at a time; the next ones are read when one of them is done. A client
that reads slowly holds up the functions it reads from, by the stream's flow control, and holds nothing of it in memory.
When the gateway leaves, streams read nothing more, answer what they have, and end as UNAVAILABLE.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import aclosing

from samovar.errors import Cancelled, Draining, SamovarError
from samovar.spec import streams
from samovar_gateway.calling import MAX_TOGETHER, apart
from samovar_gateway.inference.core import Inference
from samovar_gateway.inference.messages import InferAnswer
from samovar_gateway.rpc import asking, translation
from samovar_gateway.rpc.exchange import Exchange
from samovar_gateway.rpc.translation import Received

log = logging.getLogger(__name__)


class InferStreams:
    """The open streams of one gateway."""

    def __init__(self, core: Inference) -> None:
        self._core = core
        self._open: set[InferStream] = set()

    async def serve(self, exchange: Exchange) -> None:
        """Serve one stream to its end. Raises: Draining when this gateway leaves."""
        stream = InferStream(self._core, exchange)
        self._open.add(stream)
        try:
            await stream.run()
        finally:
            self._open.discard(stream)

    def leave(self) -> None:
        """Read nothing more from any of them."""
        for stream in self._open:
            stream.leave()


class InferStream:
    """One stream; to be run once."""

    def __init__(self, core: Inference, exchange: Exchange) -> None:
        self._core = core
        self._exchange = exchange
        self._turn = asyncio.Semaphore(MAX_TOGETHER)
        self._writing = asyncio.Lock()
        self._tasks: set[asyncio.Task[None]] = set()
        self._reading: asyncio.Task[bytes | None] | None = None
        self._is_leaving = False

    async def run(self) -> None:
        """Answer until the client sends no more. Raises: Draining."""
        try:
            while (message := await self._next()) is not None:
                task = asyncio.ensure_future(self._answer(message))
                del message
                self._tasks.add(task)
                task.add_done_callback(self._done)
            while self._tasks:
                await asyncio.wait(self._tasks)
        finally:
            for task in self._tasks:
                task.cancel()
            await asyncio.gather(*self._tasks, return_exceptions=True)
        if self._is_leaving:
            raise Draining("this gateway is shutting down: open the stream again", retry_after_s=1.0)

    def leave(self) -> None:
        """Read nothing more."""
        self._is_leaving = True
        if self._reading is not None:
            self._reading.cancel()

    async def _next(self) -> bytes | None:
        """Return the next request once there is room for it, None if none is to come."""
        await self._turn.acquire()
        if self._is_leaving:
            return None
        self._reading = asyncio.ensure_future(self._exchange.read())
        try:
            return await self._reading
        except asyncio.CancelledError:
            if self._is_leaving and self._reading.cancelled():
                return None
            raise
        finally:
            self._reading = None

    def _done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._turn.release()
        if not task.cancelled() and task.exception() is not None:
            log.error("a request of a stream failed", exc_info=task.exception())

    async def _answer(self, message: bytes) -> None:
        """Answer one request, whatever becomes of it."""
        model = told_id = ""
        try:
            received = await apart(len(message), translation.receive, message)
            model, told_id = received.model, received.id
            self._exchange.require_room(message)
            del message
            await self._infer(received)
        except Cancelled:
            return
        except SamovarError as error:
            self._core.caller.state.problems[error.code] += 1
            await self._write(translation.stream_error(error, model, told_id))

    async def _infer(self, received: Received) -> None:
        core, model, told_id = self._core, received.model, received.id
        request_id = core.caller.admission.request_id({b"x-request-id": told_id.encode()} if told_id else {})
        asked = await asking.admit(core, self._exchange, received, request_id)
        del received
        ask = asked.ask
        assert ask.version is not None, "admit pins the version"
        is_only = not streams(ask.version.manifest)
        answer: InferAnswer | None = None
        async with aclosing(core.stream(ask, asked.request)) as answers:
            async for answer in answers:
                await self._write(translation.to_stream_message(answer, model, told_id, is_final=is_only))
        if asked.wants_end and not is_only:
            end = InferAnswer((), answer.version if answer is not None else ask.version.label.decode())
            await self._write(translation.to_stream_message(end, model, told_id, is_final=True))

    async def _write(self, message: bytes) -> None:
        async with self._writing:
            await self._exchange.context.write(message)
