"""The breakers of one gateway among those of others: tells what moved here, takes in what moved there.

| another gateway says | a breaker of ours   | then
|----------------------|---------------------|------------------------------------------------------------------------
| open until T         | closed or half-open | opens until T, and a little longer by chance
| open until T         | open                | stays open until the later of the two
| half-open            | open                | leaves the probing to it, for PROBE_LEASE_S at most
| half-open            | half-open           | both probe: they began within one message's travel
| closed               | any                 | closes

So as a rule one gateway probes for all and its `probes` are all there are; the others take their turn if it has no
traffic or dies. With Redis away nothing is told or heard, and each gateway decides alone, from its own calls.
Instances that stay unwell here are told of too, to the pool manager. This module does not know what makes a breaker
move, or an instance unwell.
"""

from __future__ import annotations

import asyncio
import logging
import time

import msgspec
from redis.asyncio import Redis

from samovar.errors import SamovarError
from samovar_dispatch.call import Version
from samovar_dispatch.connection import InstanceConnection
from samovar_dispatch.dispatcher import Dispatcher
from samovar_dispatch.functions import FunctionTable
from samovar_dispatch.health.breaker import PROBE_LEASE_S, State
from samovar_storage import breakers, keys
from samovar_storage.breakers import BreakerNews, Unwell
from samovar_storage.records import loads
from samovar_storage.subscribe import Message, subscribe

log = logging.getLogger(__name__)

READ_REFS = 500  # states read in one go
LOOK_S = 0.05  # until the functions are known


class Breakers:
    """One per gateway. `tell` and `follow` run for as long as it does."""

    def __init__(self, redis: Redis, dispatcher: Dispatcher, functions: FunctionTable, gateway_id: str) -> None:
        self._redis = redis
        self._functions = functions
        self._dispatcher = dispatcher
        self._gateway_id = gateway_id
        self._moved: dict[Version, None] = {}
        self._unwell: dict[str, Unwell] = {}
        self._wake = asyncio.Event()
        dispatcher.guard.on_change = self._notice
        dispatcher.ejections.on_unwell = self._notice_unwell

    def _notice(self, version: Version) -> None:
        self._moved[version] = None
        self._wake.set()

    def _notice_unwell(self, connection: InstanceConnection, fault: str) -> None:
        record = connection.record
        self._unwell[record.instance_id] = Unwell(
            instance_id=record.instance_id, ref=record.ref, gateway=self._gateway_id, fault=fault
        )
        self._wake.set()

    async def tell(self) -> None:
        """Tell the others whatever moves here, until cancelled. What cannot be told now is not told later: by then
        it is no news."""
        while True:
            await self._wake.wait()
            self._wake.clear()
            moved, self._moved = self._moved, {}
            unwell, self._unwell = self._unwell, {}
            try:
                for version in moved:
                    await breakers.tell(self._redis, self._news(version), time.time())
                for news in unwell.values():
                    await breakers.tell_unwell(self._redis, news)
            except SamovarError as error:
                log.warning("others were not told how %d versions are: %s", len(moved) + len(unwell), error.detail)

    async def follow(self) -> None:
        """Take in what the others tell, until cancelled. Raises StoreUnavailable when a reading fails: run it again."""
        async for event in subscribe(self._redis, keys.CHANNEL_BREAKERS):
            if not isinstance(event, Message):
                await self.reload()
                continue
            try:
                self.hear(loads(event.data, BreakerNews))
            except msgspec.MsgspecError as error:
                log.warning("unreadable message on %s: %s", event.channel, error)

    async def reload(self) -> None:
        """What the others last said is known here, and they are told of ours that are open."""
        while not self._functions.loaded:  # noqa: ASYNC110  (the table does not announce it)
            await asyncio.sleep(LOOK_S)
        refs = [*self._dispatcher.versions]
        for start in range(0, len(refs), READ_REFS):
            for news in await breakers.known(self._redis, refs[start : start + READ_REFS]):
                self.hear(news)
        for version in self._dispatcher.versions.values():
            if version.breaker.state is State.OPEN:
                self._notice(version)

    def hear(self, news: BreakerNews) -> None:
        """Another gateway's breaker moved."""
        version = self._dispatcher.versions.get(news.ref)
        if version is None or news.gateway == self._gateway_id:
            return
        remaining_s = news.until_s - time.time()
        guard = self._dispatcher.guard
        if news.state == "open":
            guard.heard_open(version, remaining_s, news.reason, news.num_openings)
        elif news.state == "half_open":
            guard.heard_probing(version, remaining_s)
        else:
            guard.heard_closed(version)

    def _news(self, version: Version) -> BreakerNews:
        breaker, now_s = version.breaker, time.monotonic()
        remaining_s = breaker.until_s - now_s if breaker.state is State.OPEN else PROBE_LEASE_S
        return BreakerNews(
            ref=version.ref,
            gateway=self._gateway_id,
            state=breaker.state.label,
            until_s=time.time() + max(0.0, remaining_s),
            reason=breaker.reason,
            num_openings=breaker.num_openings,
        )
