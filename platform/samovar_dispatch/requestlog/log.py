"""One row per invocation, taken down when it ended: appends to lists, bounded in rows and bytes, never more.

What costs time (hashing, redacting, counting, writing) is done later by the writer, beside the calls; rows that need
none of it are packed as they come (`books.py`). What does not fit is dropped and counted. Of a request's
headers only its id, trace id and content type are kept, never a credential. This module does not know Redis, files
or HTTP.
"""

from __future__ import annotations

import random
import time

from samovar.errors import SamovarError
from samovar.wire import Result
from samovar_dispatch.ask import COLD, RETRIED, Ask
from samovar_dispatch.call import Call, Outcome, Version
from samovar_dispatch.requestlog.books import Book
from samovar_dispatch.requestlog.copies import StreamCopy
from samovar_dispatch.requestlog.policy import NOTHING, UNTREATED, PayloadPolicy
from samovar_dispatch.stream import ChunkStream
from samovar_storage.requestlog.rows import NONE, WHOLE, Row

MAX_BYTES = 64 << 20
ROW_BYTES = 600  # a row without its payloads, about
HURRY_BYTES = 8 << 20
CLIENT_LEFT = 499
MAX_HEADER_CHARS = 100
MAX_POLICIES = 1_000


class RequestLog:
    """One per gateway. num_noted, num_dropped: invocations so far, and how many of them left no row.

    hurry: called when much is pending. run: names this gateway and this start of it. With `is_on` false only traffic
    is counted.
    """

    def __init__(self, run: str = "gateway", is_on: bool = True) -> None:
        self.run = run
        self.num_noted = self.num_dropped = 0
        self.hurry = _nobody
        self._is_on = is_on
        self._books: dict[Version | str, Book] = {}
        self._policies: dict[str, PayloadPolicy] = {}
        self._num_bytes = 0
        self._wall_s = time.time() - time.monotonic()

    def note(self, ask: Ask, call: Call | None, outcome: Outcome, code: str) -> None:
        """Take down an invocation that ended. Never raises and never waits.

        Args:
            call: its last attempt, None if no version was tried.
            code: of its error, "ok" or "cancelled".
        """
        # a refused ask has no call, one that fell back has a call of another version
        version = ask.version or (call.version if call is not None else ask.entry.only)
        total_s = (call.ended_s if call is not None else time.monotonic()) - ask.arrived_s
        book = self._books.get(version or ask.entry.record.name)
        if book is None:
            book = self._open(ask, version)
        if type(outcome) is Result:
            book.totals_s.append(total_s)
            book.runs_us.append(outcome.run_us)
            if ask.marks:
                book.unmark(ask.marks)
            if self._is_on:
                self._append(book, ask, call, 200, code, total_s, outcome, outcome.body)
            return
        status = _status_of(outcome)
        book.count(status, ask.marks, total_s)
        if self._is_on:
            self._append(book, ask, call, status, code, total_s, _NO_RESULT, None)
            if call is not None and call.stream is not None and call.stream.copy is not None and book.rows:
                self._add_stream(book.rows[-1], call.stream.copy)

    def take(self) -> list[Book]:
        """Return what is pending, a book for each version, and begin anew."""
        taken, self._books = self._books, {}
        self._num_bytes = 0
        self._wall_s = time.time() - time.monotonic()  # follows a clock that was set
        return [*taken.values()]

    def _append(
        self,
        book: Book,
        ask: Ask,
        call: Call | None,
        status: int,
        code: str,
        total_s: float,
        result: Result,
        answer: bytes | None,
    ) -> None:
        self.num_noted = seq = self.num_noted + 1
        body, policy, form = ask.body, book.policy, NONE
        size_in, size_out, num_bytes = len(body), len(result.body), ROW_BYTES
        if policy.keeps and (policy.sample >= 1 or random.random() < policy.sample):  # noqa: S311
            num_bytes += size_in + size_out
            form = WHOLE if policy.is_plain and size_in <= policy.max_bytes >= size_out else UNTREATED
        self._num_bytes = num_bytes = self._num_bytes + num_bytes
        if num_bytes > HURRY_BYTES and self._is_full(num_bytes):
            return
        marks, instance, queue_s, attempts, boot_ms = ask.marks, "", 0.0, 0, None
        if call is not None:
            attempts = call.num_attempts
            queue_s = call.sent_s - call.submitted_s + result.wait_us * 1e-6
            if call.seat is not None:
                record = call.seat.owner.record
                instance = record.instance_id
                if call.cold:
                    marks |= COLD
                    boot_ms = record.boot_ms
            else:
                instance = call.lost_on
            if attempts:
                marks |= RETRIED
        row = Row(
            seq, self._wall_s + ask.arrived_s, book.number, instance, ask.request_id,
            ask.key_id, ask.priority, status, code, total_s, queue_s, result.run_us, result.batch_size, attempts, marks,
            size_in, size_out, ask.content_type[:MAX_HEADER_CHARS], ask.traceparent[:MAX_HEADER_CHARS], boot_ms,
            body if form else None, form, answer if form else None, form if answer is not None else NONE,
            ask.answered_by, ask.protocol,
        )  # fmt: skip
        book.add(row, size_in + size_out if form else 0, self.run)
        if form == UNTREATED:
            book.untreated.append(row)

    def _add_stream(self, row: Row, copy: StreamCopy) -> None:
        """The row says what was streamed, if it is the one that was just taken down."""
        if row.seq != self.num_noted:
            return
        row.bytes_out = copy.num_bytes
        if row.body_form != NONE:
            row.answer, row.answer_form = copy.kept()
            self._num_bytes += len(row.answer)

    def _is_full(self, num_bytes: int) -> bool:
        """Ask for a flush; return whether the row that makes it `num_bytes` is one too many, and count it then."""
        self.hurry()
        if num_bytes <= MAX_BYTES:
            return False
        self._num_bytes = MAX_BYTES
        self.num_dropped += 1
        return True

    def _open(self, ask: Ask, version: Version | None) -> Book:
        """Begin a version's book. An invocation that no version got, though several might have, keeps no payload."""
        name = ask.entry.record.name
        if version is None:
            book = self._books[name] = Book(name, None, 0, NOTHING)
            return book
        policy = self._policies.get(version.ref)
        if policy is None:
            if len(self._policies) >= MAX_POLICIES:
                self._policies.clear()
            policy = self._policies[version.ref] = PayloadPolicy.of(version.manifest.log)
        book = self._books[version] = Book(name, version.ref, version.manifest.version, policy)
        return book


def _status_of(outcome: Outcome) -> int:
    if isinstance(outcome, SamovarError):
        return outcome.status
    return 200 if isinstance(outcome, ChunkStream) else CLIENT_LEFT


_NO_RESULT = Result(0, b"", 0, 0, 0, 0)


def _nobody() -> None:
    """Nobody writes yet."""
