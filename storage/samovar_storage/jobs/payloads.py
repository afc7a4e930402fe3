"""Inputs and results that are too large for Redis: in object storage, under the job's id.

    jobs/<id>/input            jobs/<id>/result.<token>

An object is written before the step that names it. Its job is noted in `sv:jobs:objects` first, so that `sweep` finds
what a process that died in between has left. This module does not know the moves of jobs.
"""

from __future__ import annotations

import asyncio

import redis.asyncio as redis_async

from samovar.jobs import MAX_INLINE_BYTES
from samovar_storage import keys
from samovar_storage.failures import translating
from samovar_storage.jobs import scripts
from samovar_storage.jobs.patience import within
from samovar_storage.objects import ObjectStore

TIMEOUT_S = 30.0
ORPHAN_AFTER_S = 3600
LINK_LIFETIME_S = 900


def input_object(job_id: str) -> str:
    """Return where a large input lies."""
    return f"jobs/{job_id}/input"


def result_object(job_id: str, token: int) -> str:
    """Return where a large result of one attempt lies."""
    return f"jobs/{job_id}/result.{token}"


def is_large(payload: bytes) -> bool:
    """Return whether a payload goes to object storage."""
    return len(payload) > MAX_INLINE_BYTES


class Payloads:
    """Large inputs and results, read and written in threads, each within 30 s."""

    def __init__(self, redis: redis_async.Redis, objects: ObjectStore) -> None:
        self._redis = redis
        self._objects = objects

    async def put(self, job_id: str, name: str, payload: bytes) -> None:
        """Store a payload. Raises: StoreUnavailable, DiskFull."""
        with translating("the objects of jobs"):
            noted = self._redis.register_script(scripts.NOTE_OBJECT)
            await noted(keys=[keys.JOBS_OBJECTS], args=[job_id, ORPHAN_AFTER_S])
        async with within(TIMEOUT_S, "object storage"):
            await asyncio.to_thread(self._objects.put, name, payload)

    async def get(self, name: str) -> bytes:
        """Return a payload. Raises: NotFound; StoreUnavailable."""
        async with within(TIMEOUT_S, "object storage"):
            payload, _ = await asyncio.to_thread(self._objects.get, name)
        return payload

    async def link(self, name: str, content_type: str) -> str:
        """Return a URL that anyone may read it from for 15 minutes."""
        return await asyncio.to_thread(self._objects.presign_get, name, LINK_LIFETIME_S, content_type)

    async def delete(self, name: str) -> None:
        """No such object is there afterwards. Raises: StoreUnavailable."""
        async with within(TIMEOUT_S, "object storage"):
            await asyncio.to_thread(self._objects.delete, name)

    async def delete_all(self, job_id: str) -> None:
        """No object of that job is there afterwards. Raises: StoreUnavailable."""
        async with within(TIMEOUT_S, "object storage"):
            await asyncio.to_thread(self._delete_all, job_id)

    def _delete_all(self, job_id: str) -> None:
        for info in self._objects.list(f"jobs/{job_id}/"):
            self._objects.delete(info.key)
