"""The answer of a generator as `application/x-ndjson`, one line an item, as fast as the client reads.

A stream that fails after its first byte ends with the line `{"error": problem}` and a connection that is closed
without the final chunk, so that no client takes half an answer for a whole one.
"""

from __future__ import annotations

import logging

import msgspec
from litestar.types import Send

from samovar.errors import Cancelled, SamovarError
from samovar_dispatch.ask import Ask
from samovar_dispatch.call import Call
from samovar_dispatch.stream import ChunkStream
from samovar_gateway import problems

_HALF_SENT = "without completing response"


async def answer_stream(ask: Ask, call: Call, stream: ChunkStream, send: Send) -> None:
    """Send the stream. Raises SamovarError if it fails before its first chunk."""
    chunk = await anext(stream, None)
    headers = [
        (b"content-type", b"application/x-ndjson"),
        (b"samovar-version", call.version.label),
        (b"x-request-id", ask.request_id),
        (b"x-accel-buffering", b"no"),
        *ask.more_headers,
    ]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    try:
        while chunk is not None:
            await send({"type": "http.response.body", "body": chunk + b"\n", "more_body": True})
            chunk = await anext(stream, None)
    except Cancelled:
        return
    except SamovarError as error:
        problem = problems.document(error, ask.request_id.decode("latin-1"))
        line = msgspec.json.encode({"error": problem}, enc_hook=str) + b"\n"
        await send({"type": "http.response.body", "body": line, "more_body": True})
        return  # leaving the response open makes the server close the connection
    await send({"type": "http.response.body", "body": b"", "more_body": False})


class HalfSentFilter(logging.Filter):
    """Keeps the server from reporting as an error what `answer_stream` does on purpose."""

    def filter(self, record: logging.LogRecord) -> bool:
        return _HALF_SENT not in record.getMessage()
