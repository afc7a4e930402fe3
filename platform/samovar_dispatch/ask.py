"""One invocation as an edge understood it, from the moment its function and its caller are known.

An *ask* is what the client wants; a *call* (`call.py`) is one attempt at it with one version. Most asks have one call;
a shed one has none, a hedged one or one that fell back has several. This module does not know protocols or stores.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from samovar.wire import JobTag, LogLine, Progress
    from samovar_dispatch.call import Call, Outcome, Version
    from samovar_dispatch.functions import FunctionEntry
    from samovar_dispatch.rates.gcra import Rate

HIGH, NORMAL, LOW, BACKGROUND = range(4)
PRIORITIES = {b"high": HIGH, b"normal": NORMAL, b"low": LOW}
PRIORITY_NAMES = ("high", "normal", "low", "background")

NATIVE, OPENAI, OIP_REST, OIP_GRPC, JOB = PROTOCOLS = ("native", "openai", "oip-rest", "oip-grpc", "job")

# marks: what happened to an ask beside its outcome
CACHED, FALLBACK, RETRIED, HEDGED, SHADOW, COLD = 1, 2, 4, 8, 16, 32


class Handle(Protocol):
    """Whatever is under way for an ask and may be abandoned."""

    def cancel(self) -> None:
        """Nobody wants the answer any more. Idempotent."""

    def place(self) -> int | None:
        """Return how many calls wait in front of it, at most `queue.MAX_COUNTED`; None if it does not wait in line."""


class Ask:
    """All `_s` times are monotonic seconds.

    key_id: of the caller's API key; rate: that key's limit, None = none. priority: HIGH, NORMAL, LOW or BACKGROUND, as
    the key allows. header: the request's headers by lower-case name, as bytes. no_store: the caller forbids keeping its
    answer. deliver: called once with the call that answered (None if no call did) and the outcome; must not raise.
    version: that the route chose, None until then; an edge whose caller names one sets it before it begins. marks: a
    sum of the constants above. more_headers: what the answer says beside its usual headers. answered_by: who gave it,
    if not the version itself, as in `requestlog.rows`. handle: what is under way, once it began. job: it is an attempt
    at a queued job, None for an invocation; hear: called with what its handler says meanwhile, must not raise; the
    handler is told whether anybody listens (`unheard`: nobody); accept: the media type that the answer is to have.
    num_paid: calls it pays for at the rate limits: of several asks of one request the first pays for all, the others
    for none. alone: it may have taken down an instance: it gets one to itself. protocol: by which it came, one of
    PROTOCOLS.
    """

    __slots__ = (
        "accept",
        "accept_stream",
        "alone",
        "answered_by",
        "arrived_s",
        "body",
        "content_type",
        "deadline_s",
        "deliver",
        "entry",
        "handle",
        "header",
        "hear",
        "job",
        "key_id",
        "marks",
        "more_headers",
        "no_store",
        "num_paid",
        "priority",
        "protocol",
        "rate",
        "request_id",
        "traceparent",
        "version",
    )

    def __init__(
        self,
        entry: FunctionEntry,
        key_id: str,
        arrived_s: float,
        deadline_s: float,
        header: dict[bytes, bytes],
        request_id: bytes,
        priority: int = NORMAL,
        no_store: bool = False,
        content_type: str = "application/json",
        traceparent: str = "",
        accept_stream: bool = True,
        protocol: str = NATIVE,
    ) -> None:
        self.entry = entry
        self.key_id = key_id
        self.arrived_s = arrived_s
        self.deadline_s = deadline_s
        self.header = header
        self.request_id = request_id
        self.priority = priority
        self.no_store = no_store
        self.content_type = content_type
        self.traceparent = traceparent
        self.accept_stream = accept_stream
        self.protocol = protocol
        self.accept = "application/json"
        self.num_paid = 1
        self.rate: Rate | None = None
        self.body = b""
        self.deliver: Callable[[Call | None, Outcome], object] = _nobody
        self.marks = 0
        self.answered_by = ""
        self.more_headers: Sequence[tuple[bytes, bytes]] = ()
        self.handle: Handle | None = None
        self.version: Version | None = None
        self.job: JobTag | None = None
        self.hear: Callable[[Progress | LogLine], object] = unheard
        self.alone = False


def unheard(_message: Progress | LogLine) -> None:
    """Drop what a handler says that nobody listens to."""


def _nobody(_call: Any, _outcome: Any) -> None:
    """Drop an outcome that came before anybody waited: cannot happen once `deliver` is set."""
