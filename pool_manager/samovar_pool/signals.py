"""What Redis says, mirrored: demand, warm requests, functions. Pushed wake-ups first, reading as the safety net.

When Redis does not answer, everything stays as last known and `known` says so. This module decides nothing.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping
from contextlib import aclosing
from typing import Any

import msgspec
import redis.asyncio as redis_async

from samovar.errors import SamovarError
from samovar_pool.versions import Catalogue, Version
from samovar_storage import keys, live
from samovar_storage.breakers import Unwell
from samovar_storage.failures import translating
from samovar_storage.readable import readable
from samovar_storage.records import FunctionRecord, loads
from samovar_storage.subscribe import Message, Resync, subscribe

logger = logging.getLogger("samovar.pool")

BUSY_POLL_S = 0.1  # while anything waits: gateways write this often
INDEX_POLL_S = 0.1  # until the index is built: an empty one is announced by nobody
UNKNOWN_AFTER_S = 3.0
WARM_SWEEP_S = 60.0
WARM_SWEEP_REFS = 200  # of the sweep, read with one look at demand
SCAN_COUNT = 200  # functions decoded in one go, so that thousands of them leave the event loop free in between
WOKEN_FOR_S = 60.0
GROWTH = 1.25  # less than this waits for the tick: a busy gateway's numbers move all the time


class Signals:
    """The mirror. demand: ref → calls in all gateways and workers; jobs: of these, attempts at queued jobs.

    `on_wake` is called at once, on the event loop, whenever something may have to be done, `on_deployed`
    with each version that becomes routed while this runs: not with those that a whole reading of the index finds.
    `on_unwell` is called with instances that a gateway asks to have replaced."""

    def __init__(
        self,
        redis: redis_async.Redis,
        catalogue: Catalogue,
        poll_s: float,
        on_wake: Callable[[], None],
        on_deployed: Callable[[Version], None],
    ) -> None:
        self.demand: dict[str, float] = {}
        self.jobs: dict[str, float] = {}
        self.num_queued = 0
        self.warm: dict[str, int] = {}
        self.woken_at_s: dict[str, float] = {}
        self.on_unwell: Callable[[Unwell], None] = _ignore
        self.has_functions = asyncio.Event()
        self._redis = redis
        self._catalogue = catalogue
        self._poll_s = poll_s
        self._on_wake = on_wake
        self._on_deployed = on_deployed
        self._read_at_s = self._swept_at_s = self._acted_at_s = float("-inf")
        self._sweep: list[str] = []
        self._reading = asyncio.Lock()
        self._acted_on: dict[str, float] = {}
        self._woken_refs: set[str] = set()
        self._poll_now = asyncio.Event()

    def known(self, now_s: float) -> bool:
        """Return whether demand was read lately (monotonic seconds)."""
        return now_s - self._read_at_s < UNKNOWN_AFTER_S

    async def wait_for_functions(self) -> None:
        """Return once the index of functions is whole, and mirrored here."""
        while not self.has_functions.is_set():
            await self.reload_functions()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(INDEX_POLL_S):
                    await self.has_functions.wait()

    async def follow(self) -> None:
        """Apply messages as they come, for ever. A wake-up counts as a demand of one until demand is read."""
        events = subscribe(self._redis, keys.CHANNEL_WAKE, keys.CHANNEL_FUNCTIONS, keys.CHANNEL_UNWELL)
        async with aclosing(events):
            async for event in events:
                if isinstance(event, Resync):
                    self._swept_at_s = float("-inf")
                    await self.reload_functions()
                elif event.channel == keys.CHANNEL_WAKE:
                    self._woken(event)
                elif event.channel == keys.CHANNEL_UNWELL:
                    self._heard_unwell(event)
                else:
                    await self._reload_function(event.data.decode())
                self._on_wake()

    def _woken(self, message: Message) -> None:
        ref = message.data.decode()
        self.woken_at_s[ref] = time.monotonic()
        self.demand[ref] = max(1.0, self.demand.get(ref, 0.0))
        self._woken_refs.add(ref)
        self._poll_now.set()

    def _heard_unwell(self, message: Message) -> None:
        try:
            self.on_unwell(loads(message.data, Unwell))
        except msgspec.MsgspecError as error:
            logger.warning("unreadable message on %s: %s", message.channel, error)

    async def poll(self) -> None:
        """Read demand and warm requests for ever: after each wake-up, often while anything waits, else each tick."""
        while True:
            self._poll_now.clear()
            await self._read()
            pause_s = BUSY_POLL_S if self.num_queued else self._poll_s
            try:
                async with asyncio.timeout(pause_s):
                    await self._poll_now.wait()
            except TimeoutError:
                continue

    async def _read(self) -> None:
        refs = self._warm_refs(time.monotonic())
        try:
            demand = await live.read_demand(self._redis, time.time())
            requests = await live.warm_requests(self._redis, refs)
        except SamovarError as error:
            logger.warning("demand is not known now: %s", error.detail)
            return
        fresh = {ref: float(d.queued + d.running) for ref, d in demand.items()}
        warm = {ref: request.instances for ref, request in requests.items()}
        is_urgent = warm != self.warm or has_grown(self._acted_on, fresh)
        self.demand, self.warm = fresh, warm
        self.jobs = {ref: float(d.jobs) for ref, d in demand.items() if d.jobs}
        self.num_queued = sum(d.queued for d in demand.values())
        self._read_at_s = now_s = time.monotonic()
        self.woken_at_s = {ref: at_s for ref, at_s in self.woken_at_s.items() if now_s - at_s < WOKEN_FOR_S}
        if is_urgent or now_s - self._acted_at_s >= self._poll_s:
            self._acted_on, self._acted_at_s = fresh, now_s
        if is_urgent:
            self._on_wake()

    def _warm_refs(self, now_s: float) -> list[str]:
        """Return whose warm requests to read: those known, those woken for, and some of a slow round of all."""
        woken, self._woken_refs = self._woken_refs, set()
        if not self._sweep and now_s - self._swept_at_s >= WARM_SWEEP_S:
            self._swept_at_s = now_s
            self._sweep = list(self._catalogue.versions)
        swept, self._sweep = self._sweep[:WARM_SWEEP_REFS], self._sweep[WARM_SWEEP_REFS:]
        return list({*self.warm, *woken, *swept})

    async def reload_functions(self) -> None:
        """Take over the whole index, if it is built: an empty Redis does not mean that all functions are gone."""
        async with self._reading:
            try:
                with translating("the functions"):
                    built = await self._redis.exists(keys.REGISTRY_BUILT)
                    names = await self._scan_functions() if built else set()
            except SamovarError as error:
                logger.warning("functions are not known now: %s", error.detail)
                return
            if built:
                self._catalogue.keep_only(names)
                self.has_functions.set()

    async def _scan_functions(self) -> set[str]:
        """Take over every function of the index, a few at a time; return their names."""
        names: set[str] = set()
        cursor: int | None = None
        while cursor != 0:
            answer: Any = await self._redis.hscan(keys.FUNCTIONS, cursor or 0, count=SCAN_COUNT)
            cursor, rows = answer
            for field, data in rows.items():
                names.add(_text(field))
                self._take_over(_text(field), data)
        return names

    async def _reload_function(self, name: str) -> None:
        async with self._reading:
            try:
                with translating("a function"):
                    data = await self._redis.hget(keys.FUNCTIONS, name)
                    built = await self._redis.exists(keys.REGISTRY_BUILT)
            except SamovarError as error:
                logger.warning("function %s is not known now: %s", name, error.detail)
                return
            if data is not None:
                deployed = self._take_over(name, data)
            else:
                deployed = self._catalogue.update(name, None) if built else []
            for version in deployed:
                self._on_deployed(version)

    def _take_over(self, name: str, data: bytes | str) -> list[Version]:
        """Take over what is stored of a function; return the versions that became routed.

        One that cannot be read, or makes no sense, stops no other, and stays as it was here.
        """
        record = readable(f"function {name}", data, FunctionRecord)
        try:
            return self._catalogue.update(name, record) if record is not None else []
        except Exception:
            logger.exception("what is stored of function %s cannot be used", name)
            return []


def _ignore(_news: Unwell) -> None:
    """Replace nothing: until somebody says how."""


def has_grown(before: Mapping[str, float], now: Mapping[str, float]) -> bool:
    """Return whether demand rose by so much that it must be looked at before the next tick, or is gone somewhere."""
    return before.keys() != now.keys() or any(demand > GROWTH * before[ref] for ref, demand in now.items())


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value
