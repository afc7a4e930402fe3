"""Routes under `/v1/jobs`: look at jobs, their results, stop them, run them again, forget them.

This module does not know how jobs are kept or run.
"""

from __future__ import annotations

import re
from secrets import token_hex
from typing import Any

import msgspec
from litestar import Controller, Response, delete, get, post

from samovar.errors import Conflict, InvalidInput, JobEnded, NotFound, SamovarError
from samovar.jobs import TERMINAL, JobState, JobView
from samovar.values import Struct
from samovar_gateway.admin.requests import AnyRequest, gateway, read_body
from samovar_gateway.jobs.access import caller, manages, note_others, reach, visible_job
from samovar_gateway.jobs.submit import POLL_AFTER_S, accepted, admit
from samovar_gateway.jobs.views import listed, problem_of, view_now
from samovar_gateway.state import GatewayState
from samovar_storage.jobs.records import JobRecord
from samovar_storage.jobs.specs import MAX_DURATION_S
from samovar_storage.jobs.views import view_of

QUARANTINED = "quarantined"
MAX_LIMIT, DEFAULT_LIMIT = 1000, 100
MAX_CURSOR = 200
MAX_WAIT_S = 60.0  # longer, and proxies cut the connection
_NUMBER = re.compile(r"^\d+(\.\d+)?\Z", re.ASCII)


class JobList(Struct, frozen=True, kw_only=True):
    """A page of jobs, newest first. cursor: for the next page, "" at the end."""

    jobs: list[JobView]
    cursor: str = ""


class PurgeBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Which ended jobs to forget: of a function, in a state, ended so many seconds ago at least."""

    function: str
    state: JobState | None = None
    older_than_s: float = 0.0


class Purged(Struct, frozen=True, kw_only=True):
    deleted: int


class JobRoutes(Controller):
    """Jobs that were accepted."""

    path = "/v1/jobs"

    @get()
    async def list_jobs(self, request: AnyRequest) -> JobList:
        """Return the jobs the key may see, newest first, a page at a time."""
        state, query = gateway(request), request.query_params
        function = query.get("function", "")
        seen = reach(caller(request), [function] if function else state.functions.entries)
        wanted, limit, cursor = _state(query.get("state", "")), _limit(query.get("limit", "")), query.get("cursor", "")
        if len(cursor) > MAX_CURSOR:
            raise InvalidInput("cursor is what the page before said", path="cursor")
        page = await state.jobs.list(seen.functions, wanted, seen.key_id, query.get("group") or None, cursor, limit)
        return JobList(jobs=[await listed(state, record) for record in page.jobs], cursor=page.cursor)

    @get("/{job_id:str}")
    async def get_job(self, request: AnyRequest) -> JobView:
        """Return a job as it is now; with `wait_s` as soon as it ends, at the latest after so many seconds."""
        _, record = await visible_job(request)
        state, wait_s = gateway(request), seconds(request.query_params.get("wait_s", ""))
        if wait_s and record.state not in TERMINAL:
            record = await state.watches.wait_ended(record.id, wait_s)
        return await view_now(state, record)

    @get("/{job_id:str}/result")
    async def get_result(self, request: AnyRequest) -> Response[Any]:
        """Return a job's answer as its invocation would have given it: 307 to a link if it is large."""
        _, record = await visible_job(request)
        return await result_of(gateway(request), record, request_id(request))

    @delete("/{job_id:str}", status_code=200)
    async def delete_job(self, request: AnyRequest) -> Response[JobView]:
        """Cancel a job: 200 once it is, 202 while what runs is being stopped."""
        return await cancel(request)

    @post("/{job_id:str}/cancel", status_code=200)
    async def cancel_job(self, request: AnyRequest) -> Response[JobView]:
        """Cancel a job: 200 once it is, 202 while what runs is being stopped."""
        return await cancel(request)

    @post("/{job_id:str}/retry", status_code=202)
    async def retry_job(self, request: AnyRequest) -> Response[JobView]:
        """Submit the same again, with the same input, as a new job."""
        principal, record = await visible_job(request)
        state, spec = gateway(request), record.spec
        if record.state not in TERMINAL:
            raise Conflict("the job has not ended", state=str(record.state))
        if principal.key_id == spec.key_id:
            await admit(state, principal, spec.function)
        again = await state.jobs.retry(record.id)
        note_others(request, principal, spec.function, spec.key_id, 202)
        response: Response[JobView] = accepted(f"/v1/jobs/{again}", await _view_of_retry(state, record, again))
        return response

    @post("/purge", status_code=200)
    async def purge_jobs(self, request: AnyRequest) -> Purged:
        """Forget ended jobs and delete their objects: one's own, or a function's if the key may deploy it."""
        principal = caller(request)
        body = await read_body(request, PurgeBody)
        principal.require_sight(body.function)
        if body.state is not None and body.state not in TERMINAL:
            raise InvalidInput(f"a job that is {body.state} has not ended: cancel it first", path="$.state")
        if not 0 <= body.older_than_s <= MAX_DURATION_S:
            raise InvalidInput("older_than_s is a number of seconds >= 0", path="$.older_than_s")
        whose = None if manages(principal, body.function) else principal.key_id
        deleted = await gateway(request).jobs.purge(body.function, body.state, body.older_than_s, whose)
        return Purged(deleted=deleted)


