"""Uploads of JSON lines that become a group of jobs in the background, and how far each has got.

    presigned PUT ─► lines counted and checked ─► begun, durably ─► a batch of lines is submitted, `lines_done` written
                                                                            └──── again, until all are ─► ended

The ids of the jobs follow from the upload and the line's number, so who goes on after a crash submits nothing twice.
A lease keeps two gateways from doing the same work; it is not needed for correctness.
This module does not know what a line means, nor how jobs are kept.
"""

from __future__ import annotations

import hashlib
from collections.abc import Awaitable
from typing import Any, Literal, cast

from redis.asyncio import Redis

from samovar.values import Struct
from samovar_storage import keys
from samovar_storage.failures import translating
from samovar_storage.jobs.records import JobSpec, NewJob
from samovar_storage.records import dumps, loads

UPLOADS_PREFIX = "job-uploads/"
UPLOAD_LIFETIME_S = 24 * 3600.0
MAX_LINES = 1_000_000
LEASE_MS = 10_000

# KEYS: lease. ARGV: who, lifetime ms. Returns 1 if it is theirs now.
_HOLD = """
local holder = redis.call('GET', KEYS[1])
if holder and holder ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1
"""
# KEYS: hash. ARGV: field, value. Returns 0, having changed nothing, if there is no such field.
_ADVANCE = """
if redis.call('HEXISTS', KEYS[1], ARGV[1]) == 0 then return 0 end
redis.call('HSET', KEYS[1], ARGV[1], ARGV[2])
return 1
"""


class Expansion(Struct, frozen=True, kw_only=True):
    """An upload that becomes jobs. id: of the upload and of the group. spec: of every job but for its index.

    num_lines: jobs it becomes. lines_done, bytes_done: submitted already, and where the next line begins. reduce: is
    submitted behind the last. due_at_s: of every job, 0 = at once. etag: of the object whose lines were checked.
    """

    id: str
    object_key: str
    spec: JobSpec
    num_lines: int
    etag: str = ""
    due_at_s: float = 0.0
    durability: Literal["aof", "fsync"] = "aof"
    reduce: NewJob | None = None
    lines_done: int = 0
    bytes_done: int = 0


def object_key(function: str, key_id: str, upload_id: str) -> str:
    """Return where an upload lies: nobody else's can be named."""
    return f"{UPLOADS_PREFIX}{function}/{key_id}/{upload_id}"


def line_job_id(upload_id: str, index: int) -> str:
    """Return the id of the job that line `index` (0 <= index < 2^20) of an upload becomes; ids sort as lines do."""
    return f"{upload_id[:12]}{hashlib.sha256(upload_id.encode()).hexdigest()[:7]}{index:05x}"


async def note_upload(redis: Redis, object_key: str, now_s: float) -> None:
    """An upload may come; what comes is deleted after UPLOAD_LIFETIME_S. now_s: unix seconds."""
    with translating("the uploads"):
        await redis.zadd(keys.JOBS_UPLOADS, {object_key: now_s + UPLOAD_LIFETIME_S})


async def forget_upload(redis: Redis, object_key: str) -> None:
    """Its object is gone."""
    with translating("the uploads"):
        await redis.zrem(keys.JOBS_UPLOADS, object_key)


async def old_uploads(redis: Redis, now_s: float, most: int) -> list[str]:
    """Return the object keys of uploads whose time is over, the oldest `most`. Those being read are not among them."""
    with translating("the uploads"):
        found: list[Any] = await redis.zrangebyscore(keys.JOBS_UPLOADS, "-inf", now_s, start=0, num=most)
        busy = {expansion.object_key for expansion in await expansions(redis)} if found else set()
    return [name for name in (key.decode() for key in found) if name not in busy]


async def begin(redis: Redis, expansion: Expansion) -> None:
    """The upload becomes jobs, whoever asks again. The caller makes sure that this is durable."""
    with translating("the uploads"):
        await cast(Awaitable[Any], redis.hsetnx(keys.JOBS_EXPANDING, expansion.id, dumps(expansion).decode()))


async def expansions(redis: Redis) -> list[Expansion]:
    """Return what is being turned into jobs."""
    with translating("the uploads"):
        rows = await cast(Awaitable[list[bytes]], redis.hvals(keys.JOBS_EXPANDING))
    return [loads(row, Expansion) for row in rows]


async def number(redis: Redis) -> int:
    """Return how many uploads are being turned into jobs."""
    with translating("the uploads"):
        return await redis.hlen(keys.JOBS_EXPANDING)


async def expansion(redis: Redis, upload_id: str) -> Expansion | None:
    """Return an upload that is being turned into jobs, None if it is not."""
    with translating("the uploads"):
        row = await cast(Awaitable[bytes | None], redis.hget(keys.JOBS_EXPANDING, upload_id))
    return loads(row, Expansion) if row is not None else None


async def hold(redis: Redis, upload_id: str, holder: str) -> bool:
    """Return whether `holder` may go on with an upload for the next LEASE_MS."""
    with translating("the uploads"):
        lease = keys.lock(f"job-upload:{upload_id}")
        return bool(await cast(Awaitable[int], redis.eval(_HOLD, 1, lease, holder, LEASE_MS)))


async def advance(redis: Redis, expansion: Expansion) -> bool:
    """Its `lines_done` and `bytes_done` are as here; False if it was ended: no further line is to become a job."""
    with translating("the uploads"):
        found = redis.eval(_ADVANCE, 1, keys.JOBS_EXPANDING, expansion.id, dumps(expansion).decode())
        return bool(await cast(Awaitable[int], found))


async def end(redis: Redis, upload_id: str) -> None:
    """All of its jobs are submitted, or it was given up."""
    with translating("the uploads"):
        async with redis.pipeline(transaction=True) as pipe:
            pipe.hdel(keys.JOBS_EXPANDING, upload_id)
            pipe.delete(keys.lock(f"job-upload:{upload_id}"))
            await pipe.execute()
