"""What a dispatcher knows of functions, with an index that is built while it looks on."""

from __future__ import annotations

import asyncio

import redis as redis_sync
import redis.asyncio as redis_async

from samovar_dispatch.demand import DemandWriter
from samovar_dispatch.engine import Engine
from samovar_storage import keys
from samovar_storage.ending import end_tasks
from samovar_storage.objects import ObjectStore
from samovar_storage.registry import Registry
from support.waiting import wait_until_async


async def test_who_came_before_the_index_hears_when_it_is_built(
    object_store: ObjectStore, redis: redis_sync.Redis, aredis: redis_async.Redis
) -> None:
    """As a job worker of a platform that starts for the first time: its cron jobs wait for nothing else."""
    engine = Engine(aredis, "early", DemandWriter("early"))
    mirror = asyncio.create_task(engine.mirror.run())
    try:
        await wait_until_async(lambda: _num_subscribers(aredis))
        assert not engine.functions.loaded
        await asyncio.to_thread(Registry(object_store, redis).ensure_built)
        await wait_until_async(lambda: engine.functions.loaded)
    finally:
        await end_tasks([mirror])
        await engine.close()


async def _num_subscribers(redis: redis_async.Redis) -> int:
    ((_, number),) = await redis.pubsub_numsub(keys.CHANNEL_FUNCTIONS)
    return int(number)
