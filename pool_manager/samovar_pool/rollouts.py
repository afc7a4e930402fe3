"""Watches canaries: reads what their calls show each second, judges, and promotes or rolls back by a conditional write.

What is remembered of a canary are sums of evidence; a new leader gathers them again from the traffic that Redis keeps.
Every canary is judged and reported on; only one that was started with `auto` is acted on. This module does not know how
a verdict is reached.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import redis.asyncio as redis_async

from samovar.errors import RequestError, SamovarError
from samovar.lifecycle import State
from samovar.spec import Canary, Route, parse_ref, version_ref
from samovar_pool.backends.local import LocalBackend
from samovar_pool.verdict import Evidence, Verdict, judge, side_of, weigh
from samovar_pool.versions import Catalogue
from samovar_storage import live, routes
from samovar_storage.records import Decision
from samovar_storage.registry import Registry
from samovar_storage.traffic import TrafficSlice, read_slices
from samovar_storage.trials import TrialReport, put_trial

logger = logging.getLogger("samovar.pool")

LOOK_EVERY_S = 1.0
LAG_S = 3  # a second's traffic is written by all gateways within so many
MAX_BEHIND_S = 900  # evidence older than this is not gathered again by a new leader


@dataclass
class Watch:
    """One canary under observation. done_s: evidence is complete up to this second (unix)."""

    canary: Canary
    evidence: Evidence
    done_s: int


class Rollouts:
    """`run` for ever. record: keeps a decision of a function."""

    def __init__(
        self,
        redis: redis_async.Redis,
        registry: Registry,
        catalogue: Catalogue,
        backend: LocalBackend,
        record: Callable[[str, list[Decision]], None],
    ) -> None:
        self._redis = redis
        self._registry = registry
        self._catalogue = catalogue
        self._backend = backend
        self._record = record
        self._watched: dict[str, Watch] = {}

    async def run(self) -> None:
        """Look at every canary each second, for ever."""
        while True:
            await asyncio.sleep(LOOK_EVERY_S)
            on_trial = {name: route for name, route in self._catalogue.rolling.items() if route.canary is not None}
            for name in self._watched.keys() - on_trial.keys():
                del self._watched[name]
            for route in on_trial.values():
                try:
                    await self.look(route, time.time())
                except SamovarError as error:
                    logger.warning("the canary of %s was not judged: %s", route.name, error.detail)

    async def look(self, route: Route, now_s: float) -> None:
        """The canary of `route` is judged as of `now_s` (unix), reported on and, if it goes by itself, acted upon."""
        canary = route.canary
        assert canary is not None
        watch = self._watched.get(route.name)
        if watch is None or watch.canary != canary:
            since_s = int(max(canary.started_at_s, now_s - MAX_BEHIND_S))
            watch = self._watched[route.name] = Watch(canary, Evidence(), since_s)
        await self._gather(route, watch, int(now_s) - LAG_S)
        ref = version_ref(route.name, canary.version)
        ready = self._ready(route.name)
        num_failures, why = (0, "") if canary.version in ready else await self._boot_failures(ref)
        verdict = judge(watch.evidence, now_s - canary.started_at_s, canary.bake_s, num_failures, why)
        report = TrialReport(
            ref=ref, at_s=now_s, action=verdict.action, rule=verdict.rule, reason=verdict.reason, inputs=verdict.inputs
        )
        await put_trial(self._redis, route.name, report)
        if canary.auto and verdict.action != "wait":
            await self._carry_out(route.name, canary, verdict, ready)

    async def _gather(self, route: Route, watch: Watch, until_s: int) -> None:
        """Weigh every second before `until_s` that was not weighed yet, in order."""
        if until_s <= watch.done_s:
            return
        tried = await self._seconds([watch.canary.version], route.name, watch.done_s)
        stable = await self._seconds(map(int, route.shares), route.name, watch.done_s)
        for second in range(watch.done_s, until_s):
            if second in tried or second in stable:
                sides = (side_of(s.calls for s in found.get(second, ())) for found in (tried, stable))
                watch.evidence = weigh(watch.evidence, *sides)
        watch.done_s = until_s

    async def _seconds(self, versions: Iterable[int], name: str, since_s: int) -> dict[int, list[TrafficSlice]]:
        """Return second → the slices of these versions, of all gateways, that begin in it."""
        found: dict[int, list[TrafficSlice]] = {}
        for version in versions:
            for part in await read_slices(self._redis, version_ref(name, version), since_s):
                found.setdefault(int(part.at_s), []).append(part)
        return found

    def _ready(self, name: str) -> set[int]:
        """Return the versions of a function with an instance ready."""
        ready = (i.ref for i in self._backend.instances.values() if i.state is State.READY and i.role == "instance")
        return {version for found, version in map(parse_ref, filter(None, ready)) if found == name}

    async def _boot_failures(self, ref: str) -> tuple[int, str]:
        """Return the boots in a row that failed by the version's own fault, and why the last of them did."""
        failure = await live.boot_failure(self._redis, ref)
        return (failure.num_failures, failure.detail) if failure is not None and failure.status < 503 else (0, "")

    async def _carry_out(self, name: str, canary: Canary, verdict: Verdict, ready: set[int]) -> None:
        """Make the one conditional write, if the canary is still the one that was judged; keep the decision."""
        change = routes.promoted if verdict.action == "promote" else routes.rolled_back
        author = routes.Author("auto", time.time(), ready, verdict.reason)
        try:
            await asyncio.to_thread(self._registry.update_route, name, partial(change, author=author, expected=canary))
        except RequestError as error:
            logger.info("the verdict on %s@%d is void: %s", name, canary.version, error.detail)
            return
        logger.warning("%s of %s@%d: %s", verdict.action, name, canary.version, verdict.reason)
        decision = Decision(
            at_s=time.time(),
            ref=version_ref(name, canary.version),
            action=verdict.action,
            rule=f"{verdict.rule}: {verdict.reason}",
            desired=0,
            ready=int(canary.version in ready),
            inputs=verdict.inputs,
        )
        self._record(name, [decision])
