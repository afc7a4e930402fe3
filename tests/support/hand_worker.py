"""A job worker that a test moves by hand: it takes and leaves jobs as told, one move at a time."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

import redis.asyncio as redis_async

from samovar.jobs import JobState
from samovar_storage.jobs.layout import QueueName
from samovar_storage.jobs.records import Settlement, Taken
from samovar_storage.jobs.redis_jobs import RedisJobs
from samovar_storage.objects import ObjectStore

T = TypeVar("T")


class HandWorker:
    """worker: its id in the store. Every move has a connection of its own."""

    def __init__(self, redis_url: str, objects: ObjectStore, worker: str = "by-hand") -> None:
        self.worker = worker
        self._runner = asyncio.Runner()
        self._redis = redis_async.Redis.from_url(redis_url)
        self._jobs = RedisJobs(self._redis, objects)

    def take(self, function: str, key_id: str, lane: str = "", most: int = 1) -> list[Taken]:
        """Take waiting jobs."""

        async def move(jobs: RedisJobs) -> list[Taken]:
            await jobs.beat(self.worker)
            return await jobs.take(QueueName(function, key_id, lane), self.worker, most)

        return self.do(move)

    def settle(self, taken: Taken, **fields: Any) -> bool:
        """Leave a job; without fields it finished with its input as its result."""
        usual: dict[str, Any] = {"state": JobState.FINISHED, "result": taken.input, "result_type": "application/json"}
        settlement = Settlement(**(fields if "state" in fields else usual | fields))
        return self.do(lambda jobs: jobs.settle(self.worker, taken, settlement))

    def finish_all(self, function: str, key_id: str, most: int = 1000) -> int:
        """Finish what waits of a queue, each with its input as its result; return how many."""
        taken = self.take(function, key_id, most=most)

        async def move(jobs: RedisJobs) -> None:
            for one in taken:
                done = Settlement(state=JobState.FINISHED, result=one.input, result_type="application/json", version=1)
                await jobs.settle(self.worker, one, done)

        self.do(move)
        return len(taken)

    def do(self, move: Callable[[RedisJobs], Awaitable[T]]) -> T:
        """Return what a move returns."""

        async def run() -> T:
            return await move(self._jobs)

        return self._runner.run(run())

    def close(self) -> None:
        """Let go of the connection."""
        self._runner.run(self._redis.aclose())
        self._runner.close()
