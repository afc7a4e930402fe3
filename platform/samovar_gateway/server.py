"""uvicorn as this gateway wants it: our listener, our signals, no access log.

This module does not know what the application does.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import uvicorn
from litestar.types import ASGIApp

from samovar.errors import ConfigError, PortTaken
from samovar_gateway.connections import Connections

BACKLOG = 2048
KEEP_ALIVE_S = 75
CLOSE_TIMEOUT_S = 5
ACCEPT_TURNS = 3  # turns of the event loop, each of which accepts whatever is queued


class Server(uvicorn.Server):
    """A uvicorn server that leaves signals to its owner. is_up: set once it takes connections."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.server_state: Connections = Connections()
        self.is_up = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Take connections from here on."""
        await super().startup(sockets)
        self.is_up.set()

    async def listen_also(self, listeners: Sequence[socket.socket]) -> None:
        """Take connections from these, too, from here on."""
        loop = asyncio.get_running_loop()
        for listener in listeners:
            self.servers.append(await loop.create_server(self._connection, sock=listener, backlog=BACKLOG))

    def _connection(self) -> asyncio.Protocol:
        made: asyncio.Protocol = self.config.http_protocol_class(  # type: ignore[call-arg]
            config=self.config, server_state=self.server_state, app_state=self.lifespan.state
        )
        return made

    async def stop_listening(self) -> None:
        """Take no new connection, after those that the kernel has queued for us already.

        A listening socket that other processes share goes on in them: what is queued later is theirs.
        """
        for _ in range(ACCEPT_TURNS):
            await asyncio.sleep(0)
        for server in self.servers:
            server.close()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield


def listen(host: str, port: int, flag: str = "--port") -> socket.socket:
    """Return a bound TCP socket. flag: chooses another port. Raises PortTaken, or ConfigError for an address that is
    not ours."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except socket.gaierror as error:
        raise ConfigError(f"cannot listen on {host}: {error.strerror}") from error
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise PortTaken(f"port {port} on {host} is taken by another program; choose one with {flag}") from error
        raise ConfigError(f"cannot listen on {host}:{port}: {error.strerror}") from error


def inherit(descriptor: int) -> socket.socket:
    """Return the listening socket that whoever started this process holds open for it. Raises ConfigError.

    It is not passed on to processes of this one: a port that is still held by one of them is not refused but hangs.
    """
    try:
        listener = socket.socket(fileno=descriptor)
        if not listener.getsockopt(socket.SOL_SOCKET, socket.SO_ACCEPTCONN):
            raise ConfigError(f"descriptor {descriptor} is no listening socket")
        listener.setblocking(False)
        listener.set_inheritable(False)
        return listener
    except OSError as error:
        raise ConfigError(f"descriptor {descriptor} is no listening socket: {error.strerror}") from error


def create_server(app: ASGIApp, protocol: Callable[..., asyncio.Protocol]) -> Server:
    """Return the server of `app`, not yet started. protocol: makes the object that speaks HTTP on one connection."""
    config = uvicorn.Config(
        app,
        loop="uvloop",
        http=protocol,  # type: ignore[arg-type]  # a class or whatever makes its objects
        ws="none",
        lifespan="off",
        access_log=False,
        log_config=None,
        log_level="warning",
        server_header=False,
        proxy_headers=False,
        timeout_keep_alive=KEEP_ALIVE_S,
        timeout_graceful_shutdown=CLOSE_TIMEOUT_S,
    )
    return Server(config)


async def serve(server: Server, listeners: Sequence[socket.socket]) -> None:
    """Serve until `server.should_exit`."""
    await server.serve(sockets=list(listeners))
