"""Answers to clients of HTTP/1.0, which knows no chunks: one without a length ends by closing the connection.

uvicorn would send chunks to them, too. Whoever is cut off sees the same end: a stream that fails says so in its last
line, and nothing else can be told. This module does not know what is answered.
"""

from __future__ import annotations

from typing import Any

from uvicorn.protocols.http.httptools_impl import RequestResponseCycle

VERSION = "1.0"
_LENGTHS = (b"content-length", b"transfer-encoding")


def end_by_closing(cycle: RequestResponseCycle) -> None:
    """Have a response end with its connection, unless it says its length. cycle: before it sent anything."""
    send = cycle.send
    is_endless = False

    async def sending(message: Any) -> None:
        """Send one ASGI message; of a body without a length no more is expected than comes."""
        nonlocal is_endless
        if message["type"] == "http.response.start":
            is_endless = not any(name.lower() in _LENGTHS for name, _ in message.get("headers", ()))
            if is_endless:
                cycle.chunked_encoding = False
        elif is_endless:
            cycle.expected_content_length = len(message.get("body", b""))
        await send(message)

    cycle.send = sending  # type: ignore[method-assign]
