"""Pages of jobs: read from the index and RQ's registries, at a cost that depends on the page alone.

    no state       sv:jobs:of:{owner}, by id                      newest first
    queued         the queues one after the other                 newest first in each
    started        rq:wip, by id                                  newest first
    all others     RQ's registry of that state, by its score      what ended, is due or was put off last comes first
    quarantined    sv:jobs:dead:{owner}, likewise
    a group        its list                                       in the order of its inputs

A cursor names the last job of a page by what the order goes by, so pages hold while jobs come and go. It may stand in
a URL as it is.
This module does not know who may see which job.
"""

from __future__ import annotations

import math
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Literal

import redis.asyncio as redis_async

from samovar.errors import InvalidInput
from samovar.jobs import JobState
from samovar_storage import keys
from samovar_storage.failures import translating
from samovar_storage.jobs.layout import (
    LOW,
    QUEUES,
    QueueName,
    job_key,
    parse_queue,
    parse_queue_keys,
    queue_key,
    registry_key,
)
from samovar_storage.jobs.records import JobRecord, Page
from samovar_storage.jobs.specs import is_job_id

State = JobState | Literal["quarantined"]
Fetch = Callable[[Sequence[str]], Awaitable[list[JobRecord | None]]]
Ids = tuple[list[str], str]  # of a page, and the cursor of the next
_AND = "~"  # between the two parts of a cursor


async def queues(redis: redis_async.Redis, functions: Sequence[str], key_id: str | None) -> list[QueueName]:
    """Return the queues of these functions, of one API key or of all, in the order of their names."""
    if key_id is not None:
        return [QueueName(function, key_id, lane) for function in functions for lane in ("", LOW)]
    members: Any = await redis.smembers(QUEUES)
    return [queue for queue in parse_queue_keys(members) if queue.function in functions]


