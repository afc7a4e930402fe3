"""Rows of the request log as a gateway would pack them, for tests."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from samovar_storage.requestlog.rows import NONE, WHOLE, Frame, Row, decode_frame, encode_frame
from samovar_storage.requestlog.spool import SpoolWriter

HOUR_S = 1_796_000_400  # 2026-11-30 01:00 UTC


def row(seq: int, at_s: float = HOUR_S + 60.0, **changes: Any) -> Row:
    """Return a plain answered call of version 1."""
    made = Row(
        seq, at_s, 1, "i1", b"r%d" % seq, "k1", 1, 200, "ok", 0.02, 0.001, 15_000, 1, 0, 0, 2, 5,
        "application/json", "", None, b"{}", WHOLE, b"[1.0]", WHOLE,
    )  # fmt: skip
    for name, value in changes.items():
        setattr(made, name, value)
    return made


def bare(seq: int, at_s: float = HOUR_S + 60.0, **changes: Any) -> Row:
    """Return a call without payloads."""
    return row(seq, at_s, body=None, body_form=NONE, answer=None, answer_form=NONE, **changes)


def packed(*rows: Row, run: str = "g1-run", function: str = "echo") -> bytes:
    """Return a frame of these rows."""
    return encode_frame(run, function, rows)


def frame(*rows: Row, run: str = "g1-run", function: str = "echo") -> Frame:
    """Return a frame of these rows as it is read."""
    return decode_frame(packed(*rows, run=run, function=function))


def spool_of(folder: Path, run: str = "g1-run", max_bytes: int = 1 << 30) -> SpoolWriter:
    """Return a spool's writing half."""
    return SpoolWriter(folder, run, max_bytes, time.monotonic)
