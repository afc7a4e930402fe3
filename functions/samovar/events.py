"""What a call's server-sent events are to who reads them, and when a broken stream is gone on with. Pure.

    Waiting …  Output, Progress, Log …  Done        or the error that the call came to, raised

This module does not know connections or clocks.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, TypeAlias

import msgspec

from samovar import patience
from samovar.errors import ConnectError, SamovarError
from samovar.problems import rebuilt

SILENCE_S = 20.0  # the gateway says something every 3 s
MAX_RESUME_S = 60.0


class Waiting(msgspec.Struct, frozen=True):
    """Nothing new. phase: queue, boot (an instance starts), connect, or "" once it runs. ahead: calls in front."""

    phase: str = ""
    ahead: int = 0


class Output(msgspec.Struct, frozen=True):
    """value: one item, or the answer of a function that gives one; `{"content_type", "base64"}` of what is no JSON."""

    value: Any


class Progress(msgspec.Struct, frozen=True):
    """fraction: 0 to 1."""

    fraction: float
    message: str = ""


class Log(msgspec.Struct, frozen=True):
    """line: that the handler told its caller."""

    line: str


class Done(msgspec.Struct, frozen=True):
    """The clean end. timing_ms: where the time went, by phase; headers: that a plain answer would have had."""

    num_outputs: int
    timing_ms: dict[str, float] = msgspec.field(default_factory=dict)
    headers: dict[str, str] = msgspec.field(default_factory=dict)


Event: TypeAlias = Waiting | Output | Progress | Log | Done
_KINDS: dict[str, type[Progress | Log | Done]] = {"progress": Progress, "log": Log, "done": Done}


class Blocks:
    """Cuts a stream of bytes into events and comments, at empty lines."""

    def __init__(self) -> None:
        self._rest = b""

    def feed(self, data: bytes) -> list[bytes]:
        """Return the blocks that `data` completes."""
        *blocks, self._rest = (self._rest + data).split(b"\n\n")
        return blocks


class Course:
    """Where a client is in one stream, over as many connections as it takes.

    last_id: what it has; "" until the stream has said what it can be resumed by. is_over: it had the end.
    """

    def __init__(self, headers: Mapping[str, str], resume_s: float | None) -> None:
        """headers: of the call. resume_s: how long a lost connection is made up for, 1 to 60 s; None = not at all.

        Raises: ValueError.
        """
        if resume_s is not None and not 1 <= resume_s <= MAX_RESUME_S:
            raise ValueError(f"resume_s is 1 to {MAX_RESUME_S:g} seconds, not {resume_s}")
        self.last_id = ""
        self.is_over = False
        self._headers = {"Accept": "text/event-stream", **headers}
        self._resume_s = resume_s
        self._num_tries = 0
        self._lost_s: float | None = None

    @property
    def headers(self) -> dict[str, str]:
        """What the next request says beside its body."""
        if self.last_id:
            return self._headers | {"Last-Event-ID": self.last_id}
        return self._headers | ({"Samovar-Resume": f"{self._resume_s:g}"} if self._resume_s is not None else {})

    def farewell(self) -> dict[str, str] | None:
        """Return the headers of a request that ends the call, None if it ends with its connection."""
        if self._resume_s is None or not self.last_id or self.is_over:
            return None
        return self._headers | {"Last-Event-ID": self.last_id, "Samovar-Resume": "0"}

    def take(self, block: bytes) -> Event | None:
        """Return the event of a block, None if it only says where the stream is. Raises: the error it tells of."""
        fields: dict[bytes, bytes] = {}
        for line in block.split(b"\n"):
            name, _, value = line.partition(b": ")
            fields[name] = fields[name] + b"\n" + value if name in fields else value
        if b"" in fields:  # `: a comment`
            return _waiting(fields[b""].decode())
        if self._resume_s is not None and b"id" in fields:
            self.last_id = fields[b"id"].decode()
        if b"event" not in fields:
            return None
        self._num_tries, self._lost_s = 0, None
        return self._event(fields[b"event"].decode(), fields.get(b"data", b""), is_of_call=b"id" in fields)

    def _event(self, kind: str, data: bytes, *, is_of_call: bool) -> Event | None:
        if kind == "output":
            return Output(msgspec.json.decode(data))
        if kind == "error":
            problem = msgspec.json.decode(data)
            self.is_over = is_of_call  # others are about this connection
            raise rebuilt(problem, int(problem.get("status", 500)))
        self.is_over = kind == "done"
        known = _KINDS.get(kind)
        return msgspec.json.decode(data, type=known) if known is not None else None

    def broken(self) -> SamovarError:
        """Return the error of a connection that ended without an end of the stream."""
        return ConnectError("the stream stopped without an end: the connection was lost on the way")

    def pause_s(self, error: SamovarError, now_s: float, chance: float) -> float | None:
        """Return after how many seconds to go on with the stream, None if `error` is final.

        Args: now_s: monotonic. chance: within [0, 1].
        """
        if self._resume_s is None or not self.last_id or self.is_over:
            return None
        self._lost_s = now_s if self._lost_s is None else self._lost_s
        self._num_tries += 1
        return patience.pause_s(error, self._num_tries - 1, self._lost_s + self._resume_s - now_s, chance)


def _waiting(comment: str) -> Waiting:
    """Return what `waiting, phase queue, 3 ahead` says."""
    parts = comment.split(", ")
    if len(parts) != 3 or parts[0] != "waiting":
        return Waiting()
    ahead = parts[2].split(" ")[0]
    return Waiting(parts[1].removeprefix("phase "), int(ahead) if ahead.isdecimal() else 0)
