"""Uploads on their way to being jobs: each in its turn, only what was checked, and nothing is left behind."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest
import redis.asyncio as redis_async

from samovar.errors import JobNotFound
from samovar_gateway.jobs import expander, lines
from samovar_gateway.jobs.expander import Expander
from samovar_storage.ending import end_tasks
from samovar_storage.jobs import expansions
from samovar_storage.jobs.expansions import Expansion, object_key
from samovar_storage.jobs.layout import new_job_id
from samovar_storage.jobs.records import JobSpec
from samovar_storage.jobs.redis_jobs import RedisJobs
from samovar_storage.objects import ObjectStore
from support.waiting import wait_until_async


@asynccontextmanager
async def running(redis: redis_async.Redis, objects: ObjectStore, holder: str = "g1") -> AsyncIterator[Expander]:
    found = Expander(redis, objects, RedisJobs(redis, objects), holder, 1000)
    task = asyncio.ensure_future(found.run())
    try:
        yield found
    finally:
        await end_tasks([task])


def uploaded(objects: ObjectStore, num_lines: int, **more: Any) -> Expansion:
    upload = new_job_id(int(time.time() * 1000))
    where = object_key("echo", "k", upload)
    etag = objects.put(where, b"".join(b"%d\n" % n for n in range(num_lines)))
    spec = JobSpec(function="echo", key_id="k", created_at_s=time.time(), group=upload)
    fields: dict[str, Any] = {"etag": etag} | more
    return Expansion(id=upload, object_key=where, spec=spec, num_lines=num_lines, **fields)


async def all_ended(redis: redis_async.Redis) -> bool:
    return await expansions.number(redis) == 0


async def test_a_large_upload_does_not_keep_a_small_one_waiting(
    aredis: redis_async.Redis, object_store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(lines, "BATCH_LINES", 10)
    monkeypatch.setattr(expander, "SLICE_BATCHES", 2)
    large, small = uploaded(object_store, 300), uploaded(object_store, 15)
    for one in large, small:
        await expansions.begin(aredis, one)
    async with running(aredis, object_store):
        await wait_until_async(lambda: all_ended(aredis), what="every line is a job")
    waiting: Any = await aredis.lrange("rq:queue:sv:echo:k", 0, -1)
    assert len(waiting) == len(set(waiting)) == 315

    of_small = [n for n in range(15) if expansions.line_job_id(small.id, n).encode() in waiting[:40]]
    assert of_small == [*range(15)]


async def test_what_was_replaced_after_it_was_checked_is_given_up(
    aredis: redis_async.Redis, object_store: ObjectStore
) -> None:
    replaced, gone = uploaded(object_store, 5, etag='"another"'), uploaded(object_store, 5)
    object_store.delete(gone.object_key)
    async with running(aredis, object_store) as expander:
        await expander.begin(replaced)
        await expander.begin(gone)
        await wait_until_async(lambda: all_ended(aredis), what="they were given up")
    for one in replaced, gone:
        with pytest.raises(JobNotFound):
            await RedisJobs(aredis, object_store).group(one.id)


async def test_lines_that_nobody_noted_are_not_submitted_again(
    aredis: redis_async.Redis, object_store: ObjectStore
) -> None:
    jobs, begun = RedisJobs(aredis, object_store), uploaded(object_store, 20)
    await expansions.begin(aredis, begun)
    accepted = expander.jobs_of(begun, [b"%d" % n for n in range(12)])
    await jobs.submit(accepted)
    for job in accepted:
        await jobs.cancel(job.id)
    assert await jobs.purge("echo", None, 0.0, None) == 12
    async with running(aredis, object_store):
        await wait_until_async(lambda: all_ended(aredis), what="every line is a job")
    waiting: Any = await aredis.lrange("rq:queue:sv:echo:k", 0, -1)
    assert [job_id.decode() for job_id in waiting] == [expansions.line_job_id(begun.id, n) for n in range(12, 20)]


async def test_who_holds_an_upload_goes_on_alone(aredis: redis_async.Redis, object_store: ObjectStore) -> None:
    begun = uploaded(object_store, 5)
    await expansions.begin(aredis, begun)
    assert await expansions.hold(aredis, begun.id, "g0") and await expansions.hold(aredis, begun.id, "g0")
    assert not await expansions.hold(aredis, begun.id, "g1")
    await expansions.end(aredis, begun.id)
    assert await expansions.hold(aredis, begun.id, "g1")
    assert not await expansions.advance(aredis, begun), "it was ended"


async def test_what_nobody_submitted_is_deleted(aredis: redis_async.Redis, object_store: ObjectStore) -> None:
    old, new = uploaded(object_store, 1), uploaded(object_store, 1)
    await expansions.note_upload(aredis, old.object_key, time.time() - expansions.UPLOAD_LIFETIME_S - 1)
    await expansions.note_upload(aredis, new.object_key, time.time())

    async def is_gone() -> bool:
        return await asyncio.to_thread(object_store.head, old.object_key) is None

    async with running(aredis, object_store):
        await wait_until_async(is_gone, what="the old upload is deleted")
    assert object_store.head(new.object_key) is not None
    assert await expansions.old_uploads(aredis, time.time(), 10) == []
