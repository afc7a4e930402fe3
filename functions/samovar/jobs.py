"""What a queued job is to those outside: its states, what may be asked of it, how it is shown. Routes, client and CLI
speak in these; JSON on the way.

    deferred ──► queued ──► started ──► finished
       scheduled ──┘ ▲         │──────► failed      (error.code says why: quarantined, deadline_exceeded, …)
           ▲         └─────────┤
           └── a retry waits ──┘         canceled   (from any state that is not terminal)

The states are RQ's words, so that its tools show the same. Terminal states are final; `retry` makes a new job of one.
This module does not know Redis, HTTP or how jobs are run.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Any, Literal

import msgspec

from samovar.values import Struct

MAX_JOBS_PER_REQUEST = 10_000
MAX_INLINE_BYTES = 64 * 1024  # larger inputs and results live in object storage
MAX_UNIQUE_BYTES = 200


class JobState(StrEnum):
    """queued: waits for a slot. scheduled: waits for an instant (delay, retry). deferred: waits for other jobs."""

    QUEUED = "queued"
    SCHEDULED = "scheduled"
    DEFERRED = "deferred"
    STARTED = "started"
    FINISHED = "finished"
    FAILED = "failed"
    CANCELED = "canceled"


TERMINAL = frozenset({JobState.FINISHED, JobState.FAILED, JobState.CANCELED})

WaitReason = Literal[
    "no_worker",  # no job worker is alive
    "paused",  # its cap of running jobs is reached, or its function takes no jobs now
    "rate_limited",
    "cold_start",  # an instance is coming up
    "no_capacity",  # the version may not have (more) instances now
    "crash_loop",  # its instances do not come up; the last boot failure says why
    "breaker_open",
    "retry",  # scheduled: the next attempt is not due yet
    "delayed",  # scheduled: as asked
    "dependencies",  # deferred
    "busy",  # every slot is taken
]


class Webhook(Struct, frozen=True, kw_only=True):
    """Whom to tell. events: states told about, of finished, failed, canceled, started."""

    url: str
    events: list[str] = msgspec.field(default_factory=lambda: ["finished", "failed", "canceled"])


class JobOptions(Struct, frozen=True, kw_only=True):
    """What a submitter may say beside the input. None: as the function says (`policies.Jobs`).

    retries: further attempts after the function failed, >= 0. retry_on, give_up_on: exception class names.
    timeout_s: of one attempt; deadline_s: of all, from submit on. delay_s: not before. result_ttl_s: how long it is
    kept once ended.
    unique: at most one unfinished job of this function and key with this text. priority: low runs after normal.
    depends_on: job ids that must finish first; allow_failed: or end in any way. durability: the 202 is given once the
    job is in the append-only file ("aof"), or on the disk ("fsync"). tags: for finding it again.
    """

    retries: int | None = None
    retry_on: list[str] | None = None
    give_up_on: list[str] | None = None
    timeout_s: float | None = None
    deadline_s: float | None = None
    delay_s: float = 0.0
    result_ttl_s: float | None = None
    unique: str = ""
    priority: Literal["normal", "low"] = "normal"
    depends_on: list[str] = msgspec.field(default_factory=list)
    allow_failed: bool = False
    webhook: Webhook | str | None = None
    durability: Literal["aof", "fsync"] = "aof"
    tags: dict[str, str] = msgspec.field(default_factory=dict)


class Reduce(Struct, frozen=True, kw_only=True):
    """What is called once with `{"results": [...]}`, all results in the inputs' order. function: "" = the same one.

    allow_failed: called although some failed, with null in their place.
    """

    function: str = ""
    allow_failed: bool = False


class Progress(Struct, frozen=True, kw_only=True):
    """fraction: 0..1."""

    fraction: float
    message: str = ""


class JobView(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A job as `GET /v1/jobs/{id}` shows it. `_at_s` are unix seconds, 0 = not yet.

    attempt: starts so far. crashes: instances it took down. token: fencing token of the last attempt, rising.
    position: jobs of the same function and key in front of it, at most. wait_reason: why it does not run yet.
    estimated_start_s: in so many seconds it may run, None if nobody can tell.
    result: the decoded JSON, if it is small and JSON; else `result_bytes` says that `…/result` has it.
    error: a problem document without request_id. group: it was submitted with others,
    index: at this place among them, from 0 on.
    """

    id: str
    function: str
    state: JobState
    version: int = 0
    key_id: str = ""
    created_at_s: float = 0.0
    enqueued_at_s: float = 0.0
    started_at_s: float = 0.0
    ended_at_s: float = 0.0
    due_at_s: float = 0.0
    expires_at_s: float = 0.0
    attempt: int = 0
    failures: int = 0
    crashes: int = 0
    token: int = 0
    retries: int = 0
    priority: str = "normal"
    position: int | None = None
    estimated_start_s: float | None = None
    wait_reason: str = ""
    progress: Progress | None = None
    result: Any = None
    result_bytes: int = 0
    result_type: str = ""
    error: dict[str, Any] | None = None
    group: str = ""
    tags: dict[str, str] = msgspec.field(default_factory=dict)
    index: int = 0


class GroupView(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Jobs that were submitted together. counts: by state. reduce: id of the job that gets all results, "" = none."""

    id: str
    function: str
    num_jobs: int
    counts: dict[str, int]
    created_at_s: float = 0.0
    reduce: str = ""


class JobEvent(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One thing that happened to a job. id: rising within the job, what `Last-Event-ID` names.

    kind: queued, started, progress, log, output (one item of a stream), retry, finished, failed, canceled.
    """

    id: str
    kind: str
    at_s: float
    data: dict[str, Any] = msgspec.field(default_factory=dict)


class CronJob(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A job that is submitted by the clock: five fields of cron in a time zone.

    input: JSON. missed: what is done about runs that nobody was there for: "skip", "last" (one now), "all" (each, 100
    at most). overlap: what is done while the last run has not ended: "skip", "queue", "cancel" (the one that runs).
    next_at_s, last_at_s: unix seconds; last_job: id. key_id: whose job it is. upcoming_s: the next runs, where it is
    shown by itself, the soonest first. notice: which runs were left out the last time, and why, "" = none.
    """

    name: str
    function: str
    schedule: str
    tz: str = "UTC"
    input: Any = None
    options: JobOptions = JobOptions()
    missed: Literal["skip", "last", "all"] = "last"
    overlap: Literal["skip", "queue", "cancel"] = "skip"
    enabled: bool = True
    key_id: str = ""
    created_at_s: float = 0.0
    next_at_s: float = 0.0
    last_at_s: float = 0.0
    last_job: str = ""
    upcoming_s: list[float] = msgspec.field(default_factory=list)
    notice: str = ""
