"""Routes under `/v1/groups`: jobs that were submitted together. This module does not know how they were."""

from __future__ import annotations

from contextlib import suppress

import msgspec
from litestar import Controller, get, post

from samovar.errors import JobNotFound
from samovar.jobs import GroupView
from samovar_gateway.admin.requests import AnyRequest, gateway, path_parameter
from samovar_gateway.auth import Principal
from samovar_gateway.jobs.access import caller, may_see, note_others
from samovar_gateway.state import GatewayState
from samovar_storage.jobs import expansions
from samovar_storage.jobs.records import GroupRecord
from samovar_storage.jobs.specs import is_job_id

UNREAD = "unread"


class GroupRoutes(Controller):
    """Jobs that were submitted together."""

    path = "/v1/groups"

    @get("/{group_id:str}")
    async def get_group(self, request: AnyRequest) -> GroupView:
        """Return what became of the jobs of a group so far: how many are in each state."""
        return _view((await visible_group(request))[1])

    @post("/{group_id:str}/cancel", status_code=200)
    async def cancel_group(self, request: AnyRequest) -> GroupView:
        """Cancel what of a group has not ended; lines of an upload that are no jobs yet never become any."""
        (principal, group), state = await visible_group(request), gateway(request)
        if group.counts.get(UNREAD):
            await expansions.end(state.redis, group.id)
        with suppress(JobNotFound):  # none of its lines is a job yet
            await state.jobs.cancel_group(group.id)
        note_others(request, principal, group.function, group.key_id, 200)
        return _view(await _group(state, group.id) or msgspec.structs.replace(group, num_jobs=0, counts={}))


async def visible_group(request: AnyRequest) -> tuple[Principal, GroupRecord]:
    """Return who asks, and the group that the path's `group_id` names.

    Raises: Unauthenticated; JobNotFound, also for a group that the key may not see.
    """
    principal, group_id, state = caller(request), path_parameter(request, "group_id"), gateway(request)
    found = await _group(state, group_id) if is_job_id(group_id) else None
    if found is None or not may_see(principal, found.function, found.key_id):
        raise JobNotFound(f"there is no group {group_id[:100]!r}; groups are forgotten with their jobs")
    return principal, found


def _view(found: GroupRecord) -> GroupView:
    return GroupView(
        id=found.id,
        function=found.function,
        num_jobs=found.num_jobs,
        counts=found.counts,
        created_at_s=found.created_at_s,
        reduce=found.reduce,
    )


async def _group(state: GatewayState, group_id: str) -> GroupRecord | None:
    """Return a group, with the lines that are still to become jobs counted as `unread`; None if there is none."""
    begun = await expansions.expansion(state.redis, group_id)
    try:
        found = await state.jobs.group(group_id)
    except JobNotFound:
        found = None
    if begun is None:
        return found
    counts = found.counts if found is not None else {}
    unread = begun.num_lines - (found.num_jobs if found is not None else 0)
    return GroupRecord(
        id=group_id,
        function=begun.spec.function,
        key_id=begun.spec.key_id,
        num_jobs=begun.num_lines,
        counts=counts | {UNREAD: unread} if unread else counts,
        created_at_s=begun.spec.created_at_s,
        reduce=begun.reduce.id if begun.reduce is not None else "",
    )
