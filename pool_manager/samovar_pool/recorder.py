"""Everything the manager writes to Redis, in order, off its path: one task, one bounded queue.

What could not be written is not kept: once Redis answers again the instances are written anew as they are then.
This module does not know why something is written.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

import redis.asyncio as redis_async

from samovar.errors import Conflict, SamovarError
from samovar_storage import live
from samovar_storage.records import BootFailure, Decision, InstanceRecord, NodeStatus, VersionStatus

logger = logging.getLogger("samovar.pool")

MAX_WAITING = 5000
VERIFY_S = 3.0

Write = Callable[[], Awaitable[None]]


class Recorder:
    """Writes as the leader with the fencing token `fence()`. `current` returns the published instances as they are now;
    `on_deposed` is called once if a newer leader exists."""

    def __init__(
        self,
        redis: redis_async.Redis,
        current: Callable[[], list[InstanceRecord]],
        on_deposed: Callable[[], None],
        fence: Callable[[], int | None],
    ) -> None:
        self._fence = fence
        self._redis = redis
        self._current = current
        self._on_deposed = on_deposed
        self._queue: asyncio.Queue[Write] = asyncio.Queue(MAX_WAITING)
        self._is_behind = False

    def instance(self, record: InstanceRecord) -> None:
        """Store and publish an instance."""
        self._put(lambda: live.put_instance(self._redis, record, self._fence()))

    def gone(self, record: InstanceRecord) -> None:
        """Remove an instance and publish that it is gone."""
        self._put(lambda: live.remove_instance(self._redis, record, self._fence()))

    def boot_failure(self, failure: BootFailure) -> None:
        """Store a boot failure and tell those who wait on that boot."""
        self._put(lambda: live.put_boot_failure(self._redis, failure))

    def boot_success(self, ref: str) -> None:
        """Forget the boot failure of a version."""
        self._put(lambda: live.clear_boot_failure(self._redis, ref))

    def decisions(self, name: str, decisions: list[Decision]) -> None:
        """Keep decisions of a function with their reasons."""
        self._put(lambda: live.add_decisions(self._redis, name, decisions))

    def status(self, status: VersionStatus) -> None:
        """Keep a version's status for some seconds."""
        self._put(lambda: live.put_status(self._redis, status))

    def node(self, status: NodeStatus) -> None:
        """Keep this node's status for some seconds."""
        self._put(lambda: live.put_node(self._redis, status))

    async def drain(self, timeout_s: float) -> None:
        """Return once everything queued was written or dropped, or after `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._queue.join()
        except TimeoutError:
            logger.warning("%d records were not written", self._queue.qsize())

    async def run(self) -> None:
        """Write for ever."""
        while True:
            write = await self._queue.get()
            try:
                await self._write(write)
            finally:
                self._queue.task_done()

    async def verify(self) -> None:
        """For ever: make Redis hold exactly our instances again, should it have lost some (a flush) or missed some."""
        while True:
            await asyncio.sleep(VERIFY_S)
            await self.verify_once()

    async def verify_once(self) -> None:
        """Write what is missing, remove what is stale."""
        try:
            stored = await live.instances(self._redis)
        except SamovarError:
            return
        ours = {record.instance_id: record for record in self._current()}
        for instance_id, record in ours.items():
            if instance_id not in stored or stored[instance_id].state != record.state:
                self.instance(record)
        for instance_id in stored.keys() - ours.keys():
            self.gone(stored[instance_id])

    def _put(self, write: Write) -> None:
        try:
            self._queue.put_nowait(write)
        except asyncio.QueueFull:
            self._is_behind = True

    async def _write(self, write: Write) -> None:
        try:
            await write()
        except Conflict as error:
            logger.error("%s", error.detail)
            self._on_deposed()
        except SamovarError as error:
            if not self._is_behind:
                logger.warning("cannot record now: %s", error.detail)
            self._is_behind = True
        else:
            self._is_behind = False
