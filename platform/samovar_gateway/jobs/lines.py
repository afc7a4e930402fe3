"""JSON lines out of a stream of bytes: one input each, in batches. Empty lines are none; CRLF is taken, too.

This module does not know where the bytes come from, nor what becomes of the lines.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import msgspec

from samovar.errors import InvalidInput

BATCH_LINES = 1000
BATCH_BYTES = 4 << 20
_PATH = "$.upload"


@dataclass(slots=True)
class Batch:
    """Lines that follow each other. end_bytes: where the line after the last begins, counted from the first byte.

    num_bytes: what they take.
    """

    lines: list[bytes] = field(default_factory=list)
    end_bytes: int = 0
    num_bytes: int = 0

    def is_full(self) -> bool:
        """Return whether no further line should be added."""
        return len(self.lines) >= BATCH_LINES or self.num_bytes >= BATCH_BYTES


def batches(chunks: Iterable[bytes], max_line_bytes: int) -> Iterator[Batch]:
    """Yield the lines of `chunks`, none of them empty, at most BATCH_LINES at a time.

    Raises: InvalidInput for a line above `max_line_bytes`.
    """
    batch, rest = Batch(), bytearray()
    for chunk in chunks:
        rest += chunk
        *lines, rest = rest.split(b"\n")
        if len(rest) > max_line_bytes:
            raise InvalidInput(f"a line is longer than {max_line_bytes} bytes", path=_PATH)
        for line in lines:
            _add(batch, line, len(line) + 1)
            if batch.is_full():
                yield batch
                batch = Batch(end_bytes=batch.end_bytes)
    _add(batch, rest, len(rest))
    if batch.lines:
        yield batch


def _add(batch: Batch, line: bytearray, num_bytes: int) -> None:
    batch.end_bytes += num_bytes
    if text := bytes(line.strip()):
        batch.lines.append(text)
        batch.num_bytes += len(text)


def count_lines(chunks: Iterable[bytes], max_line_bytes: int, max_lines: int) -> int:
    """Return how many lines there are, if each is one JSON value.

    Raises: InvalidInput naming the first line that is none, or saying that there are none or too many.
    """
    num_lines = 0
    for batch in batches(chunks, max_line_bytes):
        for line in batch.lines:
            num_lines += 1
            _check(line, num_lines, max_line_bytes)
        if num_lines > max_lines:
            raise InvalidInput(f"an upload has at most {max_lines} lines", path=_PATH)
    if not num_lines:
        raise InvalidInput("the upload has no line", path=_PATH)
    return num_lines


def _check(line: bytes, number: int, max_line_bytes: int) -> None:
    if len(line) > max_line_bytes:
        raise InvalidInput(f"input {number} is longer than {max_line_bytes} bytes", path=_PATH, line=number)
    try:
        msgspec.json.decode(line, type=msgspec.Raw)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise InvalidInput(f"input {number} is not JSON: {error}", path=_PATH, line=number) from error
    except RecursionError as error:
        raise InvalidInput(f"input {number} is nested too deeply", path=_PATH, line=number) from error
