"""Whose jobs a key may see and stop, and for which functions it may submit.

A key has its own jobs; one with the scope `deploy` those of the functions it covers; `admin` all. What a key may not
see does not exist for it. This module does not know what is done with a job.
"""

from __future__ import annotations

import asyncio
from collections.abc import Collection
from dataclasses import dataclass

from samovar.errors import JobNotFound
from samovar_dispatch.ask import LOW
from samovar_dispatch.functions import FunctionEntry, near_names
from samovar_gateway.admin.audit_trail import note_deed
from samovar_gateway.admin.requests import AnyRequest, authenticate, gateway, path_parameter
from samovar_gateway.admin.services import services_of
from samovar_gateway.auth import Principal
from samovar_gateway.state import GatewayState
from samovar_storage.jobs.records import JobRecord
from samovar_storage.jobs.specs import is_job_id


@dataclass(frozen=True, slots=True)
class Reach:
    """The jobs a key may see: those of these functions, and of this key alone unless it is None."""

    functions: list[str]
    key_id: str | None


def manages(principal: Principal, function: str) -> bool:
    """Return whether a key may see and stop every job of `function`, whoever submitted it."""
    return bool(principal.scopes & {"admin", "deploy"}) and principal.sees(function)


def may_see(principal: Principal, function: str, key_id: str) -> bool:
    """Return whether a key may see and stop a job of `function` that the key `key_id` submitted."""
    return key_id == principal.key_id or manages(principal, function)


def reach(principal: Principal, functions: Collection[str]) -> Reach:
    """Return which jobs of `functions` a key may see. Those it does not cover are left out."""
    covered = sorted(filter(principal.sees, functions))
    return Reach(covered, None if principal.scopes & {"admin", "deploy"} else principal.key_id)


def low_only(principal: Principal) -> bool:
    """Return whether nothing that a key asks for may come before others."""
    return principal.max_priority >= LOW


def caller(request: AnyRequest) -> Principal:
    """Return who asks about jobs. Raises: Unauthenticated; Unavailable while the keys are not known yet."""
    return authenticate(request)


async def visible_job(request: AnyRequest) -> tuple[Principal, JobRecord]:
    """Return who asks, and the job that the path's `job_id` names.

    Raises: Unauthenticated; JobNotFound, also for a job that the key may not see; StoreUnavailable.
    """
    principal, job_id = caller(request), path_parameter(request, "job_id")
    if not is_job_id(job_id):
        raise no_job(job_id)
    record = await gateway(request).jobs.get(job_id)
    if not may_see(principal, record.spec.function, record.spec.key_id):
        raise no_job(job_id)
    return principal, record


def no_job(job_id: str) -> JobNotFound:
    """Return the error for a job that is not there, or not for this caller."""
    return JobNotFound(f"there is no job {job_id[:100]!r}; jobs are forgotten some time after they ended")


async def callable_function(state: GatewayState, principal: Principal, name: str) -> FunctionEntry:
    """Return the function, if the key may call it. One that nobody told us of is looked for once.

    Raises: Forbidden; FunctionNotFound with near names; Conflict if what is stored of it cannot be used.
    """
    principal.require("invoke", name)
    entries = state.functions.entries
    if name not in entries and not await state.mirror.find(name):
        near = await asyncio.to_thread(near_names, name, [*filter(principal.sees, entries)])
        raise state.functions.missing(name, near)
    return entries[name]


def note_others(request: AnyRequest, principal: Principal, function: str, key_id: str, status: int) -> None:
    """Note in the audit log what a key did to something that the key `key_id` submitted, if that is another one."""
    if principal.key_id != key_id:
        change = {"function": function, "owner": key_id}
        note_deed(services_of(request).audit, request, principal.key_id, status, change)
