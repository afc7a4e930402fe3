"""Jobs that were submitted together: how many are in each state, kept in the steps that move them.

This module does not know the moves of jobs.
"""

from __future__ import annotations

from typing import Any

import redis.asyncio as redis_async

from samovar.errors import JobNotFound
from samovar.jobs import JobState
from samovar_storage import keys
from samovar_storage.failures import translating
from samovar_storage.jobs.codec import instant_of
from samovar_storage.jobs.records import GroupRecord


async def group(redis: redis_async.Redis, group_id: str) -> GroupRecord:
    """Return what became of the jobs of a group so far. Raises: JobNotFound; StoreUnavailable."""
    with translating("the group"):
        reply: Any = await redis.hgetall(keys.jobs_group(group_id))
    fields = {name.decode(): value.decode() for name, value in reply.items()}
    if "owner" not in fields:
        raise JobNotFound(f"there is no group {group_id}; it may have expired")
    function, _, key_id = fields["owner"].partition(":")
    counts = {state.value: int(fields.get(state, 0)) for state in JobState}
    return GroupRecord(
        id=group_id,
        function=function,
        key_id=key_id,
        num_jobs=int(fields.get("num_jobs", 0)),
        counts={state: number for state, number in counts.items() if number > 0},
        created_at_s=instant_of(fields["created_at"]),
        reduce=fields.get("reduce", ""),
    )


async def job_ids(redis: redis_async.Redis, group_id: str, offset: int, limit: int) -> list[str]:
    """Return the ids of up to `limit` jobs of a group, in the order of its inputs. Raises: StoreUnavailable."""
    with translating("the jobs of a group"):
        found: Any = await redis.lrange(keys.jobs_in_group(group_id), offset, offset + limit - 1)
    return [job_id.decode() for job_id in found]
