"""What a client may send before anybody looks at it: connections, size of a head, bytes of a message, and how slowly.

| it sends                                                    | it gets
|-------------------------------------------------------------|-------------------------------------------------------
| one connection more than `max_connections`                  | 503 at once, closed
| no whole head within `body_timeout_s`                       | 408, closed
| more than MAX_HEADERS headers, or MAX_HEAD_BYTES of head    | 431, closed
| what is no HTTP/1: bad length, length twice, bad chunk      | 400, closed
| far more bytes than its body has (tiny chunks, extensions)  | 413, closed
| trailers behind a chunked body                              | they are read and dropped: they never count as headers

A message that cannot be read ends its connection, because nobody knows where the next one would begin. An answer that
is owed to an earlier request is still sent. This module does not know routes, or what a body means.
"""

from __future__ import annotations

import asyncio
import logging
import resource
import time
from typing import Any

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from samovar.errors import BodyTooLarge, ClientTooSlow, HeadTooLarge, NoCapacity, RequestError, SamovarError
from samovar_gateway.admission import CLOSE, Admission
from samovar_gateway.connections import Connections, is_answered

MAX_HEADERS = 128
MAX_HEAD_BYTES = 64 * 1024
FRAMING_SHARE, FRAMING_BYTES = 2, 128 * 1024  # what a message may have on the wire: times its largest body, and more
RESERVED_FILES = 512  # for stores, instances and ourselves


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's HTTP protocol within these bounds; whoever extends it says when a message begins, its head is complete
    (`check_head`) and it ends. head_since_s: see `connections.Connection`."""

    server_state: Connections

    def __init__(self, admission: Admission, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.admission = admission
        self.head_since_s: float | None = None
        self._watch: asyncio.TimerHandle | None = None
        self._is_reading = False  # a message has begun and not ended
        self._num_bytes = 0  # of that message, as they came
        self._read_bytes = 0  # of the last read
        self._why: SamovarError | None = None  # the parser was stopped, if not by itself

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        if len(self.connections) > self.admission.max_connections:
            self.turn_away(NoCapacity("this gateway has as many connections as it can take", retry_after_s=1.0))
            return
        self.head_since_s = time.monotonic()
        self._watch_head()

    def connection_lost(self, exc: Exception | None) -> None:
        if self._watch is not None:
            self._watch.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        self._read_bytes = len(data)
        super().data_received(data)
        if self._is_reading:
            self._num_bytes += len(data)
            self._check_size()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Keep a header, as uvicorn does; a trailer is none."""
        if self.head_since_s is None:
            return
        name = name.lower()
        if name == b"expect" and value.lower() == b"100-continue":
            self.expect_100_continue = True
        self.headers.append((name, value))

    def begin_message(self) -> None:
        """The first bytes of a request are here."""
        self.head_since_s = time.monotonic()
        self._is_reading = True
        self._num_bytes = 0

    def check_head(self) -> None:
        """The head is complete. Raises HeadTooLarge, which stops the parser."""
        self.head_since_s = None
        size = self._num_bytes + self._read_bytes
        if size > MAX_HEAD_BYTES:
            size = len(self.url) + sum(len(name) + len(value) + 4 for name, value in self.headers)
        if len(self.headers) > MAX_HEADERS or size > MAX_HEAD_BYTES:
            self._why = _head_too_large()
            raise self._why

    def end_message(self) -> None:
        """The last byte of a request is here."""
        self._is_reading = False

    def send_400_response(self, msg: str) -> None:
        """The parser was stopped, or stopped by itself: nothing can be read here any more."""
        self._break_off(self._why or RequestError("this is not HTTP/1.1 as it should be"))

    def turn_away(self, error: SamovarError) -> None:
        """Answer with a problem document and end the connection."""
        headers, body = self.admission.refusal(error, self.admission.request_id({}))
        lines = [name + b": " + value + b"\r\n" for name, value in (*headers, CLOSE)]
        self.transport.write(b"".join((STATUS_LINE[error.status], *lines, b"\r\n", body)))
        self.transport.close()

    def _check_size(self) -> None:
        """A message is not all there yet: stop one that will never be right."""
        if self.transport.is_closing():
            return
        limit = self.admission.max_body_bytes
        if self.head_since_s is not None:
            if self._num_bytes > MAX_HEAD_BYTES:
                self._why = _head_too_large()
                self.send_400_response("")
        elif self._num_bytes > FRAMING_SHARE * limit + FRAMING_BYTES:
            self._break_off(BodyTooLarge("the body is far larger on the wire than it may be", max_body_bytes=limit))

    def _break_off(self, error: SamovarError) -> None:
        """The message under way cannot be read on: it is answered now, unless an earlier one is owed its answer."""
        is_own = self._is_reading and self.head_since_s is None and not self.pipeline
        if is_answered(self) or (is_own and not getattr(self.cycle, "response_started", True)):
            self.turn_away(error)
        else:
            self.cycle.keep_alive = False
            self.transport.pause_reading()

    def _watch_head(self) -> None:
        """Close a connection whose client takes too long to send a request's head: one timer, not one per request."""
        timeout_s = self.admission.body_timeout_s
        if self.head_since_s is not None and time.monotonic() - self.head_since_s > timeout_s:
            self.turn_away(ClientTooSlow(f"no request arrived within {timeout_s:g} s"))
        else:
            self._watch = self.loop.call_later(timeout_s, self._watch_head)


class CountedFilter(logging.Filter):
    """Keeps the server from logging a line for every broken request: they are counted by code instead."""

    def filter(self, record: logging.LogRecord) -> bool:
        return not record.getMessage().startswith(("Invalid HTTP request", "Unsupported upgrade request"))


def raise_file_limit() -> int:
    """This process may hold as many files and sockets as the system lets it; return how many."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != hard:
        resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    return hard


def _head_too_large() -> HeadTooLarge:
    return HeadTooLarge(f"a request has at most {MAX_HEADERS} headers, and {MAX_HEAD_BYTES} bytes before its body")