class Listing:
    """fetch: returns the records of ids. Every method raises StoreUnavailable; InvalidInput for a made-up cursor."""

    def __init__(self, redis: redis_async.Redis, fetch: Fetch) -> None:
        self._redis = redis
        self._fetch = fetch

    async def page(
        self, functions: Sequence[str], state: State | None, key_id: str | None, cursor: str, limit: int
    ) -> Page:
        """Return up to `limit` jobs. A page may be shorter than that although there are more: ask its cursor."""
        with translating("the list of jobs"):
            ids, after = await self._ids(await queues(self._redis, functions, key_id), state, cursor, limit)
            records = await self._fetch(ids)
        wanted = JobState.FAILED if state == "quarantined" else state
        return Page(jobs=[record for record in records if record and wanted in (None, record.state)], cursor=after)

    async def of_group(self, group: str, state: State | None, cursor: str, limit: int) -> Page:
        """Return up to `limit` jobs of a group, of which those in other states are left out."""
        offset = _number(cursor)
        with translating("the jobs of a group"):
            found: Any = await self._redis.lrange(keys.jobs_in_group(group), offset, offset + limit - 1)
            records = await self._fetch([job_id.decode() for job_id in found])
        after = str(offset + limit) if len(found) == limit else ""
        return Page(jobs=[record for record in records if record and state in (None, record.state)], cursor=after)

    async def _ids(self, chosen: list[QueueName], state: State | None, cursor: str, limit: int) -> Ids:
        if state == JobState.QUEUED:
            return await self._queued(chosen, cursor, limit)
        if state is None:
            return await self._by_id([keys.jobs_of(owner) for owner in _owners(chosen)], cursor, limit)
        if state == JobState.STARTED:
            return await self._by_id([registry_key(state, queue) for queue in chosen], cursor, limit)
        if state == "quarantined":
            return await self._by_score([keys.jobs_dead(owner) for owner in _owners(chosen)], cursor, limit)
        return await self._by_score([registry_key(state, queue) for queue in chosen], cursor, limit)

    async def _by_id(self, names: Sequence[str], cursor: str, limit: int) -> Ids:
        """Return the highest ids of sorted sets whose scores are all the same; the cursor is an id."""
        if cursor and not is_job_id(cursor):
            raise _made_up()
        async with self._redis.pipeline(transaction=False) as pipeline:
            for name in names:
                pipeline.zrange(name, f"({cursor}" if cursor else "+", "-", desc=True, bylex=True, offset=0, num=limit)
            replies = await pipeline.execute()
        found = sorted((member.decode().partition(":")[0] for reply in replies for member in reply), reverse=True)
        return found[:limit], found[limit - 1] if len(found) >= limit else ""

    async def _by_score(self, names: Sequence[str], cursor: str, limit: int) -> Ids:
        """Return the ids with the highest scores, and of those with the same the highest; the cursor is a score and an
        id."""
        score, _, last = cursor.partition(_AND)
        if cursor and not is_job_id(last):
            raise _made_up()
        before = (_float(score), last) if cursor else (math.inf, "~")
        found = [entry for name in names for entry in await self._below(name, before, limit)]
        found = sorted(found, reverse=True)[:limit]
        after = f"{found[-1][0]!r}{_AND}{found[-1][1]}" if len(found) == limit else ""
        return [job_id for _, job_id in found], after

    async def _below(self, name: str, before: tuple[float, str], limit: int) -> list[tuple[float, str]]:
        found: list[tuple[float, str]] = []
        offset = 0
        while len(found) < limit:
            rows: Any = await self._redis.zrange(
                name, before[0], "-inf", desc=True, byscore=True, offset=offset, num=limit, withscores=True
            )
            found += [entry for member, score in rows if (entry := (float(score), member.decode())) < before]
            offset += len(rows)
            if len(rows) < limit:
                break
        return found[:limit]

    async def _queued(self, chosen: list[QueueName], cursor: str, limit: int) -> Ids:
        """Return ids that wait, from the end of each queue; the cursor is a queue and a number in it."""
        name, _, number = cursor.partition(_AND)
        if cursor and parse_queue(name) is None:
            raise _made_up()
        last = int(_float(number)) if cursor else None
        found: list[str] = []
        for queue in chosen:
            if str(queue) < name:
                continue
            rows = await self._from_tail(queue, last if str(queue) == name else None, limit - len(found))
            found += [job_id for _, job_id in rows]
            if len(found) >= limit:
                return found, f"{queue}{_AND}{rows[-1][0]}"
        return found, ""

    async def _from_tail(self, queue: QueueName, before: int | None, limit: int) -> list[tuple[int, str]]:
        """Return number and id of the last jobs of a queue whose numbers are below `before`, the highest first."""
        end = await self._most_in_front(queue, before)
        found: list[tuple[int, str]] = []
        while end > 0 and len(found) < limit:
            begin = max(0, end - limit)
            ids: Any = await self._redis.lrange(queue_key(queue), begin, end - 1)
            numbers = await self._numbers(ids)
            rows = [(number, job_id.decode()) for number, job_id in zip(numbers, ids, strict=True)]
            found += [row for row in reversed(rows) if before is None or row[0] < before]
            end = begin
        return found[:limit]

    async def _most_in_front(self, queue: QueueName, before: int | None) -> int:
        """Return how many jobs of a queue there may be with numbers below `before`; those cancelled left gaps."""
        length: Any = await self._redis.llen(queue_key(queue))
        if before is None or not length:
            return int(length)
        head: Any = await self._redis.lrange(queue_key(queue), 0, 0)
        first = (await self._numbers(head))[0] if head else before
        return max(0, min(int(length), before - first))

    async def _numbers(self, ids: Sequence[bytes]) -> list[int]:
        async with self._redis.pipeline(transaction=False) as pipeline:
            for job_id in ids:
                pipeline.hget(job_key(job_id.decode()), "sv_seq")
            return [int(number or 0) for number in await pipeline.execute()]


def _owners(chosen: Sequence[QueueName]) -> list[str]:
    return [*dict.fromkeys(f"{queue.function}:{queue.key_id}" for queue in chosen)]


def _float(text: str) -> float:
    try:
        number = float(text)
    except ValueError as error:
        raise _made_up() from error
    if not math.isfinite(number):
        raise _made_up()
    return number


def _number(text: str) -> int:
    if text and not (text.isascii() and text.isdecimal()):
        raise _made_up()
    return int(text or 0)


def _made_up() -> InvalidInput:
    return InvalidInput("the cursor is none that a page ended with", path="cursor")
