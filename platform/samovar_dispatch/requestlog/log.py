"""One row per invocation, taken down when it ended: an append to a list, bounded in rows and bytes, never more.

What costs time (hashing, redacting, packing, writing) is done later by the writer, beside the calls. What does not fit
is dropped and counted. Of a request's headers only its id, trace id and content type are kept, never a credential.
Every invocation also counts in its version's traffic (`samovar_storage.traffic`), whether its row was kept or not.
This module does not know Redis, files or HTTP.
"""

from __future__ import annotations

import random
import time

from samovar.errors import SamovarError
from samovar.wire import Result
from samovar_dispatch.ask import COLD, RETRIED, Ask
from samovar_dispatch.call import Call, Outcome, Version
from samovar_dispatch.requestlog.policy import NOTHING, PayloadPolicy
from samovar_dispatch.requestlog.tallies import Tallies
from samovar_dispatch.stream import ChunkStream
from samovar_storage.requestlog.rows import NONE, Row

MAX_ROWS = 50_000
MAX_BYTES = 64 << 20
ROW_BYTES = 600  # a row without its payloads, about
HURRY_ROWS = 4_000
HURRY_BYTES = 8 << 20
CLIENT_LEFT = 499


class Pending:
    """Rows of one function on their way to the writer. raw: those whose payloads a policy still has to treat."""

    __slots__ = ("raw", "rows")

    def __init__(self) -> None:
        self.rows: list[Row] = []
        self.raw: list[tuple[Row, PayloadPolicy]] = []


class RequestLog:
    """One per gateway. num_noted, num_dropped: invocations so far, and how many of them left no row.

    tallies: traffic by version since it was last taken. hurry: called when much is pending.
    """

    def __init__(self, is_on: bool = True) -> None:
        self.num_noted = self.num_dropped = 0
        self.tallies = Tallies()
        self.hurry = _nobody
        self._is_on = is_on
        self._pending: dict[str, Pending] = {}
        self._num_rows = self._num_bytes = 0
        self._policies: dict[str, PayloadPolicy] = {}
        self._wall_s = time.time() - time.monotonic()

    def note(self, ask: Ask, call: Call | None, outcome: Outcome, code: str) -> None:
        """Take down an invocation that ended. Never raises and never waits.

        Args:
            call: its last attempt, None if no version was tried.
            code: of its error, "ok" or "cancelled".
        """
        now_s = time.monotonic()
        total_s = now_s - ask.arrived_s
        status, run_us, wait_us, batch_size, answer = 200, 0, 0, 0, None
        if type(outcome) is Result:
            answer = outcome.body
            run_us, wait_us, batch_size = outcome.run_us, outcome.wait_us, outcome.batch_size
        elif isinstance(outcome, SamovarError):
            status = outcome.status
        elif not isinstance(outcome, ChunkStream):
            status = CLIENT_LEFT
        version = call.version if call is not None else ask.entry.only
        self.tallies.add(version if call is None else call.version, status, ask.marks, total_s, run_us)
        if self._is_on:
            self._append(ask, call, version, (status, code, total_s, run_us, wait_us, batch_size), answer)

    def take(self) -> dict[str, Pending]:
        """Return what is pending by function, and begin anew."""
        taken, self._pending = self._pending, {}
        self._num_rows = self._num_bytes = 0
        self._wall_s = time.time() - time.monotonic()  # follows a clock that was set
        return taken

    def _append(
        self,
        ask: Ask,
        call: Call | None,
        version: Version | None,
        ended: tuple[int, str, float, int, int, int],
        answer: bytes | None,
    ) -> None:
        self.num_noted += 1
        body = ask.body
        size_in, size_out = len(body), len(answer) if answer is not None else 0
        policy = self._policy(version)
        keeps = policy.keeps and (policy.sample >= 1 or random.random() < policy.sample)  # noqa: S311
        held = (
            min(size_in, policy.max_bytes) + min(size_out, policy.max_bytes) if policy.is_plain else size_in + size_out
        )
        self._num_bytes += (num_bytes := ROW_BYTES + (held if keeps else 0))
        if self._num_rows >= MAX_ROWS or self._num_bytes > MAX_BYTES:
            self._num_bytes -= num_bytes
            self.num_dropped += 1
            return
        status, code, total_s, run_us, wait_us, batch_size = ended
        marks, instance, queue_s, attempts, boot_ms, number = ask.marks, "", 0.0, 0, None, 0
        if call is not None:
            number, attempts = call.version.manifest.version, call.num_attempts
            queue_s = call.sent_s - call.submitted_s + wait_us * 1e-6
            seat = call.seat
            if seat is not None:
                instance = seat.owner.record.instance_id
                if call.cold:
                    marks |= COLD
                    boot_ms = seat.owner.record.boot_ms
            if attempts:
                marks |= RETRIED
        row = Row(
            self.num_noted, self._wall_s + ask.arrived_s, number, instance, ask.request_id, ask.key_id, ask.priority,
            status, code, total_s, queue_s, run_us, batch_size, attempts, marks, size_in, size_out, ask.content_type,
            ask.traceparent, boot_ms, None, NONE, None, NONE,
        )  # fmt: skip
        name = ask.entry.record.name
        pending = self._pending.get(name)
        if pending is None:
            pending = self._pending[name] = Pending()
        pending.rows.append(row)
        if keeps:
            row.body, row.answer = body, answer
            pending.raw.append((row, policy))
        self._num_rows += 1
        if self._num_rows == HURRY_ROWS or self._num_bytes > HURRY_BYTES:
            self.hurry()

    def _policy(self, version: Version | None) -> PayloadPolicy:
        """Return a version's policy; an invocation that no version got, and several might have, keeps no payload."""
        if version is None:
            return NOTHING
        policy = self._policies.get(version.ref)
        if policy is None:
            if len(self._policies) > 1000:
                self._policies.clear()
            policy = self._policies[version.ref] = PayloadPolicy.of(version.manifest.log)
        return policy


def _nobody() -> None:
    """Nobody writes yet."""
