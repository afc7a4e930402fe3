"""What the admin routes share: the blocking stores, their threads, and how a change is seen to have arrived.

This module does not know HTTP.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable

import msgspec

from samovar.errors import FunctionNotFound, InvalidInput
from samovar.spec import Manifest, Route, Scaling
from samovar_dispatch.functions import near_names, unknown_function
from samovar_dispatch.health.guard import BreakerView
from samovar_gateway.admin.manifests import blobs_of, check_manifest
from samovar_gateway.admin.requests import AnyRequest, invalid
from samovar_gateway.admin.workers import Workers
from samovar_gateway.state import GatewayState
from samovar_storage import routes
from samovar_storage.answers import forget_answers
from samovar_storage.audit import AuditLog
from samovar_storage.blobs import Blobs
from samovar_storage.live import connect_sync
from samovar_storage.records import FunctionRecord

LIVE_TIMEOUT_S = 5.0
_POLL_S = 0.005


class Services:
    """One per gateway. Every method may be called from the event loop; store work runs in threads."""

    def __init__(self, state: GatewayState) -> None:
        self.state = state
        self._redis = connect_sync(state.settings.redis_url.reveal())
        self.blobs = Blobs(state.objects, self._redis)
        self.stores = Workers("admin", num_threads=8, max_waiting=256)
        self.hashing = Workers("verify", num_threads=2, max_waiting=64)
        self.audit = AuditLog(state.objects, state.gateway_id)
        self.num_followers = 0

    def close(self) -> None:
        """Let go of threads and connections."""
        self.stores.close()
        self.hashing.close()
        self._redis.close()

    async def record(self, name: str) -> FunctionRecord:
        """Return the index entry of a function. Raises FunctionNotFound with near names."""
        try:
            return await self.stores.run(self.state.registry.record, name)
        except FunctionNotFound as error:
            raise await self._not_found(name) from error

    async def publish(
        self, name: str, manifest: Manifest, by: str = "", trial: routes.Trial | None = None, mirror: int = 0
    ) -> Manifest:
        """A new version of the function exists and this gateway routes to it; return its numbered manifest.

        by: key id of who deploys. trial, mirror: as in `Registry.publish_version`.
        Raises: DeployRefused, StoreUnavailable, InvalidInput, Conflict (pinned).
        """
        check_manifest(name, manifest)
        await self.stores.run(self._check_blobs, manifest)
        published = await self.stores.run(
            self.state.registry.publish_version, manifest, by, self.ready(name), trial, mirror
        )
        await self._arrives(lambda: self._routed(name, published.version))
        return published

    async def reroute(self, name: str, change: Callable[[Route], Route]) -> Route:
        """The function's route is what `change` makes of it, and this gateway follows it.

        Raises: FunctionNotFound with near names, and what `Registry.update_route` does.
        """
        try:
            route = await self.stores.run(self.state.registry.update_route, name, change)
        except FunctionNotFound as error:
            raise await self._not_found(name) from error
        await self._arrives(lambda: self._has_route(name, route))
        return route

    def ready(self, name: str) -> set[int]:
        """Return the versions of a function that have instances ready for calls from here."""
        entry = self.state.functions.entries.get(name)
        return entry.ready() if entry is not None else set()

    def pinned(self, name: str) -> int | None:
        """Return the version that a function is pinned to, None if it is not."""
        entry = self.state.functions.entries.get(name)
        return entry.record.route.pinned if entry is not None else None

    def num_ready(self, name: str) -> dict[str, int]:
        """Return version → instances ready for calls from here, of the versions that a function's route names."""
        entry = self.state.functions.entries.get(name)
        return {str(version): entry.num_ready(version) for version in sorted(entry.versions)} if entry else {}

    def num_calls(self, name: str) -> dict[str, int]:
        """Return protocol → calls that ended here, of the versions that a function's route names."""
        entry = self.state.functions.entries.get(name)
        calls: Counter[str] = Counter()
        for version in entry.versions.values() if entry else ():
            for protocol, outcomes in version.stats.outcomes.items():
                calls[protocol] += sum(outcomes.values())
        return {protocol: number for protocol, number in calls.items() if number}

    def breakers(self, name: str) -> dict[str, BreakerView]:
        """Return `name@version` → its circuit breaker here, of the versions that a function's route names."""
        entry = self.state.functions.entries.get(name)
        view = self.state.dispatcher.guard.view
        return {version.ref: view(version) for version in entry.versions.values()} if entry else {}

    async def rescale(self, name: str, changes: dict[str, object]) -> Route:
        """The function's scaling override has these values, other fields as they were.

        Raises: FunctionNotFound, InvalidInput (unknown field, wrong type), DeployRefused (a rule between fields).
        """
        record = await self.record(name)
        declared = record.manifests[max(record.route.shares, key=lambda version: record.route.shares[version])].scaling

        def change(route: Route) -> Route:
            return msgspec.structs.replace(route, scaling=merge_scaling(route.scaling or declared, changes))

        return await self.reroute(name, change)

    async def delete(self, name: str) -> None:
        """The function is gone with every answer kept of it, and this gateway no longer routes to it.

        Raises: FunctionNotFound with near names.
        """
        try:
            await self.stores.run(self.state.registry.delete_function, name)
        except FunctionNotFound as error:
            raise await self._not_found(name) from error
        await self._arrives(lambda: name not in self.state.functions.entries)
        await forget_answers(self.state.redis, [name])

    async def _not_found(self, name: str) -> FunctionNotFound:
        return unknown_function(name, near_names(name, self.state.functions.entries))

    def _check_blobs(self, manifest: Manifest) -> None:
        for blob in blobs_of(manifest):
            if not self.blobs.is_present(blob):
                raise InvalidInput(
                    f"the blob {blob.sha256} of {blob.size_bytes} bytes is not stored and verified: upload it first",
                    sha256=blob.sha256,
                )

    def _routed(self, name: str, version: int) -> bool:
        entry = self.state.functions.entries.get(name)
        return entry is not None and entry.record.route.latest >= version

    def _has_route(self, name: str, route: Route) -> bool:
        entry = self.state.functions.entries.get(name)
        return entry is None or entry.record.route.updated_at_s >= route.updated_at_s

    async def _arrives(self, done: Callable[[], bool]) -> None:
        """Wait until this gateway's own table shows the change: what was answered is true for the next request.

        The change is stored either way, so a table that lags (Redis is away) only ends the wait.
        """
        deadline_s = time.monotonic() + LIVE_TIMEOUT_S
        while not done() and time.monotonic() < deadline_s:  # noqa: ASYNC110 - the mirrored table tells nobody
            await asyncio.sleep(_POLL_S)


def services_of(request: AnyRequest) -> Services:
    """Return the admin services of the gateway that serves this request."""
    services: Services = request.app.state.admin
    return services


def merge_scaling(base: Scaling, changes: dict[str, object]) -> Scaling:
    """Return `base` with `changes`. Raises InvalidInput (unknown field, wrong type), DeployRefused (a broken rule)."""
    unknown = sorted(changes.keys() - set(Scaling.__struct_fields__))
    if unknown:
        known = ", ".join(Scaling.__struct_fields__)
        raise InvalidInput(f"no such scaling option {unknown[0]!r}; there are {known}", path=f"$.{unknown[0]}")
    try:
        return msgspec.convert(msgspec.to_builtins(base) | changes, Scaling)
    except msgspec.ValidationError as error:
        raise invalid(error) from error
