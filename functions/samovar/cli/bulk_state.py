"""What a run over a file remembers, so that it goes on after any death: `<output>.state`, JSON lines, each on the disk
before what it speaks of is relied on.

    {"run", "function", "sha256", "batch_size", …}      first: which file, and the name its requests go by
    {"batch", "group", "num_jobs", "reduce"}            per accepted request: these lines are the jobs of this group
    {"upload"}                                          the file is in object storage under this name

A request that was accepted but not yet noted is sent again under the same idempotency key and answered as before.
This module does not know the gateway.
"""

from __future__ import annotations

import codecs
import fcntl
import hashlib
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import uuid4

import msgspec

from samovar.errors import Conflict, InvalidInput
from samovar.values import Struct

MAX_BATCH_BYTES = 4 * 1024 * 1024


class Head(Struct, frozen=True, kw_only=True):
    """What a run is about. run: part of every idempotency key. sha256: of the input file. terms: the jobs' options."""

    run: str
    function: str
    sha256: str
    batch_size: int
    terms: dict[str, Any]
    reduce: dict[str, Any] | None = None


class Sent(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One accepted request. batch: its number. reduce: id of the job that gets all results."""

    batch: int
    group: str
    num_jobs: int
    reduce: str = ""


class Uploaded(Struct, frozen=True, kw_only=True):
    """The whole file, in object storage."""

    upload: str


class Batch(Struct, frozen=True, kw_only=True):
    """Lines that go in one request. start: offset of the first byte. lines: their numbers in the file, from 1 on."""

    number: int
    start: int
    lines: range | list[int]


class Inputs:
    """The lines of a file, cut into batches; only their places are kept in memory."""

    def __init__(self, path: Path, batch_size: int | None) -> None:
        """Read the file through once. batch_size: lines per request; None = all in one.

        Raises: InvalidInput with file and line for one that is no JSON; for a file without lines.
        """
        self.path = path
        self.batches: list[Batch] = []
        self.num_lines = self.num_bytes = 0
        digest = hashlib.sha256()
        numbers: list[int] = []
        start = size = 0
        for number, offset, line in _lines(path):
            digest.update(line)
            if not (text := line.strip()):
                continue
            _check(path, number, text)
            is_full = batch_size is not None and (len(numbers) >= batch_size or size + len(text) > MAX_BATCH_BYTES)
            if numbers and is_full:
                self._add(start, numbers)
                numbers, size = [], 0
            start = start if numbers else offset
            numbers.append(number)
            size += len(text)
            self.num_lines += 1
            self.num_bytes += len(text)
        if not numbers:
            raise InvalidInput(f"{path} has no line", file=str(path))
        self._add(start, numbers)
        self.sha256 = digest.hexdigest()

    def read(self, batch: Batch) -> list[bytes]:
        """Return the inputs of a batch."""
        found: list[bytes] = []
        with self.path.open("rb") as file:
            file.seek(batch.start)
            while len(found) < len(batch.lines):
                if text := file.readline().strip():
                    found.append(text)
        return found

    def _add(self, start: int, numbers: list[int]) -> None:
        is_whole = numbers[-1] - numbers[0] + 1 == len(numbers)
        lines = range(numbers[0], numbers[-1] + 1) if is_whole else numbers
        self.batches.append(Batch(number=len(self.batches), start=start, lines=lines))


class Ledger:
    """The state file of one run, open for more, by nobody else. sent: by batch."""

    def __init__(self, path: Path, head: Head, sent: dict[int, Sent], upload: str) -> None:
        self.path = path
        self.head = head
        self.sent = sent
        self.upload = upload
        self._file = path.open("ab")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            self._file.close()
            raise Conflict(f"another run is at work on {path}") from error

    def note(self, entry: Sent | Uploaded) -> None:
        """Keep an entry; it is on the disk afterwards."""
        if isinstance(entry, Sent):
            self.sent[entry.batch] = entry
        else:
            self.upload = entry.upload
        _append(self._file, entry)

    def close(self) -> None:
        """Let go of the file."""
        self._file.close()


def open_ledger(path: Path, head: Head) -> Ledger:
    """Return the ledger at `path`, begun as `head` says if there is none.

    Raises: InvalidInput if the one that is there is about another file, function or options, or is damaged, or if none
    can be written; Conflict while another run has it.
    """
    entries = list(_entries(path))
    if not entries:
        try:
            with path.open("wb") as file:
                _append(file, head)
        except OSError as error:
            raise InvalidInput(f"cannot write {path}: {error.strerror}") from error
        return Ledger(path, head, {}, "")
    before = _as(path, entries[0], Head)
    if msgspec.structs.replace(before, run=head.run, batch_size=head.batch_size) != head:
        changed = [
            name for name in ("function", "sha256", "terms", "reduce") if getattr(before, name) != getattr(head, name)
        ]
        what = ", ".join({"sha256": "the file's content", "terms": "the options"}.get(name, name) for name in changed)
        raise InvalidInput(
            f"{path} is about an earlier run that differs in {what}: --restart forgets it, --output takes another place"
        )
    sent = [_as(path, entry, Sent) for entry in entries[1:] if "batch" in entry]
    uploads = [_as(path, entry, Uploaded).upload for entry in entries[1:] if "upload" in entry]
    return Ledger(path, before, {entry.batch: entry for entry in sent}, uploads[-1] if uploads else "")


def new_head(
    function: str, inputs: Inputs, batch_size: int, terms: dict[str, Any], reduce: dict[str, Any] | None
) -> Head:
    """Return the head of a new run."""
    return Head(
        run=uuid4().hex,
        function=function,
        sha256=inputs.sha256,
        batch_size=batch_size,
        terms=terms,
        reduce=reduce,
    )


def batch_size_of(path: Path) -> int | None:
    """Return the batch size of the run that is noted at `path`, None if there is none."""
    first = next(_entries(path), None)
    return None if first is None else _as(path, first, Head).batch_size


def _lines(path: Path) -> Iterator[tuple[int, int, bytes]]:
    """Yield (number, offset, line) of every line. Raises InvalidInput if the file cannot be read."""
    offset = 0
    try:
        with path.open("rb") as file:
            for number, line in enumerate(file, 1):
                yield number, offset, line
                offset += len(line)
    except OSError as error:
        raise InvalidInput(f"cannot read {path}: {error.strerror}") from error


def _check(path: Path, number: int, text: bytes) -> None:
    if text.startswith(codecs.BOM_UTF8):
        raise InvalidInput("begins with a byte order mark: save it as UTF-8 without one", file=str(path), line=number)
    try:
        msgspec.json.decode(text, type=msgspec.Raw)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidInput(f"not JSON: {error}", file=str(path), line=number) from error


def _entries(path: Path) -> Iterator[dict[str, Any]]:
    """Yield what was noted; a last line that was cut off in the middle was relied on by nobody, and is removed."""
    if not path.exists():
        return
    content = path.read_bytes()
    whole = content.rfind(b"\n") + 1
    if whole < len(content):
        os.truncate(path, whole)
    for line in content[:whole].splitlines():
        try:
            yield msgspec.json.decode(line, type=dict[str, Any])
        except msgspec.MsgspecError as error:
            raise InvalidInput(f"{path} is damaged ({error}): --restart begins anew") from error


def _as(path: Path, entry: dict[str, Any], kind: Any) -> Any:
    try:
        return msgspec.convert(entry, kind)
    except msgspec.ValidationError as error:
        raise InvalidInput(f"{path} is no state of ours ({error}): --output takes another place") from error


def _append(file: Any, entry: Struct) -> None:
    file.write(msgspec.json.encode(entry) + b"\n")
    file.flush()
    os.fsync(file.fileno())
