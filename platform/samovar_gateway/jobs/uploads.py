"""Jobs by the line: an upload of JSON lines, straight into object storage, that becomes a group in the background.

Every line is checked before the first job is accepted: an upload with a line that is no JSON is refused as a whole, and
the answer says which line. From the 202 on the upload becomes jobs whatever happens to this gateway. This module does
not know how jobs are kept.
"""

from __future__ import annotations

import time
from typing import Any

import msgspec
from litestar import Response, post

from samovar.errors import InvalidInput, JobNotFound, NotFound
from samovar.values import Struct
from samovar_dispatch.functions import FunctionEntry
from samovar_gateway.admin.requests import AnyRequest, authenticate, gateway, path_parameter, read_body
from samovar_gateway.admin.services import services_of
from samovar_gateway.auth import Principal
from samovar_gateway.jobs.lines import count_lines
from samovar_gateway.jobs.repeats import submit_once
from samovar_gateway.jobs.submit import (
    NewId,
    SubmitBody,
    Submitted,
    accepted,
    admit,
    check_dependencies,
    check_kind,
    due_at_s,
    reducer,
    spec_for,
    submit,
)
from samovar_gateway.state import GatewayState
from samovar_storage.jobs import expansions
from samovar_storage.jobs.expansions import MAX_LINES, Expansion, object_key
from samovar_storage.jobs.layout import new_job_id
from samovar_storage.jobs.specs import is_job_id
from samovar_storage.objects import PRESIGNED_LIFETIME_S, ObjectStore

MAX_UPLOAD_BYTES = 1 << 30
READ_BYTES = 256 * 1024  # about 1.5 ms of work: then the thread reads again, and the event loop has its turn


class UploadBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """size_bytes: of the JSON lines that will be sent, > 0."""

    size_bytes: int


class UploadBegun(Struct, frozen=True, kw_only=True):
    """Where the lines go. url: takes one PUT until `expires_at_s` (unix seconds)."""

    upload: str
    url: str
    expires_at_s: float


@post("/v1/functions/{name:str}/jobs/uploads", status_code=201)
async def begin_upload(request: AnyRequest) -> UploadBegun:
    """Return a link to which JSON lines are PUT, one input a line; what is not submitted is deleted after a day."""
    state, principal, name = gateway(request), authenticate(request), path_parameter(request, "name")
    await admit(state, principal, name)
    body = await read_body(request, UploadBody)
    if not 0 < body.size_bytes <= MAX_UPLOAD_BYTES:
        raise InvalidInput(f"an upload has 1 to {MAX_UPLOAD_BYTES} bytes", path="$.size_bytes")
    now_s = time.time()
    upload = new_job_id(int(now_s * 1000))
    where = object_key(name, principal.key_id, upload)
    await expansions.note_upload(state.redis, where, now_s)
    url = await services_of(request).stores.run(state.objects.presign_put, where)
    return UploadBegun(upload=upload, url=url, expires_at_s=now_s + PRESIGNED_LIFETIME_S)


@post("/v1/functions/{name:str}/jobs", status_code=202)
async def submit_jobs(request: AnyRequest) -> Response[Any]:
    """Accept a job, or many; 202 is answered once they are durable."""
    state, principal = gateway(request), authenticate(request)
    entry = await admit(state, principal, path_parameter(request, "name"))
    body = await read_body(request, SubmitBody)
    check_kind(body)

    async def do(new_id: NewId) -> Response[Any]:
        await check_dependencies(state, principal, body)
        if body.upload:
            return await _submit_upload(request, state, principal, entry, body)
        return await submit(state, principal, entry, body, new_id)

    return await submit_once(request, state, principal, entry.record.name, do)


async def _submit_upload(
    request: AnyRequest, state: GatewayState, principal: Principal, entry: FunctionEntry, body: SubmitBody
) -> Response[Any]:
    """The lines of an upload become jobs; asked again, nothing else happens. Raises: NotFound; InvalidInput."""
    if not is_job_id(body.upload):
        raise _no_upload(body.upload)
    submitted = await _as_before(state, principal, entry, body.upload)
    if submitted is None:
        wanted = await _expansion(request, state, principal, entry, body)
        await state.expander.begin(wanted)
        submitted = _submitted(wanted)
    return accepted(f"/v1/groups/{submitted.group}", submitted)


async def _as_before(state: GatewayState, principal: Principal, entry: FunctionEntry, upload: str) -> Submitted | None:
    """Return what was answered when this upload was submitted, None if it was not."""
    begun = await expansions.expansion(state.redis, upload)
    name = entry.record.name
    if begun is not None:
        return _submitted(begun) if begun.object_key == object_key(name, principal.key_id, upload) else None
    try:
        group = await state.jobs.group(upload)
    except JobNotFound:
        return None
    is_theirs = (group.function, group.key_id) == (name, principal.key_id)
    return Submitted(group=upload, num_jobs=group.num_jobs, reduce=group.reduce) if is_theirs else None


async def _expansion(
    request: AnyRequest, state: GatewayState, principal: Principal, entry: FunctionEntry, body: SubmitBody
) -> Expansion:
    """Return what an upload becomes. Raises: NotFound if it did not come; InvalidInput with its first bad line."""
    spec = spec_for(state, entry, principal, body)
    where = object_key(spec.function, principal.key_id, body.upload)
    reduce = await reducer(state, principal, entry, spec, body, body.upload)
    try:
        num_lines, etag = await services_of(request).hashing.run(
            _count_lines, state.objects, where, state.settings.max_body_bytes
        )
    except NotFound:
        raise _no_upload(body.upload) from None
    return Expansion(
        id=body.upload,
        object_key=where,
        spec=msgspec.structs.replace(spec, group=body.upload),
        num_lines=num_lines,
        etag=etag,
        due_at_s=due_at_s(spec, body),
        durability=body.durability,
        reduce=reduce[0] if reduce else None,
    )


def _count_lines(objects: ObjectStore, where: str, max_line_bytes: int) -> tuple[int, str]:
    """Return how many lines the object has, and its etag."""
    found = objects.head(where)
    if found is None:
        raise NotFound("nothing was uploaded")
    if found.size_bytes > MAX_UPLOAD_BYTES:
        raise InvalidInput(f"the upload has more than {MAX_UPLOAD_BYTES} bytes", path="$.upload")
    chunks = objects.read_chunks(where, READ_BYTES, etag=found.etag)
    return count_lines(chunks, max_line_bytes, MAX_LINES), found.etag


def _submitted(expansion: Expansion) -> Submitted:
    reduce = expansion.reduce.id if expansion.reduce is not None else ""
    return Submitted(group=expansion.id, num_jobs=expansion.num_lines, reduce=reduce)


def _no_upload(upload: str) -> NotFound:
    return NotFound(f"nothing was uploaded as {upload[:100]!r} for this function; PUT the lines first", path="$.upload")
