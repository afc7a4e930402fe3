"""What the request log keeps of a streamed answer, gathered item by item. Pure.

An item is looked at once, as it passes, so nothing of it can be redacted later: with paths to redact only the hash of
the whole stream is kept. This module does not know connections.
"""

from __future__ import annotations

import hashlib

from samovar.policies import Log
from samovar_storage.requestlog.rows import CUT, HASH, WHOLE


class StreamCopy:
    """The stream as its reader gets it, a line an item. max_bytes: as much of it is kept; None = its SHA-256."""

    __slots__ = ("_digest", "_lines", "_room_bytes", "num_bytes")

    def __init__(self, max_bytes: int | None) -> None:
        self.num_bytes = 0
        self._room_bytes = max_bytes or 0
        self._digest = hashlib.sha256() if max_bytes is None else None
        self._lines: list[bytes] = []

    def add(self, item: bytes) -> None:
        """Take in the next item."""
        self.num_bytes += len(item) + 1
        if self._digest is not None:
            self._digest.update(item)
            self._digest.update(b"\n")
        elif self._room_bytes > 0:
            self._lines.append((item + b"\n")[: self._room_bytes])
            self._room_bytes -= len(item) + 1

    def kept(self) -> tuple[bytes, int]:
        """Return what is kept and its form, as `rows` has them."""
        if self._digest is not None:
            return self._digest.digest(), HASH
        text = b"".join(self._lines)
        return (text, WHOLE) if len(text) == self.num_bytes else (text, CUT)


def copy_for(log: Log) -> StreamCopy:
    """Return what gathers a stream of a version with this policy; with "none" it only counts."""
    if log.payload == "none":
        return StreamCopy(0)
    return StreamCopy(log.max_bytes if log.payload == "full" and not log.redact else None)
