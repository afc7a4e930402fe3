"""uvicorn as this gateway wants it: our listener, our signals, no access log.

This module does not know what the application does.
"""

from __future__ import annotations

import asyncio
import errno
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import uvicorn
from litestar.types import ASGIApp

from samovar.errors import ConfigError, PortTaken

BACKLOG = 2048
KEEP_ALIVE_S = 75
CLOSE_TIMEOUT_S = 5


class Server(uvicorn.Server):
    """A uvicorn server that leaves signals to its owner. is_up: set once it takes connections."""

    def __init__(self, config: uvicorn.Config) -> None:
        super().__init__(config)
        self.is_up = asyncio.Event()

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Take connections from here on."""
        await super().startup(sockets)
        self.is_up.set()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Capture none."""
        yield


def listen(host: str, port: int) -> socket.socket:
    """Return a bound TCP socket. Raises PortTaken, or ConfigError for an address that is not ours."""
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE)[0][0]
        return socket.create_server((host, port), family=family, backlog=BACKLOG)
    except socket.gaierror as error:
        raise ConfigError(f"cannot listen on {host}: {error.strerror}") from error
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            raise PortTaken(f"port {port} on {host} is taken by another program; choose one with --port") from error
        raise ConfigError(f"cannot listen on {host}:{port}: {error.strerror}") from error


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


async def serve(server: Server, listener: socket.socket) -> None:
    """Serve until `server.should_exit`."""
    await server.serve(sockets=[listener])
