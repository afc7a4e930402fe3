"""What a submission becomes: one job, or up to 10,000, accepted in one step.

    key → function → rate → body (parsed once, inputs kept as they came) → spec → store, durably → 202

Nothing is answered before the store has made sure of the jobs. This module does not know how they are kept or run,
nor how an upload becomes jobs (`uploads.py`), nor its route.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeAlias

import msgspec
from litestar import Response

from samovar.errors import Draining, InvalidInput, JobNotFound
from samovar.jobs import MAX_JOBS_PER_REQUEST, JobOptions, JobState, JobView, Reduce, Webhook
from samovar.values import Struct
from samovar_dispatch.functions import FunctionEntry
from samovar_gateway.auth import Principal
from samovar_gateway.jobs.access import callable_function, low_only, may_see
from samovar_gateway.state import GatewayState
from samovar_storage.jobs.layout import LOW, QueueName, new_job_id
from samovar_storage.jobs.records import JobRecord, JobSpec, NewJob
from samovar_storage.jobs.specs import spec_of
from samovar_storage.jobs.views import view_of

POLL_AFTER_S = "1"
NewId: TypeAlias = Callable[[int], str]


class WebhookBody(Webhook, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """As `samovar.jobs.Webhook`."""


class ReduceBody(Reduce, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """As `samovar.jobs.Reduce`."""


class SubmitBody(JobOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One of `input`, `inputs` (1 to 10,000) and `upload` (the id of one), and the options of every job made of it."""

    webhook: WebhookBody | str | None = None
    input: msgspec.Raw = msgspec.field(default_factory=msgspec.Raw)
    inputs: list[msgspec.Raw] | None = None
    upload: str = ""
    reduce: ReduceBody | None = None


class Submitted(Struct, frozen=True, kw_only=True):
    """Jobs that were accepted together. jobs: their ids, in the order of their inputs; empty for an upload."""

    group: str
    num_jobs: int
    jobs: list[str] = msgspec.field(default_factory=list)
    reduce: str = ""


async def admit(state: GatewayState, principal: Principal, name: str) -> FunctionEntry:
    """Return the function that jobs are submitted to; the request counts in the rate of its key.

    Raises: Forbidden, FunctionNotFound, Draining, RateLimited.
    """
    entry = await callable_function(state, principal, name)
    if state.draining:
        raise Draining("this gateway is shutting down", retry_after_s=1.0)
    if principal.rate is not None:
        state.journey.rates.take(principal.key_id, principal.rate, name, None)
    return entry


async def submit(
    state: GatewayState, principal: Principal, entry: FunctionEntry, body: SubmitBody, new_id: NewId = new_job_id
) -> Response[Any]:
    """Accept what a body with `input` or `inputs` asks for and return the 202.

    new_id: makes ids of unix milliseconds; who gives the same ones again submits nothing twice.
    """
    spec = spec_for(state, entry, principal, body)
    if body.inputs is None:
        job = NewJob(id=new_id(ms_of(spec)), spec=spec, input=bytes(body.input), due_at_s=due_at_s(spec, body))
        await state.jobs.submit([job], body.durability)
        return accepted(f"/v1/jobs/{job.id}", accepted_view(job))
    group = new_id(ms_of(spec))
    jobs = fan_out(spec, body, group, new_id)
    reduce = await reducer(state, principal, entry, spec, body, group, new_id)
    await state.jobs.submit([*jobs, *reduce], body.durability)
    submitted = Submitted(
        group=group,
        num_jobs=len(jobs),
        jobs=[job.id for job in jobs],
        reduce=reduce[0].id if reduce else "",
    )
    return accepted(f"/v1/groups/{group}", submitted)


