"""What clients ask of jobs and read in the answers: paths, bodies, a job's own error. Pure; `Client` and `AsyncClient`
share it. This module does not know connections.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal, TypedDict
from urllib.parse import quote, urlencode

import msgspec

from samovar.errors import DeadlineExceeded, JobEnded, JobNotDone, SamovarError
from samovar.jobs import (
    MAX_JOBS_PER_REQUEST,
    TERMINAL,
    CronJob,
    GroupView,
    JobEvent,
    JobOptions,
    JobState,
    JobView,
    Webhook,
)
from samovar.problems import rebuilt
from samovar.values import Struct

# of one request with many inputs; more, or more of them, go by an upload
MAX_BODY_BYTES = 4 * 1024 * 1024
# one question for a job's end; below what proxies cut off
LONGEST_POLL_S = 25.0
ENDS = frozenset({"finished", "failed", "canceled"})


class Terms(TypedDict, total=False):
    """The keywords of `submit`: the fields of `samovar.jobs.JobOptions`, which says what each means."""

    retries: int
    retry_on: list[str]
    give_up_on: list[str]
    timeout_s: float
    deadline_s: float
    delay_s: float
    result_ttl_s: float
    unique: str
    priority: Literal["normal", "low"]
    depends_on: list[str]
    allow_failed: bool
    webhook: Webhook | str
    durability: Literal["aof", "fsync"]
    tags: dict[str, str]


class Submitted(Struct, frozen=True, kw_only=True):
    """What many inputs became. jobs: ids in their order, empty while an upload is read. reduce: id, "" = none."""

    group: str
    num_jobs: int = 0
    jobs: list[str] = msgspec.field(default_factory=list)
    reduce: str = ""


class JobPage(Struct, frozen=True, kw_only=True):
    """Some jobs of a list. cursor: of the next page, "" at the end."""

    jobs: list[JobView]
    cursor: str | None = ""


def options(terms: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options as they are sent: what is None is left to the function.

    Raises: TypeError for one that does not exist.
    """
    known = JobOptions.__struct_fields__
    if unknown := [name for name in terms if name not in known]:
        raise TypeError(f"a job has no option {unknown[0]!r}; it has {', '.join(known)}")
    sent: dict[str, Any] = msgspec.to_builtins({name: value for name, value in terms.items() if value is not None})
    return sent


def submit_body(value: Any, terms: Mapping[str, Any]) -> bytes:
    """Return the body that submits one job. value: None = no input, as for a function without parameters."""
    return msgspec.json.encode({"input": {} if value is None else value, **options(terms)})


def many_body(lines: Sequence[bytes], terms: Mapping[str, Any], reduce: Mapping[str, Any] | None) -> bytes:
    """Return the body that submits a job for each of `lines` (JSON)."""
    more = options(terms) | ({"reduce": dict(reduce)} if reduce is not None else {})
    return msgspec.json.encode({"inputs": [msgspec.Raw(line) for line in lines], **more})


def upload_body(upload: str, terms: Mapping[str, Any], reduce: Mapping[str, Any] | None) -> bytes:
    """Return the body that submits a job for each line of an upload."""
    more = options(terms) | ({"reduce": dict(reduce)} if reduce is not None else {})
    return msgspec.json.encode({"upload": upload, **more})


def needs_upload(lines: Sequence[bytes]) -> bool:
    """Return whether these inputs are too many, or too long, for one request."""
    return len(lines) > MAX_JOBS_PER_REQUEST or sum(map(len, lines)) > MAX_BODY_BYTES


def reduce_of(reduce: str | Mapping[str, Any] | bool | None) -> dict[str, Any] | None:
    """Return what is sent for `reduce=`: a function's name, True for the same, or `{"function", "allow_failed"}`."""
    if reduce is None or reduce is False:
        return None
    if reduce is True:
        return {}
    return {"function": reduce} if isinstance(reduce, str) else dict(reduce)


def encoded(inputs: Iterable[Any]) -> list[bytes]:
    """Return each input as JSON."""
    return [msgspec.json.encode(value) for value in inputs]


def jobs_path(function: str) -> str:
    """Return where jobs of a function are submitted."""
    return f"/v1/functions/{quote(function, safe='')}/jobs"


