"""A real HTTP server on loopback that takes webhooks, in threads: it keeps what came and answers as it is told."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from samovar.webhooks import verify


class Request(NamedTuple):
    """What came: method, path, headers with lower-case names, body."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes

    def event(self, secret: str) -> dict[str, Any]:
        """Return the event, its signature verified."""
        return verify(self.body, self.headers, secret)


class Receiver:
    """answers: path → status, or (status, headers, body); 200 for others. hang: set to let those to /hang… go on."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.port = int(url.rpartition(":")[2])
        self.seen: list[Request] = []
        self.answers: dict[str, int | tuple[int, dict[str, str], bytes]] = {}
        self.hang = threading.Event()

    def ids(self, path: str = "") -> list[str]:
        """Return the ids of the events that came, to one path or to all."""
        return [request.headers["webhook-id"] for request in self.seen if not path or request.path == path]


@contextmanager
def receiving() -> Iterator[Receiver]:
    """Run a receiver for the body of a `with`."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def _take(self) -> None:
            body = self.rfile.read(int(self.headers.get("content-length", 0)))
            headers = {name.lower(): value for name, value in self.headers.items()}
            receiver.seen.append(Request(self.command, self.path, headers, body))
            if self.path.startswith("/hang"):
                receiver.hang.wait(30)
            answer = receiver.answers.get(self.path, 200)
            status, more, text = (answer, {}, b"") if isinstance(answer, int) else answer
            self.send_response(status)
            for name, value in {"content-length": str(len(text)), **more}.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(text)

        do_POST = do_GET = _take

        def log_message(self, format: str, *args: Any) -> None:
            return

        def handle(self) -> None:
            try:
                super().handle()
            except (BrokenPipeError, ConnectionResetError):
                return

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.daemon_threads = True
    receiver = Receiver(f"http://127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05})
    thread.start()
    try:
        yield receiver
    finally:
        receiver.hang.set()
        server.shutdown()
        thread.join()
        server.server_close()
