"""Routes under `/v1/functions`: look, deploy, scale, warm, remove."""

from __future__ import annotations

import time
from collections import Counter
from typing import Any

import msgspec
from litestar import Controller, Response, delete, get, post

from samovar.errors import InvalidInput
from samovar.spec import Manifest, Route, Scaling, version_ref
from samovar.values import Struct
from samovar_dispatch.health.guard import BreakerView
from samovar_gateway.admin.manifests import warnings_of, warnings_of_place
from samovar_gateway.admin.openapi import document
from samovar_gateway.admin.requests import (
    AnyRequest,
    authenticate,
    authorise,
    may_see,
    path_parameter,
    read_body,
    require_sight,
)
from samovar_gateway.admin.rollout import deploy_options, mirror_report
from samovar_gateway.admin.services import Services, services_of
from samovar_storage import live
from samovar_storage.records import BootFailure, Decision, FunctionRecord, VersionStatus, WarmRequest
from samovar_storage.trials import MirrorReport, TrialReport, trial

MAX_WARM_S = 7 * 24 * 3600.0
NUM_DECISIONS = 20


class FunctionSummary(Struct, frozen=True, kw_only=True):
    """One line of the list. states: instances by state, over the routed versions."""

    name: str
    route: Route
    latest: int
    states: dict[str, int]


class FunctionView(Struct, frozen=True, kw_only=True):
    """All there is to say of a function. status, boot_failures, breakers (this gateway's): by `name@version`;
    decisions: newest first. trial: the verdict on the canary so far; mirror: how the mirror's answers compare."""

    name: str
    route: Route
    manifests: dict[str, Manifest]
    status: dict[str, VersionStatus]
    decisions: list[Decision]
    boot_failures: dict[str, BootFailure]
    breakers: dict[str, BreakerView]
    url: str
    trial: TrialReport | None = None
    mirror: MirrorReport | None = None


class Created(Struct, frozen=True, kw_only=True):
    """A version that is live. url: where it is invoked. warnings: what may not be meant, a sentence each."""

    name: str
    version: int
    url: str
    warnings: list[str] = msgspec.field(default_factory=list)


class Scaled(Struct, frozen=True, kw_only=True):
    name: str
    scaling: Scaling


class WarmBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """instances: how many to keep ready, >= 0 (0 withdraws); for_s: how long, 0 < for_s <= 7 days."""

    instances: int = 1
    for_s: float = 1800.0


