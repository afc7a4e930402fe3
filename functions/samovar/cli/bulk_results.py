"""The file that results go to: a line of JSON per input, with the input's line number, sorted by it at the end.

    {"line": 7, "job": "…", "result": …}      {"line": 8, "job": "…", "error": {"code", "detail", …}}

Lines are appended as jobs end; after a death the file says which are there. This module does not know the gateway.
"""

from __future__ import annotations

import os
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec

from samovar.errors import InvalidInput
from samovar.values import Struct


class Outcome(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What became of one line. error: a problem document."""

    line: int
    job: str = ""
    result: Any = None
    error: dict[str, Any] | None = None


class _Kept(Struct, frozen=True, kw_only=True):
    """What is read back of an outcome."""

    line: int
    error: dict[str, Any] | None = None


class Results:
    """An output file, open for more. lines: those that are in it. counts: finished, failed."""

    def __init__(self, path: Path) -> None:
        """Open what is there, without a last line that was cut off. Raises: InvalidInput if it is no such file."""
        self.path = path
        self.lines: set[int] = set()
        self.counts: Counter[str] = Counter()
        if path.exists():
            self._read()
        self._file = path.open("ab")

    def add(self, outcomes: list[Outcome]) -> None:
        """Append those that are not there yet."""
        fresh = [outcome for outcome in outcomes if outcome.line not in self.lines]
        self._file.write(b"".join(encoded(outcome) + b"\n" for outcome in fresh))
        self._file.flush()
        for outcome in fresh:
            self._count(outcome.line, outcome.error is not None)

    def finish(self) -> None:
        """Everything is there: bring it into the inputs' order, in one step, and onto the disk."""
        self._file.close()
        offsets = self._offsets()
        if offsets != sorted(offsets):
            self._rewrite(sorted(offsets))

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()

    def _read(self) -> None:
        whole = 0
        with self.path.open("rb") as file:
            for number, line in enumerate(file, 1):
                if not line.endswith(b"\n"):
                    break
                whole += len(line)
                try:
                    kept = msgspec.json.decode(line, type=_Kept)
                except msgspec.MsgspecError as error:
                    raise InvalidInput(f"not a result of ours: {error}", file=str(self.path), line=number) from error
                self._count(kept.line, kept.error is not None)
        os.truncate(self.path, whole)

    def _count(self, line: int, is_failure: bool) -> None:
        self.lines.add(line)
        self.counts["failed" if is_failure else "finished"] += 1

    def _offsets(self) -> list[tuple[int, int, int]]:
        """Return (input line, offset, length) of every line of the file."""
        found, offset = [], 0
        with self.path.open("rb") as file:
            for line in file:
                found.append((msgspec.json.decode(line, type=_Kept).line, offset, len(line)))
                offset += len(line)
        return found

    def _rewrite(self, offsets: list[tuple[int, int, int]]) -> None:
        aside = self.path.with_name(f"{self.path.name}.sorted")
        with self.path.open("rb") as source, aside.open("wb") as target:
            for _, offset, length in offsets:
                source.seek(offset)
                target.write(source.read(length))
            target.flush()
            os.fsync(target.fileno())
        aside.replace(self.path)


def encoded(outcome: Outcome) -> bytes:
    """Return an outcome as JSON; a result that is null is said to be so."""
    if outcome.error is None and outcome.result is None:
        return msgspec.json.encode({"line": outcome.line, "job": outcome.job, "result": None})
    return msgspec.json.encode(outcome)