def check_kind(body: SubmitBody) -> None:
    """Return if a body says once what the jobs' inputs are. Raises: InvalidInput."""
    given = [bool(bytes(body.input)), body.inputs is not None, bool(body.upload)]
    if sum(given) != 1:
        raise InvalidInput("give one of input, inputs and upload", path="$")
    if body.inputs is not None and not 0 < len(body.inputs) <= MAX_JOBS_PER_REQUEST:
        rule = f"inputs has 1 to {MAX_JOBS_PER_REQUEST} entries, not {len(body.inputs)}; an upload may have more"
        raise InvalidInput(rule, path="$.inputs")
    if body.unique and not given[0]:
        raise InvalidInput("unique is for one job: only one of many could have it", path="$.unique")
    if body.reduce is not None and given[0]:
        raise InvalidInput("reduce needs inputs, or an upload", path="$.reduce")


async def check_dependencies(state: GatewayState, principal: Principal, body: SubmitBody) -> None:
    """Return if the key may see every job that is to be waited for. Those that nobody knows are the store's to refuse.

    Raises: JobNotFound, as the store does.
    """
    found = await state.jobs.get_many(body.depends_on) if body.depends_on else []
    for job_id, record in zip(body.depends_on, found, strict=True):
        if record is not None and not may_see(principal, record.spec.function, record.spec.key_id):
            raise JobNotFound(f"there is no job {job_id} to depend on", job=job_id)


def spec_for(state: GatewayState, entry: FunctionEntry, principal: Principal, options: JobOptions) -> JobSpec:
    """Return what a job of this function, key and these options is. Raises: InvalidInput; WebhookRefused."""
    manifest = entry.main.manifest
    return spec_of(
        options,
        manifest.jobs,
        manifest.name,
        principal.key_id,
        time.time(),
        low_only=low_only(principal),
        allowed=state.webhooks_allowed,
    )


def due_at_s(spec: JobSpec, options: JobOptions) -> float:
    """Return not before when a job is to run, unix seconds, 0 = now."""
    return spec.created_at_s + options.delay_s if options.delay_s else 0.0


def fan_out(spec: JobSpec, body: SubmitBody, group: str, new_id: NewId) -> list[NewJob]:
    """Return a job for each input, in a group of their own. Their ids sort as their inputs do."""
    assert body.inputs is not None
    stem = new_id(ms_of(spec))[:20]
    return [
        NewJob(
            id=f"{stem}{index:04x}",
            spec=msgspec.structs.replace(spec, group=group, index=index),
            input=bytes(value),
            due_at_s=due_at_s(spec, body),
        )
        for index, value in enumerate(body.inputs)
    ]


async def reducer(
    state: GatewayState,
    principal: Principal,
    entry: FunctionEntry,
    spec: JobSpec,
    body: SubmitBody,
    group: str,
    new_id: NewId = new_job_id,
) -> list[NewJob]:
    """Return the job that gets all results of a group, if the body asks for one. Raises: as `callable_function`."""
    if body.reduce is None:
        return []
    if body.reduce.function:
        entry = await callable_function(state, principal, body.reduce.function)
    wanted = msgspec.structs.replace(body, depends_on=[], allow_failed=body.reduce.allow_failed)
    made = spec_for(state, entry, principal, wanted)
    made = msgspec.structs.replace(made, created_at_s=spec.created_at_s, reduce_of=group)
    return [NewJob(id=new_id(ms_of(spec)), spec=made, input=b"")]


def accepted_view(job: NewJob) -> JobView:
    """Return how a job is the moment it was accepted."""
    spec, now_s = job.spec, job.spec.created_at_s
    state = JobState.DEFERRED if spec.depends_on else JobState.SCHEDULED if job.due_at_s > now_s else JobState.QUEUED
    queue = QueueName(spec.function, spec.key_id, LOW if spec.lane else "")
    record = JobRecord(
        id=job.id,
        spec=spec,
        state=state,
        queue=str(queue),
        enqueued_at_s=now_s if state is JobState.QUEUED else 0.0,
        due_at_s=job.due_at_s,
    )
    return view_of(record)


def accepted(location: str, content: Any) -> Response[Any]:
    """Return a 202 that says where to look, and after how long it is worth it."""
    return Response(content, status_code=202, headers={"location": location, "retry-after": POLL_AFTER_S})


def ms_of(spec: JobSpec) -> int:
    """Return when a job was submitted, unix milliseconds."""
    return int(spec.created_at_s * 1000)
