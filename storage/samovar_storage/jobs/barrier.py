"""Knowing that what Redis answered will be there after its death: in the append-only file, or on the disk.

With `appendfsync everysec` the server may answer while the write to its file is put off (up to 2 s, while an fsync
runs): the answer alone proves nothing. `aof_buffer_length:0`, asked after the answer, does: all that was changed before
has been written to the file, where a killed process no longer matters. On a busy server the buffer is hardly ever seen
empty; then the file has grown by what was in it when first asked. A power cut needs the fsync: WAITAOF.
Many wait for one question: whoever comes while it is on its way waits for the next.
This module does not know what was written.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Literal

import redis.asyncio as redis_async

from samovar.errors import StoreUnavailable
from samovar_storage import keys
from samovar_storage.failures import translating
from samovar_storage.jobs.patience import within

POLL_S = 0.001
MAX_POLL_S = 0.05
TIMEOUT_S = 5.0
WATCH_S = 30.0
FSYNC_TIMEOUT_MS = 4000


class Shared:
    """One question at a time, for all who waited when it was asked."""

    def __init__(self, ask: Callable[[], Awaitable[None]]) -> None:
        self._ask = ask
        self._running: asyncio.Task[None] | None = None
        self._next: asyncio.Task[None] | None = None

    async def wait(self) -> None:
        """Return once a question that was asked after this call has been answered; raises what it raised."""
        if self._next is None:
            self._next = asyncio.ensure_future(self._after(self._running))
            self._next.add_done_callback(_seen)
        await asyncio.shield(self._next)

    async def _after(self, previous: asyncio.Task[None] | None) -> None:
        if previous is not None:
            await asyncio.wait([previous])
        self._running, self._next = self._next, None
        await self._ask()


class Barrier:
    """Of one Redis. has_file: whether it had an append-only file when it was last asked; taken for true before."""

    def __init__(self, redis: redis_async.Redis) -> None:
        self.has_file = True
        self._redis = redis
        self._written = Shared(self._ask_written)
        self._synced = Shared(self._ask_synced)

    async def passed(self, durability: Literal["aof", "fsync"] = "aof") -> None:
        """Return once all that Redis has answered so far is in its append-only file (aof), or on the disk (fsync).

        A Redis without an append-only file keeps nothing: then there is nothing to wait for.
        Raises: StoreUnavailable when it takes longer than 5 s.
        """
        with translating("the append-only file"):
            await (self._written if durability == "aof" else self._synced).wait()

    async def watch(self) -> None:
        """Keep `has_file` current, until cancelled. Raises StoreUnavailable: run it again."""
        while True:
            await self.passed()
            await asyncio.sleep(WATCH_S)

    async def _ask_written(self) -> None:
        info = await self._persistence()
        target, pause_s = _total(info), POLL_S
        async with within(TIMEOUT_S, "the append-only file"):
            while not _is_written(info, target):
                await asyncio.sleep(pause_s)
                pause_s = min(2 * pause_s, MAX_POLL_S)
                info = await self._persistence()
                # a rewrite of the file starts its size anew
                target = min(target, _total(info))

    async def _ask_synced(self) -> None:
        if not (await self._persistence()).get("aof_enabled"):
            return
        async with self._redis.pipeline(transaction=False) as pipeline:
            # WAITAOF speaks of what its own connection wrote last
            pipeline.set(keys.JOBS_BARRIER, 1)
            pipeline.execute_command("WAITAOF", 1, 0, FSYNC_TIMEOUT_MS)
            (num_local, _) = (await pipeline.execute())[1]
        if not num_local:
            raise StoreUnavailable("Redis has not synced its append-only file in time")

    async def _persistence(self) -> dict[str, Any]:
        info: dict[str, Any] = await self._redis.info("persistence")
        self.has_file = bool(info.get("aof_enabled"))
        return info


def _total(info: dict[str, Any]) -> int:
    return int(info.get("aof_current_size", 0)) + int(info.get("aof_buffer_length", 0))


def _is_written(info: dict[str, Any], target: int) -> bool:
    is_empty = int(info.get("aof_buffer_length", 0)) == 0
    return not info.get("aof_enabled") or is_empty or int(info["aof_current_size"]) >= target


def _seen(task: asyncio.Task[None]) -> None:
    """Take note of an error nobody waits for any more."""
    if not task.cancelled():
        task.exception()
