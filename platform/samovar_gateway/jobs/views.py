"""A job as callers see it now, and the problem of one that failed. This module does not know HTTP."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from samovar.jobs import TERMINAL, JobState, JobView
from samovar_storage.jobs.records import JobRecord
from samovar_storage.jobs.views import view_of

if TYPE_CHECKING:
    from samovar_gateway.state import GatewayState


async def view_now(state: GatewayState, record: JobRecord) -> JobView:
    """Return a job with its place, what it waits for and when it may start, if it does not run yet.

    Raises: StoreUnavailable.
    """
    view = view_of(record)
    if record.state in TERMINAL or record.state is JobState.STARTED:
        return view
    prospect = await state.prospects.of(record)
    return msgspec.structs.replace(
        view,
        position=prospect.position,
        wait_reason=prospect.wait_reason,
        estimated_start_s=prospect.estimated_start_s,
    )


async def listed(state: GatewayState, record: JobRecord) -> JobView:
    """Return a job as one of many: with what it waits for, but not its place. Raises: StoreUnavailable."""
    return msgspec.structs.replace(view_of(record), wait_reason=await state.prospects.reason(record))


def problem_of(record: JobRecord, request_id: str) -> tuple[int, bytes]:
    """Return status and problem document of a job that failed: its own error's."""
    problem: dict[str, Any] = {**(record.error or {}), "request_id": request_id, "job": record.id}
    return int(problem.get("status", 500)), msgspec.json.encode(problem, enc_hook=str)
