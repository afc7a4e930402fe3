"""Connections of gRPC clients, handed on byte by byte to the gRPC server within this process, and back.

    client ◄─ TCP ─► Outer · Inner ◄─ Unix socket ─► gRPC server

gRPC's server opens its own port, and when it stops it refuses calls that are on their way before their clients can know
(one per restart under load, measured). What is between it and the network lets gateways share one listening socket, as
for HTTP, and say GOAWAY first: clients then open their next call elsewhere, those that are open are answered, and the
clients close. It costs about 0.1 ms a call, and nothing that can be seen from 1 MB on. This module does not know calls.
"""

from __future__ import annotations

import asyncio
import logging
import socket
from typing import cast

from samovar_gateway.rpc.frames import GOAWAY, Frames
from samovar_gateway.server import ACCEPT_TURNS, BACKLOG

log = logging.getLogger(__name__)

CONNECT_TIMEOUT_S = 5.0


class Relay:
    """The connections of one gateway to its server at `path` (an abstract address). max_connections: more are closed at
    once."""

    def __init__(self, path: str, max_connections: int) -> None:
        self.path = path
        self.connections: set[Outer] = set()
        self.connecting: set[asyncio.Task[None]] = set()
        self._max_connections = max_connections
        self._server: asyncio.Server | None = None

    async def listen(self, listener: socket.socket) -> None:
        """Take connections from here on."""
        loop = asyncio.get_running_loop()
        self._server = await loop.create_server(lambda: Outer(self), sock=listener, backlog=BACKLOG)

    def has_room(self) -> bool:
        """Return whether one connection more is possible."""
        return len(self.connections) < self._max_connections

    async def leave(self) -> None:
        """Take no new connection after those that are queued, and have clients open no call any more on any."""
        for _ in range(ACCEPT_TURNS):
            await asyncio.sleep(0)
        if self._server is not None:
            self._server.close()
        for outer in self.connections:
            outer.inner.leave()

    async def close(self) -> None:
        """End every connection."""
        for outer in [*self.connections]:
            outer.transport.abort()
        for task in self.connecting:
            task.cancel()
        await asyncio.gather(*self.connecting, return_exceptions=True)


class Outer(asyncio.Protocol):
    """The client's side of one connection."""

    transport: asyncio.Transport

    def __init__(self, relay: Relay) -> None:
        self._relay = relay
        self._early: list[bytes] = []  # what came before the server's side was there
        self.inner = Inner(self)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Open the other side."""
        self.transport = cast("asyncio.Transport", transport)
        if not self._relay.has_room():
            self.transport.abort()
            return
        self._relay.connections.add(self)
        task = asyncio.get_running_loop().create_task(self._connect())
        self._relay.connecting.add(task)
        task.add_done_callback(self._relay.connecting.discard)

    async def _connect(self) -> None:
        loop = asyncio.get_running_loop()
        peer = socket.socket(socket.AF_UNIX)  # made here: uvloop takes no abstract address
        peer.setblocking(False)
        try:
            async with asyncio.timeout(CONNECT_TIMEOUT_S):
                await loop.sock_connect(peer, self._relay.path)
                await loop.create_unix_connection(lambda: self.inner, sock=peer)
        except BaseException as error:
            peer.close()
            self.transport.abort()
            if not isinstance(error, OSError):
                raise
            log.error("the gRPC server within takes no connection: %r", error)

    def connected(self) -> None:
        """The other side is there."""
        if self.transport.is_closing():
            self.inner.close()
            return
        self.inner.pass_on(b"".join(self._early))
        self._early.clear()
        self.transport.resume_reading()

    def data_received(self, data: bytes) -> None:
        """Pass on what the client says."""
        if self.inner.transport is None:
            self._early.append(data)
            self.transport.pause_reading()
        else:
            self.inner.pass_on(data)

    def pause_writing(self) -> None:
        """The client reads more slowly than the server writes."""
        self.inner.set_reading(False)

    def resume_writing(self) -> None:
        """It keeps up again."""
        self.inner.set_reading(True)

    def connection_lost(self, exc: Exception | None) -> None:
        """Close the other side."""
        self._relay.connections.discard(self)
        self.inner.close()


class Inner(asyncio.Protocol):
    """The server's side of one connection. transport: None until it is there."""

    def __init__(self, outer: Outer) -> None:
        self.transport: asyncio.Transport | None = None
        self._outer = outer
        self._frames = Frames()
        self._is_leaving = False

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """Pass on what came meanwhile."""
        self.transport = cast("asyncio.Transport", transport)
        self._outer.connected()

    def pass_on(self, data: bytes) -> None:
        """Say to the server what the client said."""
        if data and self.transport is not None and not self.transport.is_closing():
            self.transport.write(data)

    def data_received(self, data: bytes) -> None:
        """Pass on what the server says."""
        if self._outer.transport.is_closing():
            return
        self._outer.transport.write(data)
        self._frames.feed(data)
        self._say_goaway()

    def leave(self) -> None:
        """Have the client open no call any more, as soon as that can be said between two frames."""
        self._is_leaving = True
        self._say_goaway()

    def _say_goaway(self) -> None:
        if self._is_leaving and self._frames.has_begun and self._frames.is_between:
            self._is_leaving = False
            if not self._outer.transport.is_closing():
                self._outer.transport.write(GOAWAY)

    def set_reading(self, is_reading: bool) -> None:
        """Read from the server, or do not."""
        if self.transport is None or self.transport.is_closing():
            return
        if is_reading:
            self.transport.resume_reading()
        else:
            self.transport.pause_reading()

    def pause_writing(self) -> None:
        """The server reads more slowly than the client writes."""
        self._outer.transport.pause_reading()

    def resume_writing(self) -> None:
        """It keeps up again."""
        self._outer.transport.resume_reading()

    def close(self) -> None:
        """What was written is sent, then it ends."""
        if self.transport is not None:
            self.transport.close()

    def connection_lost(self, exc: Exception | None) -> None:
        """Close the client's side after what is still to be sent."""
        self._outer.transport.close()
