"""Functions, instances and boot failures as Redis announces them: reloaded at every resync, then message by message.

While Redis is away what was known stays: calls go on without it. This module knows which message means what; it does
not know what follows from it.
"""

from __future__ import annotations

import asyncio
import logging
import time

import msgspec
from redis.asyncio import Redis

from samovar.errors import SamovarError
from samovar_dispatch.dispatcher import Dispatcher
from samovar_dispatch.functions import FunctionTable
from samovar_dispatch.membership import Membership
from samovar_storage import keys, live
from samovar_storage.failures import translating
from samovar_storage.records import BootFailure, FunctionRecord, InstanceRecord, loads
from samovar_storage.subscribe import Message, subscribe

log = logging.getLogger(__name__)

FIND_TIMEOUT_S = 0.5
MISSING_S = 0.2
MAX_LOOKING = 16
MAX_MISSING = 1000
RELOAD_SLICE = 100  # records decoded between two turns of the event loop


class Mirror:
    """One per dispatcher; `run` keeps it current."""

    def __init__(self, redis: Redis, dispatcher: Dispatcher, functions: FunctionTable, membership: Membership) -> None:
        self._redis = redis
        self._dispatcher = dispatcher
        self._functions = functions
        self._membership = membership
        self._looking: dict[str, asyncio.Task[None]] = {}
        self._missing: dict[str, float] = {}  # looked for in vain → until when that is believed, monotonic seconds

    async def run(self) -> None:
        """Follow the channels until cancelled. Raises StoreUnavailable when a reload fails: run it again."""
        channels = (keys.CHANNEL_FUNCTIONS, keys.CHANNEL_INSTANCES, keys.CHANNEL_BOOT)
        async for event in subscribe(self._redis, *channels):
            if not isinstance(event, Message):
                await self.reload()
                continue
            try:
                await self._apply(event)
            except msgspec.MsgspecError as error:
                log.warning("unreadable message on %s: %s", event.channel, error)

    async def find(self, name: str) -> bool:
        """Look for a function that may have been deployed through another gateway, its announcement still on the way.

        Returns: whether it is known now. Costs a round trip to Redis, at most FIND_TIMEOUT_S; one that is not there is
        not looked for again for MISSING_S, and not more than MAX_LOOKING are looked for at a time.
        """
        task = self._looking.get(name)
        if task is None:
            if len(self._looking) >= MAX_LOOKING or self._missing.get(name, 0.0) > time.monotonic():
                return False
            task = self._looking[name] = asyncio.get_running_loop().create_task(self._look(name))
            task.add_done_callback(lambda _: self._looking.pop(name, None))
        await asyncio.wait({task})
        return name in self._functions.entries

    async def _look(self, name: str) -> None:
        try:
            async with asyncio.timeout(FIND_TIMEOUT_S):
                await self._reload_function(name)
        except (TimeoutError, SamovarError, msgspec.MsgspecError) as error:
            log.debug("looking for function %s: %s", name, error)
        if name not in self._functions.entries:
            if len(self._missing) >= MAX_MISSING:
                self._missing.clear()
            self._missing[name] = time.monotonic() + MISSING_S

    async def reload(self) -> None:
        """Everything is as Redis has it now. An index that is being rebuilt takes nothing away."""
        with translating("the functions"):
            async with self._redis.pipeline(transaction=True) as pipe:
                pipe.exists(keys.REGISTRY_BUILT)
                pipe.hgetall(keys.FUNCTIONS)
                is_built, rows = await pipe.execute()
        for number, (name, data) in enumerate(rows.items()):
            if number % RELOAD_SLICE == RELOAD_SLICE - 1:
                await asyncio.sleep(0)
            self._put(name.decode(), data)
        if is_built:
            self._functions.keep_only(name.decode() for name in rows)
            self._functions.loaded = True
        self._membership.replace((await live.instances(self._redis)).values())

    async def _apply(self, message: Message) -> None:
        if message.channel == keys.CHANNEL_INSTANCES:
            self._membership.put(loads(message.data, InstanceRecord))
        elif message.channel == keys.CHANNEL_BOOT:
            self._dispatcher.boot_failed(loads(message.data, BootFailure))
        elif message.data.decode() == keys.ALL_FUNCTIONS:
            await self.reload()
        else:
            await self._reload_function(message.data.decode())

    async def _reload_function(self, name: str) -> None:
        with translating("a function"):
            data = await self._redis.hget(keys.FUNCTIONS, name)
        if data is None:
            self._functions.remove(name)
            self._functions.note_fault(name, "")
        else:
            self._put(name, data)
            self._membership.link_known()

    def _put(self, name: str, data: bytes | str) -> None:
        """Take a function over; one that cannot be read stops no other, and stays as it was here."""
        try:
            record = loads(data, FunctionRecord)
        except msgspec.MsgspecError as error:
            self._functions.note_fault(name, str(error))
        else:
            self._functions.put(record)


async def recall_boot_failure(redis: Redis, dispatcher: Dispatcher, ref: str) -> None:
    """A version that is still backing off from a failed boot fails its waiting calls with that error."""
    failure = await live.boot_failure(redis, ref)
    if failure is not None and failure.retry_at_s > time.time():
        dispatcher.boot_failed(failure)
