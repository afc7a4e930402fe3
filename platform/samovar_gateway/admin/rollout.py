"""Routes that move traffic: `POST /v1/functions/{name}/route/…`, and `GET …/why`.

Each change is one conditional write of the route, by a pure function of `samovar_storage.routes`, and `undo` takes the
last one back. This module does not know how traffic follows a route.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Annotated, Literal

import msgspec
import redis.asyncio as redis_async
from litestar import Controller, get, post

from samovar.errors import InvalidInput
from samovar.spec import Route, version_ref
from samovar.values import Struct
from samovar_dispatch.health.guard import BreakerView
from samovar_gateway.admin.requests import (
    AnyRequest,
    authenticate,
    authorise,
    invalid,
    path_parameter,
    read_body,
    require_sight,
)
from samovar_gateway.admin.services import Services, services_of
from samovar_storage import live, routes
from samovar_storage.records import BootFailure, Decision
from samovar_storage.trials import MirrorReport, TrialReport, mirrored, trial

NUM_DECISIONS = 50


class CanaryBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A trial. version: 0 = the canary there is, else the latest. percent: 1..99 of calls.

    auto: promoted or rolled back by itself after `bake_s` seconds of evidence, > 0. sticky: "", "key" or
    "header:<name>". None keeps what there is; a version that was not on trial has no auto and 600 s.
    """

    percent: int
    version: int = 0
    auto: bool | None = None
    bake_s: float | None = None
    sticky: str | None = None


class RollbackBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """to: the version that gets all traffic; 0 = what there was before. reason: kept in the route's history."""

    to: int = 0
    reason: Annotated[str, msgspec.Meta(max_length=500)] = ""


class PinBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """version: what gets all traffic and keeps it, 0 = the one with the most. off: end the pin instead."""

    version: int = 0
    off: bool = False


class MirrorBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """version: what gets copies, 0 = the mirror there is, else the latest. percent: 0..100 of calls, 0 ends it."""

    percent: int
    version: int = 0


