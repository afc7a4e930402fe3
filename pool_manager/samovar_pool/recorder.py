"""Everything the manager writes to Redis, off its path: one task, the newest value of each thing, in few round trips.

What waits is kept by key, so a slow Redis makes news late, never many. What could not be written is not kept: once
Redis answers again the instances are written anew as they are then. This module does not know why something is written.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

import msgspec
import redis.asyncio as redis_async

from samovar.errors import Conflict, SamovarError
from samovar.lifecycle import State
from samovar_storage import keys, live
from samovar_storage.records import BootFailure, Decision, InstanceRecord, NodeStatus, VersionStatus

logger = logging.getLogger("samovar.pool")

MAX_FUNCTIONS_WAITING = 1000  # whose decisions wait; those of others are dropped
BATCH = 100  # commands sent at once
VERIFY_S = 3.0

R = TypeVar("R")


class Waiting:
    """What is to be written: the newest record of each instance, status of each version, boot outcome of each."""

    def __init__(self) -> None:
        self.instances: dict[str, InstanceRecord] = {}
        self.boots: dict[str, BootFailure | None] = {}
        self.decisions: dict[str, deque[Decision]] = {}
        self.statuses: dict[str, VersionStatus] = {}
        self.nodes: dict[str, NodeStatus] = {}

    def __len__(self) -> int:
        """The number of records."""
        kept = (self.instances, self.boots, self.decisions, self.statuses, self.nodes)
        return sum(len(records) for records in kept)


class Recorder:
    """Writes as the leader with the fencing token `fence()`. `current` returns the published instances as they are now;
    `on_deposed` is called once if a newer leader exists; nothing more is written then."""

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
        self._waiting = Waiting()
        self._news = asyncio.Event()
        self._written = asyncio.Event()
        self._written.set()
        self._is_deposed = False
        self._is_behind = False

    def instance(self, record: InstanceRecord) -> None:
        """Store and publish an instance."""
        self._waiting.instances[record.instance_id] = record
        self._wake()

    def gone(self, record: InstanceRecord) -> None:
        """Remove an instance and publish that it is gone."""
        self.instance(msgspec.structs.replace(record, state=State.GONE))

    def boot_failure(self, failure: BootFailure) -> None:
        """Store a boot failure and tell those who wait on that boot."""
        self._waiting.boots[failure.ref] = failure
        self._wake()

    def boot_success(self, ref: str) -> None:
        """Forget the boot failure of a version."""
        self._waiting.boots[ref] = None
        self._wake()

    def decisions(self, name: str, decisions: list[Decision]) -> None:
        """Keep decisions of a function with their reasons."""
        waiting = self._waiting.decisions
        if name in waiting or len(waiting) < MAX_FUNCTIONS_WAITING:
            waiting.setdefault(name, deque(maxlen=keys.MAX_DECISIONS)).extend(decisions)
            self._wake()

    def status(self, status: VersionStatus) -> None:
        """Keep a version's status for some seconds."""
        self._waiting.statuses[status.ref] = status
        self._wake()

    def node(self, status: NodeStatus) -> None:
        """Keep this node's status for some seconds."""
        self._waiting.nodes[status.node] = status
        self._wake()

    def _wake(self) -> None:
        self._written.clear()
        self._news.set()

    async def drain(self, timeout_s: float) -> None:
        """Return once everything that waits was written or dropped, or after `timeout_s`."""
        try:
            async with asyncio.timeout(timeout_s):
                await self._written.wait()
        except TimeoutError:
            logger.warning("%d records were not written", len(self._waiting))

    async def run(self) -> None:
        """Write for ever."""
        while True:
            await self._news.wait()
            self._news.clear()
            batch, self._waiting = self._waiting, Waiting()
            await self._write_all(batch)
            if not self._news.is_set():
                self._written.set()

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

    async def _write_all(self, batch: Waiting) -> None:
        """Write what others wait for first: instances, then boots, then what people read."""
        for records in _chunks(list(batch.instances.values())):
            if not self._is_deposed:
                await self._try(self._write_instances(records))
        if self._is_deposed:
            return
        for ref, failure in batch.boots.items():
            if failure is None:
                await self._try(live.clear_boot_failure(self._redis, ref))
            else:
                await self._try(live.put_boot_failure(self._redis, failure))
        for name, decisions in batch.decisions.items():
            await self._try(live.add_decisions(self._redis, name, decisions))
        for statuses in _chunks(list(batch.statuses.values())):
            await self._try(live.put_status(self._redis, *statuses))
        for status in batch.nodes.values():
            await self._try(live.put_node(self._redis, status))

    async def _write_instances(self, records: list[InstanceRecord]) -> None:
        """Write with the token that is held now; once more if the lease was taken anew meanwhile."""
        token = self._fence()
        try:
            await live.write_instances(self._redis, records, token)
        except Conflict:
            if self._fence() == token:
                raise
            await live.write_instances(self._redis, records, self._fence())

    async def _try(self, writing: Awaitable[None]) -> None:
        try:
            await writing
        except Conflict as error:
            logger.error("%s", error.detail)
            self._is_deposed = True
            self._on_deposed()
        except SamovarError as error:
            if not self._is_behind:
                logger.warning("cannot record now: %s", error.detail)
            self._is_behind = True
        else:
            self._is_behind = False


def _chunks(records: list[R]) -> Iterator[list[R]]:
    for start in range(0, len(records), BATCH):
        yield records[start : start + BATCH]
