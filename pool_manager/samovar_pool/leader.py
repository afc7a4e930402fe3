"""Who leads: a lock on the node's run folder, and the lease in Redis with its fencing token.

The lock keeps two managers of one node apart even without Redis, and tells the next one that its predecessor is dead,
so that it need not wait for the old lease to run out. This module does not know what a leader does.
"""

from __future__ import annotations

import asyncio
import fcntl
import logging
from collections.abc import Callable
from pathlib import Path

import redis.asyncio as redis_async

from samovar.errors import DataDirHeld, SamovarError
from samovar_storage import live

logger = logging.getLogger("samovar.pool")

RETRY_S = 0.2
RENEW_S = 2.0


class NodeLock:
    """Held by one manager per data folder until it closes or dies; remembers the last fencing token."""

    def __init__(self, folder: Path) -> None:
        self._path = folder / "manager.lock"
        self._file = self._path.open("a+", encoding="ascii")
        try:
            fcntl.flock(self._file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            self._file.close()
            raise DataDirHeld(f"another pool manager runs on {folder}") from None

    def last_token(self) -> int:
        """Return the token that the manager before us held, 0 if unknown."""
        self._file.seek(0)
        text = self._file.read().strip()
        return int(text) if text.isdigit() else 0

    def remember(self, token: int) -> None:
        """Note our token for the next manager."""
        self._file.seek(0)
        self._file.truncate()
        self._file.write(str(token))
        self._file.flush()

    def close(self) -> None:
        """Let the next manager in."""
        self._file.close()


class Lease:
    """The lease in Redis, over a client of its own: `redis` is closed by `release`.

    `on_lost` is called if another manager took it.
    """

    def __init__(self, redis: redis_async.Redis, lock: NodeLock, on_lost: Callable[[], None]) -> None:
        self.token: int | None = None
        self._redis = redis
        self._lock = lock
        self._on_lost = on_lost

    async def acquire(self) -> int:
        """Return our fencing token, as soon as Redis answers and nobody else leads."""
        told = ""
        while True:
            why = "another pool manager leads"
            try:
                if previous := self._lock.last_token():
                    await live.release_lease(self._redis, previous)
                self.token = await live.acquire_lease(self._redis)
            except SamovarError as error:
                why = error.detail
            if self.token is not None:
                self._lock.remember(self.token)
                return self.token
            if told != why:
                logger.warning("waiting to lead: %s", why)
                told = why
            await asyncio.sleep(RETRY_S)

    async def keep(self) -> None:
        """Renew for ever."""
        while True:
            await asyncio.sleep(RENEW_S)
            await self.renew()

    async def renew(self) -> None:
        """Renew once. Without Redis nobody can take it either; one that ran out is ours again if nobody led since;
        after a flush it is taken anew."""
        try:
            if self.token is not None and not await live.renew_lease(self._redis, self.token):
                await self._retake()
        except SamovarError as error:
            logger.warning("the lease waits: %s", error.detail)

    async def _retake(self) -> None:
        token = await live.acquire_lease(self._redis)
        if token is None:
            self._on_lost()
            return
        self.token = token
        self._lock.remember(token)
        logger.warning("took the lease anew: Redis had lost it")

    async def release(self) -> None:
        """Let another manager lead at once."""
        if self.token is not None:
            try:
                await live.release_lease(self._redis, self.token)
            except SamovarError as error:
                logger.warning("the lease was not released: %s", error.detail)
        await self._redis.aclose()
