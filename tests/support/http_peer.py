"""A real HTTP server on a free port that answers what a test tells it to, for what a real gateway does too rarely."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer


@dataclass(frozen=True)
class Asked:
    """One request as it came in; header names in lower case."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes


@dataclass(frozen=True)
class Reply:
    """What to answer. cut: close the connection in the middle of the body."""

    status: int = 200
    body: bytes = b"{}"
    headers: dict[str, str] = field(default_factory=dict)
    cut: bool = False


@dataclass
class Peer:
    """A running server: its address, and every request so far in order of arrival."""

    url: str
    asked: list[Asked]

    def asked_for(self, prefix: str) -> list[Asked]:
        """Return the requests whose path starts with `prefix`."""
        return [request for request in self.asked if request.path.startswith(prefix)]


@contextmanager
def http_peer(answer: Callable[[Asked], Reply]) -> Iterator[Peer]:
    """Serve `answer` on 127.0.0.1 for the length of the context; it is called from several threads."""
    asked: list[Asked] = []

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length") or 0))
            request = Asked(self.command, self.path, {k.lower(): v for k, v in self.headers.items()}, body)
            asked.append(request)
            reply = answer(request)
            self.send_response(reply.status)
            for name, value in reply.headers.items():
                self.send_header(name, value)
            self.send_header("Content-Length", str(len(reply.body) + (1 if reply.cut else 0)))
            self.end_headers()
            self.wfile.write(reply.body)
            self.close_connection = self.close_connection or reply.cut

        do_GET = do_POST = do_PUT = do_DELETE = do

        def log_message(self, format: str, *args: object) -> None:
            """Say nothing."""

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02})
    thread.start()
    try:
        yield Peer(f"http://127.0.0.1:{server.server_address[1]}", asked)
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