class DeployOptions(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The query of a deploy. canary: the new version's percent on trial, 0 = all traffic; auto, bake_s, sticky: of that
    trial. mirror: it only gets copies of this percent of calls."""

    canary: int = 0
    auto: bool = False
    bake_s: float = 600.0
    sticky: str | None = None
    mirror: int = 0

    def trial(self) -> routes.Trial | None:
        """Return how the new version is tried out, None if it is not. Raises InvalidInput."""
        if self.canary and self.mirror:
            raise InvalidInput("a new version is a canary or a mirror, not both", path="$.mirror")
        if not self.canary and self.auto:
            raise InvalidInput("auto is for a canary: give its percent", path="$.auto")
        if not 0 <= self.mirror <= 100:
            raise InvalidInput("mirror is 0 to 100 percent", path="$.mirror")
        if not self.canary:
            return None
        return routes.Trial(percent=self.canary, auto=self.auto, bake_s=self.bake_s, sticky=self.sticky)


class RouteView(Struct, frozen=True, kw_only=True):
    """A route after a change. changed: what, in one sentence."""

    name: str
    route: Route
    changed: str


class Why(Struct, frozen=True, kw_only=True):
    """Why traffic goes where it goes. serving: where this gateway sends calls now; ready: instances it may give calls,
    by version. calls: that ended at this gateway since it started, by protocol. decisions: of the pool manager, newest
    first. boot_failures, breakers: by `name@version`.
    trial: the verdict on the canary so far. mirror: how the mirror's answers compare."""

    name: str
    route: Route
    serving: Literal["target", "moving", "previous"]
    ready: dict[str, int]
    calls: dict[str, int]
    decisions: list[Decision]
    boot_failures: dict[str, BootFailure]
    breakers: dict[str, BreakerView]
    trial: TrialReport | None = None
    mirror: MirrorReport | None = None


class Rollout(Controller):
    """Canaries, promotion, rollback, pins, mirrors; each reversible by `undo`."""

    path = "/v1/functions/{name:str}"

    @post("/route/canary", status_code=200)
    async def canary(self, request: AnyRequest) -> RouteView:
        """Give a version some percent of the calls; or change the percent of the one on trial."""
        body = await read_body(request, CanaryBody)
        trial = routes.Trial(percent=body.percent, auto=body.auto, bake_s=body.bake_s, sticky=body.sticky)
        return await _change(request, lambda route, author: routes.canaried(route, body.version or None, trial, author))

    @post("/route/promote", status_code=200)
    async def promote(self, request: AnyRequest) -> RouteView:
        """Give the canary all traffic. 409 without one."""
        return await _change(request, routes.promoted)

    @post("/route/rollback", status_code=200)
    async def rollback(self, request: AnyRequest) -> RouteView:
        """Take the canary, or else the version with the traffic, out of use: it may not be routed to again."""
        body = await read_body(request, RollbackBody)
        change = partial(routes.rolled_back, to=body.to or None)
        return await _change(request, change, body.reason)

    @post("/route/pin", status_code=200)
    async def pin(self, request: AnyRequest) -> RouteView:
        """Keep all traffic on a version whatever is deployed, or end that."""
        body = await read_body(request, PinBody)
        if body.off:
            return await _change(request, routes.unpinned)
        return await _change(request, lambda route, author: routes.pinned(route, body.version or None, author))

    @post("/route/mirror", status_code=200)
    async def mirror(self, request: AnyRequest) -> RouteView:
        """Send copies of some percent of the calls to a version, or end that."""
        body = await read_body(request, MirrorBody)
        version = body.version or None
        return await _change(request, lambda route, author: routes.mirrored(route, version, body.percent, author))

    @post("/route/undo", status_code=200)
    async def undo(self, request: AnyRequest) -> RouteView:
        """Take back the last change of the route."""
        return await _change(request, routes.undone)

    @get("/why")
    async def why(self, request: AnyRequest) -> Why:
        """Return the route with its history, who is ready, and the last decisions and failures."""
        name = path_parameter(request, "name")
        services = services_of(request)
        require_sight(authenticate(request), name)
        record = await services.record(name)
        redis = services.state.redis
        refs = [version_ref(name, version) for version in sorted(record.route.receiving())]
        return Why(
            name=name,
            route=record.route,
            serving=_serving(services, name),
            ready=services.num_ready(name),
            calls=services.num_calls(name),
            decisions=await live.decisions(redis, name, NUM_DECISIONS),
            boot_failures=await live.boot_failures(redis, refs),
            breakers=services.breakers(name),
            trial=await _trial_report(redis, record.route),
            mirror=await mirror_report(services, record.route),
        )


def deploy_options(request: AnyRequest) -> DeployOptions:
    """Return what the query of a deploy asks for. Raises InvalidInput."""
    try:
        return msgspec.convert(dict(request.query_params), DeployOptions, strict=False)
    except msgspec.ValidationError as error:
        raise invalid(error) from error


async def _change(request: AnyRequest, change: routes.Command, reason: str = "") -> RouteView:
    """Make one conditional write of the route; answer when this gateway follows it."""
    name = path_parameter(request, "name")
    services = services_of(request)
    principal = authorise(request, "deploy", name)
    author = routes.Author(principal.key_id, time.time(), services.ready(name), reason)
    route = await services.reroute(name, lambda old: change(old, author))
    last = route.history[0]
    return RouteView(name=name, route=route, changed=f"{last.what}: {last.reason}")


async def _trial_report(redis: redis_async.Redis, route: Route) -> TrialReport | None:
    """Return the verdict so far on the canary there is; what is kept of one that is gone counts no more."""
    report = await trial(redis, route.name) if route.canary is not None else None
    if report is None or report.ref != version_ref(route.name, route.canary.version if route.canary else 0):
        return None
    return report


async def mirror_report(services: Services, route: Route) -> MirrorReport | None:
    """Return how the answers of the route's mirror compare; None without one, or without a comparison."""
    if route.mirror is None:
        return None
    return await mirrored(services.state.redis, version_ref(route.name, route.mirror.version))


def _serving(services: Services, name: str) -> Literal["target", "moving", "previous"]:
    entry = services.state.functions.entries.get(name)
    share = entry.moved_share(time.time()) if entry is not None else 1.0
    return "target" if share >= 1.0 else "moving" if share > 0.0 else "previous"
