"""One invocation inside an instance, and what may happen to it.

A call belongs to the I/O thread until the model thread takes it out of the mailbox; from then on only the fields named
here are touched from both sides, each written by one of them. This module does not know how either side works.
"""

from __future__ import annotations

from collections.abc import Callable
from enum import IntEnum
from typing import TYPE_CHECKING, Any

from samovar import wire

if TYPE_CHECKING:
    from samovar_instance.connection import Connection
    from samovar_instance.contexts import CallContext


MAX_TIMEOUT_S = 30 * 24 * 3600.0


class Kind(IntEnum):
    """What the model thread tells the I/O thread about a call. RESULT, END and FAILURE end it."""

    RESULT = 0  # payload: body
    FAILURE = 1  # payload: Fault
    CHUNK = 2  # payload: one encoded item
    END = 3  # payload: None
    STARTED = 4  # payload: None
    PROGRESS = 5  # payload: None; the context has it
    LINE = 6  # payload: a line for the caller


class Call:
    """I/O thread writes: deadline_s, is_cancelled, is_expired, num_granted. Model thread: started_at_s, num_sent …

    received_at_s, deadline_s: monotonic seconds. has_heard: what runs it was told to stop, and could listen.
    value, cost, length: decoded input of a batch item, and what its function says of it.
    stop, resume: how the I/O thread reaches a running coroutine.
    is_check: it runs the version's own check, not the handler. num_granted - num_sent: chunks a stream may still send.
    content_type, accept: of the body, and of what the caller wants for an answer. tenant: whose call it is, "" =
    unknown.
    job: the queued job it is an attempt at, None for an invocation. is_heard: its caller hears what its handler says.
    context: what its handler sees of it, None until a
    handler that wants one has it.
    """

    __slots__ = (
        "accept",
        "accept_stream",
        "batch_size",
        "body",
        "connection",
        "content_type",
        "context",
        "cost",
        "deadline_s",
        "has_heard",
        "id",
        "is_cancelled",
        "is_check",
        "is_expired",
        "is_heard",
        "job",
        "length",
        "notify_start",
        "num_granted",
        "num_sent",
        "received_at_s",
        "request_id",
        "resume",
        "run_us",
        "started_at_s",
        "stop",
        "tenant",
        "value",
    )

    def __init__(self, connection: Connection, invoke: wire.Invoke, now_s: float) -> None:
        self.connection = connection
        self.id = invoke.id
        self.body = invoke.body
        self.content_type = invoke.content_type
        self.accept = invoke.accept
        self.tenant = invoke.tenant
        self.accept_stream = invoke.accept_stream
        self.notify_start = invoke.notify_start
        self.request_id = invoke.request_id
        self.job = invoke.job
        self.is_heard = invoke.hear or invoke.job is not None
        self.received_at_s = now_s
        # NaN and what is not positive have passed already; whatever the caller sends, timers can hold it
        self.deadline_s = now_s + (min(invoke.timeout_ms / 1000, MAX_TIMEOUT_S) if invoke.timeout_ms > 0 else 0.0)
        self.started_at_s = 0.0
        self.run_us = 0
        self.batch_size = 1
        self.is_cancelled = False
        self.is_check = False
        self.is_expired = False
        self.has_heard = False
        self.num_granted = wire.STREAM_WINDOW
        self.num_sent = 0
        self.context: CallContext | None = None
        self.value: Any = None
        self.cost = 0.0
        self.length = 0
        self.stop: Callable[[], object] | None = None
        self.resume: Callable[[], object] | None = None

    @property
    def wait_us(self) -> int:
        """Received until started, 0 if it never was."""
        return int((self.started_at_s - self.received_at_s) * 1e6) if self.started_at_s else 0


Event = tuple[Kind, Call, Any]
