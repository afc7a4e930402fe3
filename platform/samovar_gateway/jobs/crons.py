"""Routes under `/v1/crons`: jobs that are submitted by the clock.

A key sees its own; one with the scope `deploy` those of the functions it covers; `admin` all. Names are the
platform's: one that another key has is taken. This module does not know who submits what is due.
"""

from __future__ import annotations

import time
from typing import Any, Literal

import msgspec
from litestar import Controller, Response, delete, get, post, put

from samovar.errors import Conflict, InvalidInput, NotFound
from samovar.jobs import CronJob, JobOptions, JobView
from samovar.schedule import check_schedule, check_zone, due_after
from samovar.values import NAME_PATTERN, Struct
from samovar_gateway.admin.requests import AnyRequest, gateway, path_parameter, read_body
from samovar_gateway.auth import Principal
from samovar_gateway.jobs.access import callable_function, caller, low_only, may_see
from samovar_gateway.jobs.submit import WebhookBody, accepted, accepted_view, admit, due_at_s, ms_of
from samovar_gateway.state import GatewayState
from samovar_storage.jobs.crons import Crons, CronState, job_spec
from samovar_storage.jobs.layout import new_job_id
from samovar_storage.jobs.records import NewJob

NUM_UPCOMING = 3
MAX_INPUT_BYTES = 256 * 1024


class CronOptions(JobOptions, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """As `samovar.jobs.JobOptions`."""

    webhook: WebhookBody | str | None = None


class CronBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """As `samovar.jobs.CronJob`, without what the platform notes."""

    function: str
    schedule: str
    tz: str = "UTC"
    input: Any = None
    options: CronOptions = CronOptions()
    missed: Literal["skip", "last", "all"] = "last"
    overlap: Literal["skip", "queue", "cancel"] = "skip"
    enabled: bool = True


class CronRoutes(Controller):
    """Cron jobs."""

    path = "/v1/crons"

    @get()
    async def list_crons(self, request: AnyRequest) -> list[CronJob]:
        """Return the cron jobs the key may see, by name, each with its next run."""
        principal, store = caller(request), crons_of(gateway(request))
        seen = [cron for cron in await store.all() if may_see(principal, cron.function, cron.key_id)]
        states = await store.states([cron.name for cron in seen])
        return [shown(cron, states[cron.name], time.time(), 1) for cron in seen]

    @get("/{cron_name:str}")
    async def get_cron(self, request: AnyRequest) -> CronJob:
        """Return one cron job with its next three runs, and what was left out the last time."""
        _, cron = await visible_cron(request)
        return await _shown_now(gateway(request), cron)

    @put("/{cron_name:str}", status_code=200)
    async def put_cron(self, request: AnyRequest) -> CronJob:
        """Make a cron job, or change the one of this name; who made it stays its owner."""
        principal, state, name = caller(request), gateway(request), path_parameter(request, "cron_name")
        if not NAME_PATTERN.match(name):
            raise InvalidInput("a name has 1-63 characters: a-z, 0-9 and - within", path="name")
        body = await read_body(request, CronBody)
        entry = await callable_function(state, principal, body.function)
        store = crons_of(state)
        if (old := await _existing(store, name)) is not None and not may_see(principal, old.function, old.key_id):
            raise Conflict(f"the name {name!r} is taken")
        fields = {field: getattr(body, field) for field in CronBody.__struct_fields__}
        cron = CronJob(name=name, key_id=principal.key_id, **fields)
        check(cron)
        job_spec(cron, entry.main.manifest.jobs, time.time(), allowed=state.webhooks_allowed)
        return await _shown_now(state, await store.put(cron, time.time()))

    @delete("/{cron_name:str}", status_code=204)
    async def delete_cron(self, request: AnyRequest) -> None:
        """Delete a cron job; jobs that it has submitted stay."""
        _, cron = await visible_cron(request)
        await crons_of(gateway(request)).delete(cron.name)

    @post("/{cron_name:str}/run", status_code=202)
    async def run_cron(self, request: AnyRequest) -> Response[JobView]:
        """Submit its job now, beside the schedule, as a job of who made it."""
        principal, cron = await visible_cron(request)
        state = gateway(request)
        entry = await admit(state, principal, cron.function)
        rules = entry.main.manifest.jobs
        spec = job_spec(cron, rules, time.time(), low_only=low_only(principal), allowed=state.webhooks_allowed)
        data = msgspec.json.encode(cron.input)
        job = NewJob(id=new_job_id(ms_of(spec)), spec=spec, input=data, due_at_s=due_at_s(spec, cron.options))
        await state.jobs.submit([job], cron.options.durability)
        await crons_of(state).note_run(cron.name, job.id)
        response: Response[JobView] = accepted(f"/v1/jobs/{job.id}", accepted_view(job))
        return response


async def visible_cron(request: AnyRequest) -> tuple[Principal, CronJob]:
    """Return who asks, and the cron job that the path's `cron_name` names.

    Raises: Unauthenticated; NotFound, also for one that the key may not see; StoreUnavailable.
    """
    principal, name = caller(request), path_parameter(request, "cron_name")
    cron = await _existing(crons_of(gateway(request)), name)
    if cron is None or not may_see(principal, cron.function, cron.key_id):
        raise NotFound(f"there is no cron job {name[:100]!r}")
    return principal, cron


def crons_of(state: GatewayState) -> Crons:
    """Return the store of cron jobs."""
    return Crons(state.redis, state.objects)


def check(cron: CronJob) -> None:
    """Return if a cron job can ever run. Raises: InvalidInput with what is wrong, and near time zones."""
    check_zone(cron.tz)
    check_schedule(cron.schedule)
    if len(msgspec.json.encode(cron.input)) > MAX_INPUT_BYTES:
        raise InvalidInput(f"the input has at most {MAX_INPUT_BYTES} bytes", path="$.input")


def shown(cron: CronJob, state: CronState, now_s: float, num_upcoming: int) -> CronJob:
    """Return a cron job with what is known of its runs."""
    upcoming = due_after(cron.schedule, cron.tz, now_s, num_upcoming) if cron.enabled else []
    return msgspec.structs.replace(
        cron,
        next_at_s=upcoming[0] if upcoming else 0.0,
        upcoming_s=upcoming if num_upcoming > 1 else [],
        last_at_s=state.last_run_s,
        last_job=state.last_job,
        notice=state.notice,
    )


async def _existing(store: Crons, name: str) -> CronJob | None:
    try:
        return await store.get(name) if NAME_PATTERN.match(name) else None
    except NotFound:
        return None


async def _shown_now(state: GatewayState, cron: CronJob) -> CronJob:
    states = await crons_of(state).states([cron.name])
    return shown(cron, states[cron.name], time.time(), NUM_UPCOMING)