class Functions(Controller):
    """Functions and their versions."""

    path = "/v1/functions"

    @get()
    async def list_functions(self, request: AnyRequest) -> list[FunctionSummary]:
        """Return every function the key covers, by name."""
        services = services_of(request)
        principal = authenticate(request)
        records = await services.stores.run(services.state.registry.records)
        seen = [records[name] for name in sorted(records) if may_see(principal, name)]
        counts = await _states_by_ref(services)
        return [_summary(record, counts) for record in seen]

    @get("/{name:str}")
    async def get_function(self, request: AnyRequest) -> FunctionView:
        """Return the record of a function, the status of its versions, the last decisions and boot failures."""
        name = path_parameter(request, "name")
        services = services_of(request)
        require_sight(authenticate(request), name)
        record = await services.record(name)
        redis = services.state.redis
        refs = [version_ref(name, version) for version in sorted(record.route.receiving())]
        return FunctionView(
            name=name,
            route=record.route,
            manifests=record.manifests,
            status=await live.statuses(redis, refs),
            decisions=await live.decisions(redis, name, NUM_DECISIONS),
            boot_failures=await live.boot_failures(redis, refs),
            breakers=services.breakers(name),
            url=_invoke_url(request, name),
            trial=await trial(redis, name),
            mirror=await mirror_report(services, record.route),
        )

    @delete("/{name:str}", status_code=204)
    async def delete_function(self, request: AnyRequest) -> None:
        """Remove the function's route and versions; its instances drain, its blobs stay until collected."""
        name = path_parameter(request, "name")
        services = services_of(request)
        authorise(request, "deploy", name)
        await services.delete(name)

    @get("/{name:str}/openapi.json")
    async def openapi(self, request: AnyRequest) -> dict[str, Any]:
        """Return the OpenAPI 3.1 document of the version with most of the traffic."""
        name = path_parameter(request, "name")
        services = services_of(request)
        require_sight(authenticate(request), name)
        record = await services.record(name)
        return document(record.manifests[_main_version(record.route)], str(request.base_url).rstrip("/"))

    @post("/{name:str}/versions", status_code=201)
    async def create_version(self, request: AnyRequest) -> Response[Created]:
        """Make an immutable version of the manifest (sent with version 0) and give it all the traffic.

        The query may ask otherwise: `canary`, `auto`, `bake_s`, `sticky`; or `mirror`.
        """
        name = path_parameter(request, "name")
        services = services_of(request)
        principal, options = authorise(request, "deploy", name), deploy_options(request)
        wanted = options.trial()
        manifest = await read_body(request, Manifest)
        manifest = await services.publish(name, manifest, principal.key_id, wanted, options.mirror)
        warnings = warnings_of(manifest, services.state.functions.entries)
        if manifest.resources.gpus:
            warnings += warnings_of_place(manifest, await live.nodes(services.state.redis))
        if (pinned := services.pinned(name)) is not None:
            warnings.append(f"{name} is pinned to version {pinned}: version {manifest.version} gets no calls")
        made = Created(name=name, version=manifest.version, url=_invoke_url(request, name), warnings=warnings)
        return Response(made, status_code=201, headers={"location": f"/v1/functions/{name}"})

    @post("/{name:str}/scale", status_code=200)
    async def scale(self, request: AnyRequest) -> Scaled:
        """Override some fields of the function's scaling; those left out stay as they are."""
        name = path_parameter(request, "name")
        services = services_of(request)
        authorise(request, "deploy", name)
        changes = await read_body(request, dict[str, Any])
        if not changes:
            raise InvalidInput("say what to change", path="$")
        route = await services.rescale(name, changes)
        assert route.scaling is not None
        return Scaled(name=name, scaling=route.scaling)

    @post("/{name:str}/warm", status_code=200)
    async def warm(self, request: AnyRequest) -> WarmRequest:
        """Keep so many instances ready for a while, whatever the demand; 0 instances withdraw an earlier request."""
        name = path_parameter(request, "name")
        services = services_of(request)
        authorise(request, "deploy", name)
        body = await read_body(request, WarmBody)
        record = await services.record(name)
        wanted = _warm_request(record, body, time.time())
        await live.put_warm(services.state.redis, wanted, time.time())
        return wanted


def _warm_request(record: FunctionRecord, body: WarmBody, now_s: float) -> WarmRequest:
    version = _main_version(record.route)
    limit = (record.route.scaling or record.manifests[version].scaling).max_instances
    if not 0 <= body.instances <= limit:
        raise InvalidInput(f"instances must be 0 to max_instances, which is {limit}", path="$.instances")
    if not 0 < body.for_s <= MAX_WARM_S:
        raise InvalidInput(f"for_s must be above 0 and at most {MAX_WARM_S:.0f}", path="$.for_s")
    ref = version_ref(record.name, int(version))
    return WarmRequest(ref=ref, instances=body.instances, until_s=now_s + body.for_s if body.instances else now_s)


def _main_version(route: Route) -> str:
    """Return the version with the largest share, the newest of equals."""
    return max(route.shares, key=lambda version: (route.shares[version], int(version)))


def _summary(record: FunctionRecord, counts: dict[str, Counter[str]]) -> FunctionSummary:
    states: Counter[str] = Counter()
    for version in record.route.receiving():
        states += counts.get(version_ref(record.name, version), Counter())
    return FunctionSummary(name=record.name, route=record.route, latest=record.route.latest, states=dict(states))


async def _states_by_ref(services: Services) -> dict[str, Counter[str]]:
    counts: dict[str, Counter[str]] = {}
    for instance in (await live.instances(services.state.redis)).values():
        counts.setdefault(instance.ref, Counter())[instance.state] += 1
    return counts


def _invoke_url(request: AnyRequest, name: str) -> str:
    return f"{str(request.base_url).rstrip('/')}/v1/functions/{name}/invoke"
