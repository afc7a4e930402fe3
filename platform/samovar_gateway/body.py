"""Reading a request's body within limits of size and time. This module does not know what is in it."""

from __future__ import annotations

import asyncio
import time
from typing import Any

from litestar.types import Receive

from samovar.errors import BodyTooLarge, Cancelled, ClientTooSlow
from samovar_dispatch.waiting.queue import Backlog
from samovar_gateway.sweep import Sweeper

MAX_DISCARDED_BYTES = 8 << 20
DISCARD_TIMEOUT_S = 1.0


class BodyReader:
    """max_body_bytes: largest body. The sweeper ends readers that take longer than `body_timeout_s`. backlog: what all
    bodies take that wait; one being read counts with its whole length as soon as that is known."""

    def __init__(self, sweeper: Sweeper, backlog: Backlog, max_body_bytes: int, body_timeout_s: float) -> None:
        self._sweeper = sweeper
        self._backlog = backlog
        self._max_body_bytes = max_body_bytes
        self._body_timeout_s = body_timeout_s

    async def read(self, length: bytes | None, receive: Receive, now_s: float) -> bytes:
        """Return the whole body.

        Args:
            length: the Content-Length header, checked by the HTTP parser to be a number.
        Raises: BodyTooLarge and QueueFull as soon as it is known, ClientTooSlow if it does not come, Cancelled if the
            client left.
        """
        num_bytes = int(length) if length is not None else 0
        if num_bytes > self._max_body_bytes:
            raise self._too_large()
        with self._backlog.holding(num_bytes):
            return await self._read(receive, now_s, num_bytes)

    async def _read(self, receive: Receive, now_s: float, num_held: int) -> bytes:
        task: asyncio.Task[Any] = asyncio.current_task()  # type: ignore[assignment]
        self._sweeper.reading[task] = now_s
        try:
            message = await receive()
            if message["type"] == "http.request" and not message["more_body"]:
                self._check(message["body"], num_held)
                return message["body"]
            return await self._read_on(message, receive, num_held)
        except asyncio.CancelledError:
            if task not in self._sweeper.late:
                raise
            task.uncancel()
            raise ClientTooSlow(f"the body did not arrive within {self._body_timeout_s:g} s") from None
        finally:
            del self._sweeper.reading[task]
            self._sweeper.late.discard(task)

    async def _read_on(self, message: Any, receive: Receive, num_held: int) -> bytes:
        body = bytearray()
        while message["type"] == "http.request":
            body += message["body"]
            self._check(body, num_held)
            if not message["more_body"]:
                return bytes(body)
            message = await receive()
        raise Cancelled

    def _check(self, body: bytes | bytearray, num_held: int) -> None:
        if len(body) > self._max_body_bytes:
            raise self._too_large()
        if len(body) > num_held:  # it came without its length
            self._backlog.require(len(body))

    def _too_large(self) -> BodyTooLarge:
        return BodyTooLarge(
            f"the body is larger than {self._max_body_bytes} bytes", max_body_bytes=self._max_body_bytes
        )


class WholeBody:
    """ASGI's `receive` of one request whose body comes as one message, read within the bounds of `reader`."""

    def __init__(self, reader: BodyReader, length: bytes | None, receive: Receive) -> None:
        self._reader = reader
        self._length = length
        self._receive = receive
        self._is_read = False

    async def __call__(self) -> Any:
        """Return the next message. Raises: as `BodyReader.read`; ClientTooSlow if the client left in the middle."""
        if self._is_read:
            return await self._receive()
        self._is_read = True
        try:
            body = await self._reader.read(self._length, self._receive, time.monotonic())
        except Cancelled:
            raise ClientTooSlow("the client left before the body was there") from None
        return {"type": "http.request", "body": body, "more_body": False}


async def discard(receive: Receive) -> None:
    """Read on for a moment without keeping anything, so that a client that is still sending sees our answer rather
    than a reset connection."""
    num_bytes = 0
    try:
        async with asyncio.timeout(DISCARD_TIMEOUT_S):
            while num_bytes < MAX_DISCARDED_BYTES:
                message = await receive()
                if message["type"] != "http.request" or not message["more_body"]:
                    return
                num_bytes += len(message["body"])
    except TimeoutError:
        return