def job_path(job_id: str, deed: str = "", **query: Any) -> str:
    """Return the path of a job, or of what is done to it."""
    return _with_query(f"/v1/jobs/{quote(job_id, safe='')}{deed}", query)


def list_path(**query: Any) -> str:
    """Return the path of a list of jobs; what is None or "" is no condition."""
    return _with_query("/v1/jobs", query)


def group_path(group_id: str, deed: str = "") -> str:
    """Return the path of a group."""
    return f"/v1/groups/{quote(group_id, safe='')}{deed}"


def cron_path(name: str, deed: str = "") -> str:
    """Return the path of a cron job."""
    return f"/v1/crons/{quote(name, safe='')}{deed}"


def is_done(view: JobView) -> bool:
    """Return whether a job has ended."""
    return view.state in TERMINAL


def num_done(group: GroupView) -> int:
    """Return how many jobs of a group have ended."""
    return sum(count for state, count in group.counts.items() if state in TERMINAL)


def is_stored(view: JobView) -> bool:
    """Return whether a finished job's result is not in its view and must be asked for."""
    return view.state is JobState.FINISHED and view.result is None and view.result_bytes > 0


def failure_of(view: JobView) -> SamovarError | None:
    """Return the error of a job that ended without a result, None for one that finished."""
    if view.state is JobState.CANCELED:
        return JobEnded(f"job {view.id} was cancelled", job=view.id, state=str(view.state))
    if view.state is not JobState.FAILED:
        return None
    problem = view.error or {}
    return rebuilt(problem | {"job": view.id}, int(problem.get("status", 500)))


def not_done(view: JobView, waited_s: float) -> JobNotDone:
    """Return the error of a wait that ended before the job did: what it does now, and why it does not run."""
    why = f" ({WAIT_WORDS.get(view.wait_reason, view.wait_reason)})" if view.wait_reason else ""
    phase = "run" if view.state is JobState.STARTED else "queue"
    return JobNotDone(
        f"job {view.id} is still {view.state}{why} after {waited_s:.3g} s; it goes on, ask for it again",
        phase=phase,
        job=view.id,
        state=str(view.state),
        wait_reason=view.wait_reason,
    )


def group_not_done(view: GroupView, waited_s: float) -> JobNotDone:
    """Return the error of a wait that ended before every job of a group did."""
    counts = ", ".join(f"{count} {state}" for state, count in view.counts.items() if count)
    detail = f"group {view.id} is not done after {waited_s:.3g} s ({counts or 'nothing has started'}); it goes on"
    return JobNotDone(detail, phase="run" if num_done(view) else "queue", group=view.id, counts=view.counts)


WAIT_WORDS: dict[str, str] = {
    "no_worker": "no job worker is running",
    "paused": "as many of its function or key run as may, or jobs are suspended",
    "rate_limited": "the rate limit of its function or key is reached",
    "cold_start": "an instance is starting",
    "no_capacity": "there is no room for another instance now",
    "crash_loop": "its function's instances do not come up",
    "breaker_open": "its function fails too often and is given a rest",
    "retry": "it failed and is tried again later",
    "delayed": "it was asked to start later",
    "dependencies": "it waits for other jobs",
    "busy": "every slot is taken",
}


def is_silence(error: SamovarError) -> bool:
    """Return whether the other side only said nothing for a while."""
    return isinstance(error, DeadlineExceeded) and error.extra.get("phase") == "connect"


def event_of(event_id: str, kind: str, data: str) -> JobEvent:
    """Return the event that came as server-sent event."""
    content = json.loads(data)
    at_s = float(content.pop("at_s", 0.0))
    return JobEvent(id=event_id, kind=kind, at_s=at_s, data=content)


def cron_body(cron: CronJob) -> dict[str, Any]:
    """Return what is sent of a cron job: what its owner decides, not what the platform notes about it."""
    decided = ("function", "schedule", "tz", "input", "missed", "overlap", "enabled")
    return {name: getattr(cron, name) for name in decided} | {"options": options(msgspec.structs.asdict(cron.options))}


def _with_query(path: str, query: Mapping[str, Any]) -> str:
    text = urlencode({name: value for name, value in query.items() if value not in (None, "")})
    return f"{path}?{text}" if text else path
