"""A job as its hash holds it: RQ's fields, so that its tools can read it, and ours with the prefix `sv_`.

What RQ has a field for is kept there alone; what is as its default says is not kept. docs/jobs.md lists all fields.
This module does not know Redis.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

import msgspec
from rq.serializers import DefaultSerializer

from samovar.jobs import JobState, Progress
from samovar_storage.jobs.hooks import HOOK_FIELD, hook_field
from samovar_storage.jobs.layout import QueueName, parse_queue
from samovar_storage.jobs.records import JobRecord, JobSpec, NewJob, Settlement, Taken

INVOKE = "samovar_jobs.rq_function.invoke"
INPUT_STORED, RESULT_STORED = "i", "r"
DEFAULT_RESULT_TYPE = "application/json"
# parts of a spec that have a field of their own, or lie in the queue's name
_ELSEWHERE = frozenset(
    "function key_id lane created_at_s group index unique depends_on allow_failed deadline_at_s result_ttl_s".split()
)
_DEFAULTS = {field.name: field.default for field in msgspec.structs.fields(JobSpec)}
_STAMP = "%Y-%m-%dT%H:%M:%S.%fZ"
# all a record is made of: what is not asked for is big, or RQ's alone
RECORD_FIELDS = tuple(
    (
        "status origin created_at enqueued_at started_at ended_at worker_name group_id dependency_ids "
        "allow_dependency_failures sv_spec sv_index sv_unique sv_deadline sv_ttl sv_due sv_seq sv_token sv_attempt "
        "sv_failures sv_crashes sv_version sv_canceling sv_progress sv_input_bytes sv_result_bytes sv_result_type "
        "sv_stored sv_error"
    ).split()
)


def queue_of(spec: JobSpec) -> QueueName:
    """Return the queue a job waits in."""
    return QueueName(spec.function, spec.key_id, spec.lane)


def packed(job: NewJob, is_stored: bool) -> list[bytes]:
    """Return a job as the script `submit` takes it. is_stored: its input lies in object storage."""
    spec = job.spec
    flat = [part for pair in _fields(job, is_stored).items() for part in pair]
    waits = (spec.unique, spec.depends_on, spec.group, spec.reduce_of)
    described = msgspec.msgpack.encode([job.id, str(queue_of(spec)), flat, job.due_at_s, *waits])
    return [described, DefaultSerializer.dumps((INVOKE, None, (job.id,), {})), b"" if is_stored else job.input]


def packed_settlement(worker: str, taken: Taken, settlement: Settlement, is_stored: bool) -> list[bytes]:
    """Return a settlement as the script `settle` takes it. is_stored: its result lies in object storage."""
    is_finished = settlement.state == JobState.FINISHED
    error = msgspec.json.encode(settlement.error).decode() if settlement.error is not None else ""
    fields: dict[str, Any] = {"sv_failures": settlement.failures, "sv_crashes": settlement.crashes}
    fields |= {"sv_version": settlement.version, "sv_error": error}
    if is_finished:
        kind = settlement.result_type
        fields["sv_result_bytes"] = len(settlement.result)
        fields["sv_result_type"] = "" if kind == DEFAULT_RESULT_TYPE else kind
    flat = [part for pair in _given(fields).items() for part in pair]
    size = len(settlement.result) or len(error)
    code = (settlement.error or {}).get("code", "")
    how = (settlement.due_at_s, settlement.at_front, settlement.counts_attempt, code)
    described = [worker, taken.id, taken.token, settlement.state, flat, size, is_stored, *how]
    return [msgspec.msgpack.encode(described), settlement.result if is_finished and not is_stored else b""]


def record_of(job_id: str, names: Sequence[str], values: Sequence[bytes | None]) -> JobRecord | None:
    """Return the job whose hash has these values, None if it has none. names: RECORD_FIELDS, and maybe `sv_result`."""
    fields = {name: value for name, value in zip(names, values, strict=True) if value is not None}
    if "status" not in fields:
        return None
    stored = fields.get("sv_stored", b"").decode()
    error, progress = fields.get("sv_error"), fields.get("sv_progress")
    spec = spec_of(fields)
    ended_at_s = _instant(fields, "ended_at")
    state = JobState(fields["status"].decode())
    return JobRecord(
        id=job_id,
        spec=spec,
        state=state,
        queue=fields["origin"].decode(),
        enqueued_at_s=_instant(fields, "enqueued_at"),
        started_at_s=_instant(fields, "started_at"),
        ended_at_s=ended_at_s,
        due_at_s=float(fields.get("sv_due", 0)),
        expires_at_s=ended_at_s + spec.result_ttl_s if ended_at_s else 0.0,
        attempt=_number(fields, "sv_attempt"),
        failures=_number(fields, "sv_failures"),
        crashes=_number(fields, "sv_crashes"),
        token=_number(fields, "sv_token"),
        seq=_number(fields, "sv_seq"),
        worker=fields.get("worker_name", b"").decode(),
        version=_number(fields, "sv_version"),
        canceling="sv_canceling" in fields,
        progress=msgspec.json.decode(progress, type=Progress) if progress else None,
        input_bytes=_number(fields, "sv_input_bytes"),
        is_input_stored=INPUT_STORED in stored,
        result=fields.get("sv_result"),
        result_bytes=_number(fields, "sv_result_bytes"),
        result_type=fields.get("sv_result_type", DEFAULT_RESULT_TYPE.encode()).decode(),
        is_result_stored=RESULT_STORED in stored,
        # what failed an earlier attempt of a finished job is of no interest any more
        error=msgspec.json.decode(error) if error and state != JobState.FINISHED else None,
    )


def spec_of(fields: Mapping[str, bytes]) -> JobSpec:
    """Return what never changes about the job whose hash has these fields."""
    queue = parse_queue(fields["origin"].decode())
    assert queue is not None, "only jobs in our queues have our fields"
    values: dict[str, Any] = json.loads(fields.get("sv_spec", b"{}"))
    values |= {"function": queue.function, "key_id": queue.key_id, "lane": queue.lane}
    values["created_at_s"] = _instant(fields, "created_at")
    values["group"] = fields.get("group_id", b"").decode()
    values["index"] = _number(fields, "sv_index")
    values["unique"] = fields.get("sv_unique", b"").decode()
    values["depends_on"] = json.loads(fields.get("dependency_ids", b"[]"))
    values["allow_failed"] = fields.get("allow_dependency_failures") == b"1"
    values["deadline_at_s"] = float(fields.get("sv_deadline", 0))
    values["result_ttl_s"] = float(fields.get("sv_ttl", _DEFAULTS["result_ttl_s"]))
    return msgspec.convert(values, JobSpec)


def _fields(job: NewJob, is_stored: bool) -> dict[str, str]:
    """Return the hash of a job that is accepted, but for its call, its input and what depends on its first state."""
    spec = job.spec
    fields: dict[str, Any] = {
        "origin": str(queue_of(spec)),
        "description": f"{spec.function} job",
        "created_at": stamp(spec.created_at_s),
        "sv_input_bytes": len(job.input),
        "sv_stored": INPUT_STORED if is_stored else "",
        "group_id": spec.group,
        "sv_index": spec.index,
        "sv_unique": spec.unique,
        "sv_deadline": spec.deadline_at_s,
        "sv_due": job.due_at_s,
        HOOK_FIELD: hook_field(spec),
        "allow_dependency_failures": int(spec.allow_failed),
        "sv_spec": _rest(spec),
    }
    if spec.depends_on:
        fields |= {"dependency_id": spec.depends_on[0], "dependency_ids": json.dumps(spec.depends_on)}
    if spec.result_ttl_s != _DEFAULTS["result_ttl_s"]:
        fields["sv_ttl"] = spec.result_ttl_s
    return _given(fields)


def _rest(spec: JobSpec) -> str:
    values = {name: getattr(spec, name) for name in _DEFAULTS if name not in _ELSEWHERE}
    given = {name: value for name, value in values.items() if value != _DEFAULTS[name] and value not in ([], {})}
    return msgspec.json.encode(given).decode() if given else ""


def _given(fields: Mapping[str, Any]) -> dict[str, str]:
    """Return the fields that say something, as text."""
    return {name: value if isinstance(value, str) else repr(value) for name, value in fields.items() if value}


def stamp(instant_s: float) -> str:
    """Return an instant (unix seconds) as RQ writes it."""
    return datetime.fromtimestamp(instant_s, UTC).strftime(_STAMP)


def by_name(flat: Sequence[bytes]) -> dict[str, bytes]:
    """Return the fields that a reply holds as name, value, name, value, …"""
    return {flat[i].decode(): flat[i + 1] for i in range(0, len(flat), 2)}


def instant_of(written: str) -> float:
    """Return an instant that RQ, or a script, has written, in unix seconds."""
    return datetime.fromisoformat(written).timestamp()


def _instant(fields: Mapping[str, bytes], name: str) -> float:
    value = fields.get(name)
    return instant_of(value.decode()) if value else 0.0


def _number(fields: Mapping[str, bytes], name: str) -> int:
    return int(fields.get(name, 0))
