"""A load balancer that loses connections: each goes to the next gateway, and is cut after some bytes of its answer."""

from __future__ import annotations

import itertools
import socket
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager


class CuttingProxy:
    """url: what stands in front of the gateways. cuts: after how many bytes of the answer each connection ends, by
    turn; None = not at all; what comes after them is not cut. num_connections: so far."""

    def __init__(self, addresses: Sequence[tuple[str, int]], cuts: Sequence[int | None]) -> None:
        self.num_connections = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._addresses = itertools.cycle(addresses)
        self._cuts = itertools.chain(cuts, itertools.repeat(None))
        threading.Thread(target=self._serve, daemon=True).start()

    def close(self) -> None:
        self._listener.close()

    def _serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self.num_connections += 1
            gateway = socket.create_connection(next(self._addresses))
            threading.Thread(target=_pass, args=(client, gateway, None), daemon=True).start()
            threading.Thread(target=_pass, args=(gateway, client, next(self._cuts)), daemon=True).start()


def _pass(source: socket.socket, target: socket.socket, left: int | None) -> None:
    """Hand on what comes, at most so many bytes; then close both."""
    try:
        while left is None or left > 0:
            data = source.recv(65536 if left is None else min(left, 65536))
            if not data:
                break
            target.sendall(data)
            left = None if left is None else left - len(data)
    except OSError:
        pass
    for end in (source, target):
        try:
            end.shutdown(socket.SHUT_RDWR)
        except OSError:
            pass
        end.close()


@contextmanager
def cutting_proxy(urls: Sequence[str], cuts: Sequence[int | None] = ()) -> Iterator[CuttingProxy]:
    """The proxy for the body of a `with`. urls: of the gateways."""
    hosts = [url.removeprefix("http://").split(":") for url in urls]
    proxy = CuttingProxy([(host, int(port)) for host, port in hosts], cuts)
    try:
        yield proxy
    finally:
        proxy.close()
