"""Reading a request's body within limits of size and time. This module does not know what is in it."""

from __future__ import annotations

import asyncio
from typing import Any

from litestar.types import Receive

from samovar.errors import BodyTooLarge, Cancelled, ClientTooSlow
from samovar_gateway.sweep import Sweeper

MAX_DISCARDED_BYTES = 8 << 20
DISCARD_TIMEOUT_S = 1.0


class BodyReader:
    """max_body_bytes: largest body. The sweeper ends readers that take longer than `body_timeout_s`."""

    def __init__(self, sweeper: Sweeper, max_body_bytes: int, body_timeout_s: float) -> None:
        self._sweeper = sweeper
        self._max_body_bytes = max_body_bytes
        self._body_timeout_s = body_timeout_s

    async def read(self, length: bytes | None, receive: Receive, now_s: float) -> bytes:
        """Return the whole body.

        Args:
            length: the Content-Length header, checked by the HTTP parser to be a number.
        Raises: BodyTooLarge as soon as it is known, ClientTooSlow if it does not come, Cancelled if the client left.
        """
        if length is not None and int(length) > self._max_body_bytes:
            raise self._too_large()
        task: asyncio.Task[Any] = asyncio.current_task()  # type: ignore[assignment]
        self._sweeper.reading[task] = now_s
        try:
            message = await receive()
            if message["type"] == "http.request" and not message["more_body"]:
                self._check(message["body"])
                return message["body"]
            return await self._read_on(message, receive)
        except asyncio.CancelledError:
            if task not in self._sweeper.late:
                raise
            task.uncancel()
            raise ClientTooSlow(f"the body did not arrive within {self._body_timeout_s:g} s") from None
        finally:
            del self._sweeper.reading[task]
            self._sweeper.late.discard(task)

    async def _read_on(self, message: Any, receive: Receive) -> bytes:
        body = bytearray()
        while message["type"] == "http.request":
            body += message["body"]
            self._check(body)
            if not message["more_body"]:
                return bytes(body)
            message = await receive()
        raise Cancelled

    def _check(self, body: bytes | bytearray) -> None:
        if len(body) > self._max_body_bytes:
            raise self._too_large()

    def _too_large(self) -> BodyTooLarge:
        return BodyTooLarge(
            f"the body is larger than {self._max_body_bytes} bytes", max_body_bytes=self._max_body_bytes
        )


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
