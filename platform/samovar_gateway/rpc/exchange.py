"""One call of a client: its metadata as headers, its deadline, its bytes, and how it is told of an error.

This module does not know what is in messages.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterable, Sequence
from typing import Any, NoReturn

import grpc

from samovar.errors import Cancelled, ClientTooSlow, RequestError, SamovarError
from samovar_gateway.calling import Header
from samovar_gateway.rpc import statuses
from samovar_gateway.state import GatewayState

log = logging.getLogger(__name__)

# of the transport, not of the invocation: they mean something else there
_OF_TRANSPORT = ("content-", "accept-", "grpc-", "te")


class Exchange:
    """One call. header: its metadata by lower-case name, as bytes. request_id: what its record is called."""

    def __init__(self, context: Any, state: GatewayState, own_id: bytes) -> None:
        self.context = context
        self.header = header_of(context.invocation_metadata() or ())
        self.request_id = self.header.get(b"x-request-id", own_id)
        self._state = state

    def remaining_s(self) -> float | None:
        """Return how long the client waits from now, seconds; None = as long as it takes."""
        left_s = self.context.time_remaining()
        return None if left_s is None else max(0.0, float(left_s))

    def authenticate(self) -> None:
        """Return if the key is known: nobody else's messages are read. Raises: Unauthenticated, Unavailable."""
        self._state.keys.authenticate(self.header.get(b"authorization"))

    async def read_one(self) -> bytes:
        """Return the one message of a call. Raises: ClientTooSlow if it does not come; RequestError if none does; as
        `require_room`."""
        timeout_s = self._state.settings.body_timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                message = await self.read()
        except TimeoutError:
            raise ClientTooSlow(f"the message did not arrive within {timeout_s:g} s") from None
        if message is None:
            raise RequestError("the call ended without a message")
        self.require_room(message)
        return message

    async def read(self) -> bytes | None:
        """Return the next message, None if there is none."""
        message = await self.context.read()
        return None if message is grpc.aio.EOF else bytes(message)  # the same object

    def require_room(self, message: bytes) -> None:
        """Return if a message may be worked on. Raises: QueueFull if too much waits already."""
        self._state.dispatcher.room.backlog.require(len(message))

    def tell(self, headers: Iterable[tuple[bytes, bytes]]) -> None:
        """Have the end of the call say this, too."""
        told = {name.decode(): value.decode("latin-1") for name, value in headers}
        told.setdefault("x-request-id", self.request_id.decode("latin-1"))
        self.context.set_trailing_metadata(tuple(told.items()))

    async def refuse(self, error: BaseException) -> NoReturn:
        """End the call with the status of an error. What is not ours is logged, and not told."""
        if isinstance(error, Cancelled):
            await self.context.abort(grpc.StatusCode.CANCELLED, "the caller left")
        if not isinstance(error, SamovarError):
            log.error("call %s failed", self.request_id.decode("latin-1"), exc_info=error)
            error = SamovarError("an error inside the gateway; its log says more")
        self._state.problems[error.code] += 1
        metadata = statuses.metadata_of(error, self.request_id.decode("latin-1"))
        await self.context.abort(statuses.status_of(error), statuses.details_of(error), metadata)
        raise AssertionError("abort raises")


def header_of(metadata: Sequence[tuple[str, Any]]) -> Header:
    """Return metadata as an invocation's headers; binary metadata is none of them."""
    return {
        name.encode(): value.encode("latin-1", "replace")
        for name, value in metadata
        if isinstance(value, str) and not name.startswith(_OF_TRANSPORT)
    }
