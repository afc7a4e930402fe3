"""What a gateway that leaves does with its connections: none is cut while its client may be owed an answer.

    leave        every answer from now on says `Connection: close`, those under way included
    close_idle   connections that nobody uses are closed; one with unread bytes is not idle
    is_quiet     nobody is owed an answer any more

This module does not know invocations; the gateway knows when to do which.
"""

from __future__ import annotations

import fcntl
import struct
import termios
from asyncio import Transport
from collections.abc import Iterable
from typing import Any, Protocol, cast

from uvicorn.server import ServerState

NEWCOMER_S = 1.0  # who connected this recently, or began a request, will say what it wants


class Connection(Protocol):
    """One connection. cycle: its newest request, None before the first. head_since_s: monotonic seconds since when a
    request's head is expected or coming; None once there is one, and between requests."""

    cycle: Any
    transport: Transport
    head_since_s: float | None


class Connections(ServerState):
    """The state that uvicorn shares between connections, and whether they are to end. is_leaving: see `leave`."""

    is_leaving = False

    def leave(self) -> None:
        """Let every connection end with its next answer."""
        self.is_leaving = True
        for connection in self._all():
            if not is_answered(connection):
                connection.cycle.keep_alive = False

    def close_idle(self) -> None:
        """Close the connections on which nothing has begun."""
        for connection in [*self._all()]:
            if connection.head_since_s is None and is_answered(connection) and not num_unread(connection.transport):
                connection.transport.close()

    def is_quiet(self, now_s: float) -> bool:
        """Return whether no client is owed an answer at `now_s`, monotonic seconds."""
        return not any(is_owed(connection, now_s) for connection in self._all())

    def _all(self) -> Iterable[Connection]:
        return cast("Iterable[Connection]", self.connections)


def is_answered(connection: Connection) -> bool:
    """Return whether every request that was read has its whole answer."""
    return connection.cycle is None or bool(connection.cycle.response_complete)


def is_owed(connection: Connection, now_s: float) -> bool:
    """Return whether the client waits for an answer, or is about to ask."""
    since_s = connection.head_since_s
    is_asking = since_s is not None and now_s - since_s < NEWCOMER_S
    return is_asking or not is_answered(connection) or num_unread(connection.transport) > 0


def num_unread(transport: Transport) -> int:
    """Return how many bytes the kernel holds that we have not read; 0 for a connection that is closing."""
    if transport.is_closing():
        return 0
    descriptor = transport.get_extra_info("socket").fileno()
    return int(struct.unpack("i", fcntl.ioctl(descriptor, termios.FIONREAD, b"\0" * 4))[0])
