"""A worker's right to the jobs it holds: renewed every second, lost when others have given the worker up.

    run     beat; told "unknown": we were reaped, what runs here is somebody else's now, come back under another id
    held    the id, once its lease is known

While Redis is away nobody can be reaped, so what runs goes on. This module does not know jobs.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections.abc import Callable
from typing import Protocol

from samovar.errors import StoreUnavailable

log = logging.getLogger(__name__)

BEAT_S = 1.0
LEASE_BEATS = 3
RETRY_S = 0.2


class Beats(Protocol):
    """What of the store a lease needs."""

    async def beat(self, worker: str) -> bool:
        """See `samovar_storage.jobs.redis_jobs.RedisJobs`."""


class Lease:
    """One per process. worker: its id now. name: what ids begin with. on_lost: told an id that is not ours any more.

    num_lost: how often that was so. It gets through a start without Redis.
    """

    def __init__(self, store: Beats, name: str, on_lost: Callable[[str], object]) -> None:
        self.name = name
        self.num_lost = 0
        self.worker = self._new_id()
        self._store = store
        self._on_lost = on_lost
        self._is_held = asyncio.Event()

    async def run(self) -> None:
        """Beat until cancelled."""
        while True:
            began_s = time.monotonic()
            pause_s = BEAT_S
            try:
                if await self._store.beat(self.worker):
                    self._is_held.set()
                else:
                    self._lose()
                    pause_s = 0.0
            except StoreUnavailable as error:
                log.warning("no beat reached Redis: %s", error.detail)
                pause_s = RETRY_S
            await asyncio.sleep(max(0.0, began_s + pause_s - time.monotonic()))

    async def held(self) -> str:
        """Return the worker's id once its lease is known to others."""
        await self._is_held.wait()
        return self.worker

    def _lose(self) -> None:
        old, self.worker = self.worker, self._new_id()
        self._is_held.clear()
        self.num_lost += 1
        log.warning(
            "worker %s was given up, after %d beats of silence: it goes on as %s", old, LEASE_BEATS, self.worker
        )
        self._on_lost(old)

    def _new_id(self) -> str:
        return f"{self.name}.{secrets.token_hex(4)}"
