"""One control connection to a zygote, a template or an instance: frames both ways, descriptors with some of them.

This module does not know what the messages mean.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from typing import cast

from samovar import wire
from samovar.errors import ProtocolError

logger = logging.getLogger("samovar.pool")


class ControlConnection(asyncio.Protocol):
    """Reads frames and hands each to `on_message`; `on_closed` is called once, whatever ended the connection."""

    def __init__(
        self, sock: socket.socket, on_message: Callable[[wire.FromInstance], None], on_closed: Callable[[], None]
    ) -> None:
        self._sock = sock
        self._on_message = on_message
        self._on_closed = on_closed
        self._decoder = wire.caller_side()
        self._transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        try:
            messages = self._decoder.feed(data)
        except ProtocolError as error:
            logger.warning("closing a control connection: %s", error.detail)
            self.close()
            return
        for message in messages:
            self._on_message(message)

    def connection_lost(self, exc: Exception | None) -> None:
        self._transport = None
        self._on_closed()

    @property
    def is_open(self) -> bool:
        """Whether messages can still be sent."""
        return self._transport is not None and not self._transport.is_closing()

    def send(self, message: wire.Message) -> None:
        """Send a message; one to a peer that is gone is dropped, its `on_closed` tells."""
        if self._transport is not None:
            self._transport.write(wire.encode(message))

    def send_with_fds(self, message: wire.Message, fds: list[int]) -> None:
        """Send a message with descriptors (the peer gets copies). Raises OSError if the peer does not read."""
        if self._transport is None or self._transport.get_write_buffer_size():
            raise BrokenPipeError("the control connection is closed or does not drain")
        frame = wire.encode(message)
        sent = socket.send_fds(self._sock, [frame], fds)
        if sent < len(frame):
            self._transport.write(frame[sent:])

    def close(self) -> None:
        """Close; `on_closed` follows."""
        if self._transport is not None:
            self._transport.close()


async def connect(
    address: str,
    token: str,
    on_message: Callable[[wire.FromInstance], None],
    on_closed: Callable[[], None],
    timeout_s: float = 5.0,
) -> ControlConnection:
    """Connect as manager and say Hello. The Welcome arrives through `on_message`. Raises OSError or TimeoutError."""
    kind, _, where = address.partition(":")
    sock = socket.socket(socket.AF_UNIX if kind == "unix" else socket.AF_INET, socket.SOCK_STREAM)
    sock.setblocking(False)
    loop = asyncio.get_running_loop()
    try:
        async with asyncio.timeout(timeout_s):
            await loop.sock_connect(sock, where if kind == "unix" else _host_port(where))
            _, connection = await loop.create_connection(
                lambda: ControlConnection(sock, on_message, on_closed), sock=sock
            )
    except BaseException:
        sock.close()
        raise
    connection.send(wire.Hello(wire.PROTOCOL_VERSION, token, "manager", "pool"))
    return connection


def _host_port(where: str) -> tuple[str, int]:
    host, _, port = where.rpartition(":")
    return host, int(port)
