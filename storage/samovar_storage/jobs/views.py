"""A job as those outside see it, from its record alone: for routes and webhooks. This module does not know HTTP."""

from __future__ import annotations

from typing import Any

import msgspec

from samovar.jobs import MAX_INLINE_BYTES, JobState, JobView
from samovar_storage.jobs.records import JobRecord

JSON = "application/json"


def view_of(record: JobRecord) -> JobView:
    """Return what is known of a job from its record alone."""
    spec = record.spec
    return JobView(
        id=record.id,
        function=spec.function,
        state=record.state,
        version=record.version,
        key_id=spec.key_id,
        created_at_s=spec.created_at_s,
        enqueued_at_s=record.enqueued_at_s,
        started_at_s=record.started_at_s,
        ended_at_s=record.ended_at_s,
        due_at_s=record.due_at_s,
        expires_at_s=record.expires_at_s,
        attempt=record.attempt,
        failures=record.failures,
        crashes=record.crashes,
        token=record.token,
        retries=spec.retries,
        priority=spec.lane or "normal",
        progress=record.progress,
        result=shown_result(record),
        result_bytes=record.result_bytes,
        result_type=record.result_type if record.state is JobState.FINISHED else "",
        error=record.error,
        group=spec.group,
        index=spec.index,
        tags=spec.tags,
    )


def shown_result(record: JobRecord) -> Any:
    """Return the result as it stands in the job's own JSON; None if it is large, no JSON, or not there."""
    data = record.result or b""
    is_shown = record.state is JobState.FINISHED and 0 < len(data) <= MAX_INLINE_BYTES
    return msgspec.Raw(data) if is_shown and is_json(record.result_type) else None


def is_json(content_type: str) -> bool:
    """Return whether a result of this type is one JSON value."""
    return content_type.partition(";")[0].strip().lower() == JSON
