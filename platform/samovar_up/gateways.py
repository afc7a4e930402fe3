"""The gateway processes of one platform: who they are, and how one is replaced without a refused connection.

All of them accept from one listening socket, HTTP and gRPC each, which the supervisor opens and they inherit, each from
when it is ready. Nothing that waits in its queue is lost when a gateway ends, however it ends, and the port is never
free for another program. (With a socket each, by SO_REUSEPORT, what waits in the queue of the one that closes is reset:
docs/reliability.md has the measurement.)

Each has a second address of its own on loopback, where metrics and readiness are of this process and no other. It
belongs to the place (`gateway`, `gateway-2`, …) and outlives whoever holds it. This module starts nothing.
"""

from __future__ import annotations

import itertools
import socket
from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import msgspec

from samovar_up.child import ChildSpec
from samovar_up.readiness import gateway_lacks

NAME = "gateway"
BACKLOG = 2048


class Public(NamedTuple):
    """The listening sockets that all gateways share. grpc: None = no gRPC."""

    http: socket.socket
    grpc: socket.socket | None = None

    def given(self) -> list[socket.socket]:
        """Return those that there are."""
        return [self.http] if self.grpc is None else [self.http, self.grpc]


class Gateways:
    """The places of `count` gateways.

    Args:
        public: the listening sockets that they share.
        name: what their ids begin with.
        process: makes the spec of one process from its place's name.
    """

    def __init__(self, public: Public, count: int, name: str, process: Callable[[str], ChildSpec]) -> None:
        self._public = public
        self._name = name
        self._process = process
        self._numbers = itertools.count(1)
        places = [NAME if number == 1 else f"{NAME}-{number}" for number in range(1, count + 1)]
        self._own = {place: socket.create_server(("127.0.0.1", 0), backlog=BACKLOG) for place in places}

    @property
    def urls(self) -> dict[str, str]:
        """The address of each place's own."""
        return {place: f"http://127.0.0.1:{own.getsockname()[1]}" for place, own in self._own.items()}

    def specs(self) -> list[ChildSpec]:
        """Return the first holder of every place."""
        return [self.next_of(place) for place in self._own]

    def next_of(self, place: str) -> ChildSpec:
        """Return the next holder of a place: another id, the same addresses."""
        gateway_id = f"{self._name}-{next(self._numbers)}"
        spec = self._process(place)
        own = self._own[place]
        public = self._public
        flags = [f"--own-fd={own.fileno()}", f"--shared-fd={public.http.fileno()}"]
        if public.grpc is not None:
            flags.append(f"--grpc-fd={public.grpc.fileno()}")
        return msgspec.structs.replace(
            spec,
            argv=(*spec.argv, f"--gateway-id={gateway_id}", *flags),
            listeners=(own, *public.given()),
            answers=partial(_answers, self.urls[place], gateway_id),
        )

    def lacking(self) -> list[str]:
        """Return, in words and once each, what keeps any gateway from serving."""
        found = [missing for url in self.urls.values() for missing in gateway_lacks(url)]
        return list(dict.fromkeys(found))

    def close(self) -> None:
        """Let go of the sockets: from now on they live as long as the gateways that hold them."""
        for listener in (*self._public.given(), *self._own.values()):
            listener.close()


def _answers(url: str, gateway_id: str) -> bool:
    return not gateway_lacks(url, gateway_id)
