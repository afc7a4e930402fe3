"""The model thread of plain and generator handlers: one call at a time, in the process's main thread.

    while there is a call: start it, run it, tell the I/O thread

A plain call cannot be interrupted: it keeps its slot until it really stops. A generator is closed at its next step once
its caller has left or its deadline has passed, and sleeps while its reader is STREAM_WINDOW items behind.
This module does not know frames, sockets or batches.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any, Protocol

from samovar import wire
from samovar.errors import BadOutput, Cancelled, DeadlineExceeded
from samovar_instance import failures
from samovar_instance.calls import Call, Kind
from samovar_instance.contexts import context_of
from samovar_instance.failures import Fault
from samovar_instance.invoker import Invoker
from samovar_instance.mailbox import Mailbox

NOTHING = b"null"  # what a check that went well answers


class Runner(Protocol):
    """What runs a version's calls in the main thread."""

    def run(self) -> None:
        """Serve until the mailbox is told to stop and is empty."""


def start(mailbox: Mailbox, call: Call) -> bool:
    """Mark a call as started; False, and its end told, if nobody wants it any more."""
    now_s = time.monotonic()
    if now_s >= call.deadline_s:
        mailbox.emit(Kind.FAILURE, call, failures.expired("queue"))
        return False
    call.started_at_s = now_s
    if call.notify_start:
        mailbox.emit(Kind.STARTED, call)
    return True


def finish(mailbox: Mailbox, call: Call, kind: Kind, payload: Any = None) -> None:
    """Tell how a started call ended, and after how long."""
    call.run_us = int((time.monotonic() - call.started_at_s) * 1e6)
    call.body = b""
    mailbox.emit(kind, call, payload)


def fail(mailbox: Mailbox, call: Call, error: BaseException) -> None:
    """Tell that a started call raised; the traceback of the user's own errors goes to the log.

    A deadline that passed is nobody's error, whether this module or an engine noticed it.
    """
    fault = failures.fault_of(error)
    if fault.status >= 500 and not isinstance(error, Expired | DeadlineExceeded):
        failures.log(error)
    finish(mailbox, call, Kind.FAILURE, error.fault if isinstance(error, Expired) else fault)


def check(mailbox: Mailbox, call: Call, invoker: Invoker) -> None:
    """Run the version's own check as a call that was started, and tell how it ended."""
    try:
        invoker.prove()
    except BaseException as error:  # noqa: BLE001 (user code may raise anything)
        fail(mailbox, call, error)
    else:
        finish(mailbox, call, Kind.RESULT, NOTHING)


class Expired(Exception):
    """The deadline passed while a stream ran."""

    fault: Fault = failures.expired("run")


class SyncRunner:
    """Runs plain handlers."""

    def __init__(self, mailbox: Mailbox, invoker: Invoker) -> None:
        self._mailbox = mailbox
        self._invoker = invoker

    def run(self) -> None:
        """Serve until told to stop."""
        mailbox, answer = self._mailbox, self._invoker.answer
        takes_context = self._invoker.takes_context
        while (call := mailbox.take()) is not None:
            if not start(mailbox, call):
                continue
            if call.is_check:
                check(mailbox, call, self._invoker)
                continue
            try:
                context = context_of(mailbox, call) if takes_context else None
                body = answer(call.body, context, call.content_type, call.accept)
            except BaseException as error:  # noqa: BLE001 (a handler may raise anything, SystemExit included)
                fail(mailbox, call, error)
            else:
                finish(mailbox, call, Kind.RESULT, body)
                del body  # it may be large, and the next call long in coming


class StreamRunner:
    """Runs generator handlers."""

    def __init__(self, mailbox: Mailbox, invoker: Invoker) -> None:
        self._mailbox = mailbox
        self._invoker = invoker

    def run(self) -> None:
        """Serve until told to stop."""
        while (call := self._mailbox.take()) is not None:
            if not start(self._mailbox, call):
                continue
            if call.is_check:
                check(self._mailbox, call, self._invoker)
                continue
            try:
                self._stream(call)
            except BaseException as error:  # noqa: BLE001 (as in SyncRunner)
                fail(self._mailbox, call, error)

    def _stream(self, call: Call) -> None:
        context = context_of(self._mailbox, call) if self._invoker.takes_context else None
        items = self._invoker.items(call.body, context, call.content_type)
        try:
            whole = self._send_all(call, items)
        finally:
            close = getattr(items, "close", None)
            if close is not None:
                close()
        finish(self._mailbox, call, Kind.END if call.accept_stream else Kind.RESULT, whole)

    def _send_all(self, call: Call, items: Iterator[Any]) -> bytes:
        """Send every item as a chunk, or return them all as NDJSON for a caller that takes no stream."""
        lines: list[bytes] = []
        for item in items:
            line = self._invoker.write(item, call.accept)
            self._check(call)
            if call.accept_stream:
                self._await_credit(call)
                call.num_sent += 1
                self._mailbox.emit(Kind.CHUNK, call, line)
            else:
                lines.append(line)
        return join_lines(lines)

    def _check(self, call: Call) -> None:
        if call.is_cancelled:
            raise Cancelled
        if time.monotonic() >= call.deadline_s:
            raise Expired

    def _await_credit(self, call: Call) -> None:
        def is_over() -> bool:
            return call.is_cancelled or call.num_sent < call.num_granted

        while not is_over():
            self._mailbox.doze(is_over, max(0.0, call.deadline_s - time.monotonic()))
            self._check(call)
        self._check(call)


def join_lines(lines: list[bytes]) -> bytes:
    """Return NDJSON. Raises BadOutput if it does not fit one frame."""
    whole = b"".join(line + b"\n" for line in lines)
    if len(whole) > wire.MAX_FRAME_BYTES - 1024:
        raise BadOutput(f"the whole stream is {len(whole)} bytes, more than one answer can carry")
    return whole
