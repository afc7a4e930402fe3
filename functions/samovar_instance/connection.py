"""One caller's connection, on the I/O thread: frames in, frames out, nothing else.

Frames are joined and written once per loop turn. A connection that is malformed, oversized, half-open, silent or unread
is closed with a reason; its calls are cancelled and no other connection notices.
This module does not know the model thread, batches or deadlines: those are the server's.
"""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING, cast

from samovar import wire
from samovar.errors import ProtocolError
from samovar_instance.calls import Call
from samovar_instance.control import HELLO_TIMEOUT_S, MAX_HELLO_BYTES, Peer, refusal

if TYPE_CHECKING:
    from samovar_instance.server import Server

logger = logging.getLogger("samovar.instance")

HALF_FRAME_TIMEOUT_S = 30.0
HIGH_WATER_BYTES = 4 * 1024 * 1024  # unsent beyond this: stop reading what this caller sends
MAX_UNSENT_BYTES = 2 * wire.MAX_FRAME_BYTES  # beyond this it is cut off


class Connection(asyncio.Protocol):
    """calls: those of this caller that have not ended, by id. hello: None until it has introduced itself.

    closed: resolves when the connection is gone.
    """

    def __init__(self, server: Server, peer: Peer | None = None) -> None:
        self.calls: dict[int, Call] = {}
        self.hello = peer.hello if peer is not None else None
        self._decoder = peer.decoder if peer is not None else wire.instance_side(MAX_HELLO_BYTES)
        if peer is not None:
            self._decoder.max_frame_bytes = wire.MAX_FRAME_BYTES
        self.closed: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._server = server
        self._unsent = bytearray()
        self._transport: asyncio.Transport | None = None
        self._last_read_s = 0.0
        self._is_closing = False

    @property
    def is_manager(self) -> bool:
        """Whether the peer may drain this instance and is told its Stats."""
        return self.hello is not None and self.hello.role == "manager"

    # ---- from the loop

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)
        self._transport.set_write_buffer_limits(high=HIGH_WATER_BYTES)
        self._last_read_s = self._server.now_s()
        self._server.connections.add(self)

    def data_received(self, data: bytes) -> None:
        if self._is_closing:
            return
        self._last_read_s = self._server.now_s()
        try:
            messages = self._decoder.feed(data)
        except ProtocolError as error:
            self.refuse(wire.Goodbye("protocol", error.detail))
        else:
            self.handle(messages)

    def handle(self, messages: list[wire.ToInstance]) -> None:
        """Act on messages in order, up to one that closes the connection."""
        try:
            for message in messages:
                if type(message) is wire.Invoke and self.hello is not None:
                    self._server.admit(self, message)
                else:
                    self._dispatch(message)
                if self._is_closing:
                    return
        except ProtocolError as error:
            self.refuse(wire.Goodbye("protocol", error.detail))

    def eof_received(self) -> bool:
        if self._decoder.num_pending_bytes:
            logger.warning("a connection ended in the middle of a frame")
        return False

    def connection_lost(self, exc: Exception | None) -> None:
        self._is_closing = True
        self._unsent.clear()
        self._server.forget(self)
        self.closed.set_result(None)

    def pause_writing(self) -> None:
        if self._transport is not None and not self._is_closing:
            self._transport.pause_reading()

    def resume_writing(self) -> None:
        if self._transport is not None and not self._is_closing:
            self._transport.resume_reading()

    # ---- from the server

    def send(self, message: wire.Message) -> None:
        """Queue a frame for the end of this loop turn; dropped if the connection is going."""
        if self._is_closing:
            return
        if not self._unsent:
            self._server.will_flush(self)
        wire.append(self._unsent, message)

    def flush(self) -> None:
        """Write what was queued, in one go."""
        if self._transport is None or not self._unsent:
            return
        unsent, self._unsent = self._unsent, bytearray()
        self._transport.write(unsent)
        if self._transport.get_write_buffer_size() > MAX_UNSENT_BYTES:
            logger.warning("cut off a caller that does not read its answers")
            self._transport.abort()

    def refuse(self, goodbye: wire.Goodbye) -> None:
        """Say why and close; what was queued before still goes out."""
        logger.warning("closed a connection: %s %s", goodbye.reason, goodbye.detail)
        self.send(goodbye)
        self.close()

    def close(self) -> None:
        """Close once everything queued has been written."""
        self.flush()
        self._is_closing = True
        if self._transport is not None:
            self._transport.close()

    def drop_if_stale(self, now_s: float) -> None:
        """Close the connection if its Hello or the rest of a frame has been due for too long."""
        silent_s = now_s - self._last_read_s
        if self._is_closing:
            return
        if self.hello is None and silent_s > HELLO_TIMEOUT_S:
            self.refuse(wire.Goodbye("hello", f"no Hello within {HELLO_TIMEOUT_S:g} s"))
        elif self._decoder.num_pending_bytes and silent_s > HALF_FRAME_TIMEOUT_S:
            self.refuse(wire.Goodbye("protocol", f"half a frame, then nothing for {HALF_FRAME_TIMEOUT_S:g} s"))

    # ---- frames other than Invoke

    def _dispatch(self, message: wire.ToInstance) -> None:
        if self.hello is None:
            self._introduce(message)
        elif isinstance(message, wire.Cancel):
            self._server.cancel(self, message)
        elif isinstance(message, wire.Credit):
            self._server.credit(self, message.id, message.num_chunks)
        elif isinstance(message, wire.Check):
            self._server.check(self, message)
        elif isinstance(message, wire.Drain) and self.is_manager:
            self._server.drain(message.timeout_s, if_idle=message.if_idle)
        else:
            raise ProtocolError(f"{type(message).__name__} is not for a ready instance, or not from a {self._role}")

    @property
    def _role(self) -> str:
        return self.hello.role if self.hello is not None else "stranger"

    def _introduce(self, message: wire.ToInstance) -> None:
        if not isinstance(message, wire.Hello):
            raise ProtocolError("the first frame must be Hello")
        goodbye = refusal(message, self._server.token)
        if goodbye is not None:
            self.refuse(goodbye)
            return
        self.hello = message
        self._decoder.max_frame_bytes = wire.MAX_FRAME_BYTES
        self.send(self._server.welcome())