async def cancel(request: AnyRequest) -> Response[JobView]:
    """The job is cancelled, or is being stopped. Raises: JobNotFound; JobEnded."""
    principal, record = await visible_job(request)
    state = await gateway(request).jobs.cancel(record.id)
    status = 202 if state is JobState.STARTED else 200
    note_others(request, principal, record.spec.function, record.spec.key_id, status)
    headers = {"retry-after": POLL_AFTER_S} if status == 202 else {}
    return Response(msgspec.structs.replace(view_of(record), state=state), status_code=status, headers=headers)


async def _view_of_retry(state: GatewayState, record: JobRecord, again: str) -> JobView:
    """Return a job that repeats another; it is accepted, even if Redis is away now."""
    try:
        return view_of(await state.jobs.get(again))
    except SamovarError:
        return view_of(JobRecord(id=again, spec=record.spec, state=JobState.QUEUED, queue=record.queue))


async def result_of(state: GatewayState, record: JobRecord, request_id: str) -> Response[Any]:
    """Return what a job's invocation would have answered.

    Raises: Conflict while it has not ended; JobEnded if it was cancelled.
    """
    if record.state is JobState.FAILED:
        status, content = problem_of(record, request_id)
        headers = {"x-request-id": request_id}
        return Response(content, status_code=status, headers=headers, media_type="application/problem+json")
    if record.state is JobState.CANCELED:
        raise JobEnded("the job was cancelled: it has no result", state=str(record.state))
    if record.state is not JobState.FINISHED:
        raise Conflict(f"the job is {record.state}: it has no result yet", state=str(record.state), retry_after_s=1.0)
    headers = {"samovar-version": str(record.version)} if record.version else {}
    if record.is_result_stored:
        url = await state.jobs.result_url(record)
        headers["location"] = url
        return Response(b"", status_code=307, headers=headers, media_type=record.result_type or "application/json")
    try:
        body = await state.jobs.result(record)
    except NotFound:
        body = b""
    return Response(body, status_code=200, headers=headers, media_type=record.result_type or "application/json")


def request_id(request: AnyRequest) -> str:
    """Return the caller's id of this request, or one of ours."""
    return request.headers.get("x-request-id") or token_hex(8)


def _state(text: str) -> Any:
    """Return the state to filter by, None for all. Raises: InvalidInput."""
    known = [*map(str, JobState), QUARANTINED]
    if text and text not in known:
        raise InvalidInput(f"state is one of {', '.join(known)}", path="state")
    return None if not text else QUARANTINED if text == QUARANTINED else JobState(text)


def seconds(text: str) -> float:
    """Return how long to wait, 0 if nothing is said, MAX_WAIT_S at most. Raises: InvalidInput."""
    if len(text) > 20 or not _NUMBER.match(text or "0"):
        raise InvalidInput("wait_s is a number of seconds >= 0", path="wait_s")
    return min(float(text or "0"), MAX_WAIT_S)


def _limit(text: str) -> int:
    value = int(text) if text.isascii() and text.isdecimal() and len(text) < 6 else 0 if text else DEFAULT_LIMIT
    if not 0 < value <= MAX_LIMIT:
        raise InvalidInput(f"limit is 1 to {MAX_LIMIT}", path="limit")
    return value
