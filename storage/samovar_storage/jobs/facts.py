"""What bears on when the jobs of a function start, read from Redis in one round trip; what workers say of themselves.

This module draws no conclusions: `waiting.py` does.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeVar

import redis.asyncio as redis_async

from samovar.values import Struct
from samovar_storage import keys
from samovar_storage.breakers import BreakerNews
from samovar_storage.failures import translating
from samovar_storage.jobs.records import WorkerStatus
from samovar_storage.jobs.waiting import Facts
from samovar_storage.readable import readable
from samovar_storage.records import BootFailure, VersionStatus, dumps

# KEYS: sv:jobs:workers. ARGV: what the keys of their statuses begin with. Returns the statuses there are.
_STATUSES = """
local found = {}
for _, worker in ipairs(redis.call('HKEYS', KEYS[1])) do
  local status = redis.call('GET', ARGV[1] .. worker)
  if status then found[#found + 1] = status end
end
return found
"""

S = TypeVar("S", bound=Struct)


async def tell_worker(redis: redis_async.Redis, status: WorkerStatus) -> None:
    """What a worker says of itself is known for `keys.WORKER_LIFETIME_S`."""
    with translating("a worker's status"):
        await redis.set(keys.jobs_worker(status.worker), dumps(status), ex=keys.WORKER_LIFETIME_S)


async def workers(redis: redis_async.Redis) -> list[WorkerStatus]:
    """Return what the workers heard of lately say of themselves."""
    with translating("the workers"):
        rows: Any = await redis.eval_ro(_STATUSES, 1, *_statuses_of())
    return _read(rows, WorkerStatus)


async def read_facts(redis: redis_async.Redis, refs: Sequence[str], max_running: int | None = None) -> Facts:
    """Return what is known now of a function's versions with traffic (`refs`), and of the workers.

    max_running: how many jobs of it may run at a time.
    """
    if not refs:
        return Facts(workers=tuple(await workers(redis)))
    with translating("what jobs wait for"):
        async with redis.pipeline(transaction=False) as pipe:
            pipe.eval_ro(_STATUSES, 1, *_statuses_of())
            for key in (keys.status, keys.boot, keys.breaker):
                pipe.mget([key(ref) for ref in refs])
            told, statuses, failures, breakers = await pipe.execute()
    return Facts(
        workers=tuple(_read(told, WorkerStatus)),
        versions=tuple(_read(statuses, VersionStatus)),
        boot_failures=tuple(_read(failures, BootFailure)),
        breakers=tuple(_read(breakers, BreakerNews)),
        max_running=max_running,
    )


def _statuses_of() -> tuple[str, str]:
    return keys.JOBS_WORKERS, keys.jobs_worker("")


def _read(rows: Sequence[bytes | None], type: type[S]) -> list[S]:
    found = (readable(f"a {type.__name__}", row, type) for row in rows)
    return [record for record in found if record is not None]
