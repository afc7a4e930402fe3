"""A job as callers see it, from its record. This module does not know HTTP."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import msgspec

from samovar.jobs import MAX_INLINE_BYTES, TERMINAL, JobState, JobView
from samovar_storage.jobs.records import JobRecord

if TYPE_CHECKING:
    from samovar_gateway.state import GatewayState

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
        result_type=record.result_type,
        error=record.error,
        group=spec.group,
        index=spec.index,
        tags=spec.tags,
    )


async def view_now(state: GatewayState, record: JobRecord) -> JobView:
    """Return a job with its place, what it waits for and when it may start, if it does not run yet.

    Raises: StoreUnavailable.
    """
    view = view_of(record)
    if record.state in TERMINAL or record.state is JobState.STARTED:
        return view
    prospect = await state.prospects.of(record)
    start_s = prospect.estimated_start_s
    return msgspec.structs.replace(
        view,
        position=prospect.position,
        wait_reason=prospect.wait_reason,
        estimated_start_s=None if start_s is None else round(time.time() + start_s, 1),
    )


def problem_of(record: JobRecord, request_id: str) -> tuple[int, bytes]:
    """Return status and problem document of a job that failed: its own error's."""
    problem: dict[str, Any] = {**(record.error or {}), "request_id": request_id, "job": record.id}
    return int(problem.get("status", 500)), msgspec.json.encode(problem, enc_hook=str)


def shown_result(record: JobRecord) -> Any:
    """Return the result as it stands in the job's own JSON; None if it is large, no JSON, or not there."""
    data = record.result
    is_shown = record.state is JobState.FINISHED and data and len(data) <= MAX_INLINE_BYTES
    return msgspec.Raw(data) if is_shown and is_json(record.result_type) else None


def is_json(content_type: str) -> bool:
    """Return whether a result of this type is one JSON value."""
    return content_type.partition(";")[0].strip().lower() == JSON
