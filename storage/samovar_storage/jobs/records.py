"""What the job store takes and returns: frozen structs. `_at_s` are unix seconds. This module does not know Redis."""

from __future__ import annotations

from typing import Any

import msgspec

from samovar.jobs import JobState, Progress, WaitReason, Webhook
from samovar.values import Struct


class JobSpec(Struct, frozen=True, kw_only=True):
    """What never changes about a job once it is accepted: every option has its value here.

    deadline_at_s: 0 = none. max_crashes: see `policies.Jobs`. reduce_of: the group whose results are its input.
    cron: name of the cron job that submitted it. retry_of: the ended job it repeats.
    """

    function: str
    key_id: str
    created_at_s: float
    content_type: str = "application/json"
    retries: int = 0
    backoff_s: float = 1.0
    max_backoff_s: float = 300.0
    retry_on: list[str] = msgspec.field(default_factory=list)
    give_up_on: list[str] = msgspec.field(default_factory=list)
    timeout_s: float = 600.0
    deadline_at_s: float = 0.0
    max_crashes: int = 3
    result_ttl_s: float = 86400.0
    unique: str = ""
    lane: str = ""
    depends_on: list[str] = msgspec.field(default_factory=list)
    allow_failed: bool = False
    webhook: Webhook | None = None
    tags: dict[str, str] = msgspec.field(default_factory=dict)
    group: str = ""
    index: int = 0
    reduce_of: str = ""
    cron: str = ""
    retry_of: str = ""


class NewJob(Struct, frozen=True, kw_only=True):
    """A job to be accepted. input: the body an invocation would have. due_at_s: not before, 0 = now."""

    id: str
    spec: JobSpec
    input: bytes
    due_at_s: float = 0.0


class Taken(Struct, frozen=True, kw_only=True):
    """A job that a worker holds now, and must settle or give back. input: fetched, wherever it lay.

    token: rises with each take of this job; with the worker's id it is the fence. attempt: starts so far, this one
    included. failures: attempts that the function failed. crashes: instances the job took down so far.
    is_input_stored: it lay in object storage.
    """

    id: str
    spec: JobSpec
    input: bytes
    queue: str
    token: int
    attempt: int
    failures: int = 0
    crashes: int = 0
    is_input_stored: bool = False


class Settlement(Struct, frozen=True, kw_only=True):
    """How a taken job is left. state: finished, failed, canceled; or scheduled / queued = another attempt.

    result: of a finished one. error: problem document of a failed one, or of the attempt that is repeated.
    due_at_s: of a scheduled one. failures, crashes: new totals. at_front: queued before those that wait.
    counts_attempt: False = it was never started (backpressure), as if it had not been taken. version: that ran it.
    """

    state: JobState
    result: bytes = b""
    result_type: str = ""
    error: dict[str, Any] | None = None
    due_at_s: float = 0.0
    failures: int = 0
    crashes: int = 0
    at_front: bool = False
    counts_attempt: bool = True
    version: int = 0


class JobRecord(Struct, frozen=True, kw_only=True):
    """A job as it is stored. worker, token: who holds it, or held it last ("" while it waits again). canceling: asked
    to stop while it ran.

    seq: its number within its queue, rising in the order of entry. input_bytes, result_bytes: sizes, wherever they lie.
    result: None if there is none, or it lies in object storage (`is_result_stored`).
    """

    id: str
    spec: JobSpec
    state: JobState
    queue: str
    enqueued_at_s: float = 0.0
    started_at_s: float = 0.0
    ended_at_s: float = 0.0
    due_at_s: float = 0.0
    expires_at_s: float = 0.0
    attempt: int = 0
    failures: int = 0
    crashes: int = 0
    token: int = 0
    seq: int = 0
    worker: str = ""
    version: int = 0
    canceling: bool = False
    progress: Progress | None = None
    input_bytes: int = 0
    is_input_stored: bool = False
    result: bytes | None = None
    result_bytes: int = 0
    result_type: str = ""
    is_result_stored: bool = False
    error: dict[str, Any] | None = None


class Backlog(Struct, frozen=True, kw_only=True):
    """Jobs of one function that wait for a slot now, by lane, read off the queues."""

    normal: int = 0
    low: int = 0


class Page(Struct, frozen=True, kw_only=True):
    """cursor: for the next page, "" at the end."""

    jobs: list[JobRecord]
    cursor: str = ""


class GroupRecord(Struct, frozen=True, kw_only=True):
    """Jobs that were submitted with the same `JobSpec.group`. num_jobs: accepted so far, the reducing one not counted.

    counts: by state; those that expired are counted in the state they ended in. reduce: id of the job whose
    `reduce_of` is this group, "" = none.
    """

    id: str
    function: str
    key_id: str
    num_jobs: int
    counts: dict[str, int]
    created_at_s: float = 0.0
    reduce: str = ""


class Hold(Struct, frozen=True, kw_only=True):
    """A worker takes no jobs of a function, or of one key's queues of it, until then. until_s: unix, 0 = who knows."""

    reason: WaitReason
    until_s: float = 0.0


class WorkerStatus(Struct, frozen=True, kw_only=True):
    """What one worker says of itself about once a second.

    running: function → jobs it holds. max_running: that it may hold. holds: what it does not take now, by function,
    `function:key id`, or "" for everything. taken_per_s: queue → jobs a second it took from it lately. counts: what
    became of the jobs it took since it started (taken, finished, failed, canceled, repeated, given_back, late).
    """

    worker: str
    at_s: float
    max_running: int = 0
    running: dict[str, int] = msgspec.field(default_factory=dict)
    holds: dict[str, Hold] = msgspec.field(default_factory=dict)
    taken_per_s: dict[str, float] = msgspec.field(default_factory=dict)
    counts: dict[str, int] = msgspec.field(default_factory=dict)
