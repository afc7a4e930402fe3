"""The versions this node may have to run: what their manifests say, made ready so that the cold path only looks it up.

This module does not know Redis: records are handed in as they change.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from functools import cached_property

import msgspec

from samovar.spec import Manifest, Route, Scaling, concurrency, stand_in, target_concurrency
from samovar_pool.placement import GIB, wants_device
from samovar_storage.records import FunctionRecord

BASE_NEED_BYTES = 64 << 20  # of its own, for a version never measured


@dataclass(frozen=True)
class Version:
    """One version. scaling: the operator's override or the manifest's, without floors for one that is on trial or was
    left. routed: its route gives it traffic, or its successor is not ready yet."""

    manifest: Manifest
    scaling: Scaling
    routed: bool

    @cached_property
    def ref(self) -> str:
        """`name@version`."""
        return self.manifest.ref

    @cached_property
    def manifest_json(self) -> bytes:
        """The manifest as an instance gets it, encoded once."""
        return msgspec.json.encode(self.manifest)

    @cached_property
    def target_concurrency(self) -> float:
        """Invocations per instance the autoscaler aims at."""
        return target_concurrency(self.manifest, self.scaling)

    @cached_property
    def concurrency(self) -> int:
        """Slots of one instance."""
        return concurrency(self.manifest)

    @cached_property
    def weights_bytes(self) -> int:
        """Size of all weight files."""
        return sum(file.size_bytes for file in self.manifest.weights)

    @cached_property
    def declared_device_bytes(self) -> int:
        """Device memory to expect before any was measured: as declared, else the weights and a quarter for the rest."""
        resources = self.manifest.resources
        if not wants_device(resources):
            return 0
        if resources.gpu_memory_gib is not None:
            return int(resources.gpu_memory_gib * GIB)
        return self.weights_bytes * 5 // 4 // max(1, resources.gpus)

    def host_need_bytes(self, learned_own_bytes: int, is_first: bool) -> int:
        """Return what one more instance takes: its own, as learned, and the weights if nobody maps them yet."""
        own = learned_own_bytes or BASE_NEED_BYTES
        return own + (self.weights_bytes if is_first else 0)


class Catalogue:
    """All known versions by ref. Versions the route has left stay known while they have instances.

    floors: refs of routed versions that have one. with_requirements: of those that have them, and whose layer was not
    found yet. rolling: by name, the routes on which a version's instances follow another's. A change costs what its
    function costs, however many others there are.
    """

    def __init__(self) -> None:
        self.versions: dict[str, Version] = {}
        self.floors: set[str] = set()
        self.with_requirements: set[str] = set()
        self.rolling: dict[str, Route] = {}
        self._settled_at_s: dict[str, float] = {}
        self._on_devices: set[str] = set()
        self._functions: dict[str, FunctionRecord] = {}
        self._refs: dict[str, set[str]] = {}

    @property
    def uses_devices(self) -> bool:
        """Whether any routed version wants an accelerator."""
        return bool(self._on_devices)

    def update(self, name: str, record: FunctionRecord | None) -> list[Version]:
        """Take over what is now true of a function, None if it was deleted; return the versions that became routed."""
        if record is not None and self._functions.get(name) == record:
            return []
        named = self._named(record) if record is not None else {}
        fresh = [version for ref, version in named.items() if version.routed and not self._is_routed(ref)]
        for ref in self._refs.get(name, set()) - named.keys():
            version = self.versions[ref]
            self._put(Version(version.manifest, _without_floors(version.scaling), False))
        for version in named.values():
            self._put(version)
        self.rolling.pop(name, None)
        if record is None:
            self._functions.pop(name, None)
            self._settled_at_s.pop(name, None)
        else:
            self._functions[name] = record
            self._note_rolling(record.route)
        return fresh

    def _named(self, record: FunctionRecord) -> dict[str, Version]:
        """Return ref → version of all that the record's route names; those that have no floors of their own without.

        What was before keeps its floors until it is succeeded, if this manager has seen it serve: one that starts does
        not bring it up anew beside its successor.
        """
        route, named = record.route, {}
        stand_ins = {stand_in(route, manifest) for manifest in record.manifests.values()}
        trials = {trial.version for trial in (route.canary, route.mirror) if trial is not None}
        for number, manifest in record.manifests.items():
            scaling, ref = route.scaling or manifest.scaling, manifest.ref
            is_before = number in route.previous and not self.is_settled(route)
            if route.shares.get(number, 0) > 0 or (is_before and self._serves(ref, scaling)):
                named[ref] = Version(manifest, scaling, True)
            elif manifest.version in trials or manifest.version in stand_ins:
                named[ref] = Version(manifest, _without_floors(scaling), True)
            elif is_before:
                named[ref] = Version(manifest, _without_floors(scaling), False)
        return named

    def _serves(self, ref: str, scaling: Scaling) -> bool:
        """Return whether this manager has known a version as one with traffic of its own, and so with its floors."""
        known = self.versions.get(ref)
        return known is not None and known.routed and known.scaling.min_instances == scaling.min_instances

    def is_settled(self, route: Route) -> bool:
        """Return whether nothing on the route waits any more for the versions of its shares to come up."""
        return not route.previous or self._settled_at_s.get(route.name) == route.moved_at_s

    def route(self, name: str) -> Route | None:
        """Return the route of a function, None if there is no such function."""
        record = self._functions.get(name)
        return record.route if record is not None else None

    def settle(self, name: str) -> None:
        """The versions of the route's shares are up: those before them have no floors any more, and go when idle."""
        record = self._functions[name]
        self._settled_at_s[name] = record.route.moved_at_s
        del self._functions[name]
        self.update(name, record)

    def _note_rolling(self, route: Route) -> None:
        if route.canary is not None or route.mirror is not None or not self.is_settled(route):
            self.rolling[route.name] = route

    def keep_only(self, names: Collection[str]) -> None:
        """Functions that are not among `names` were deleted."""
        for name in self._functions.keys() - names:
            self.update(name, None)

    def replace_all(self, records: dict[str, FunctionRecord]) -> None:
        """Take over the whole index; functions not in it were deleted."""
        self.keep_only(records)
        for name, record in records.items():
            self.update(name, record)

    def is_deleted(self, ref: str) -> bool:
        """Return whether the function of `ref` no longer exists at all."""
        return ref.rpartition("@")[0] not in self._functions

    def forget(self, ref: str) -> None:
        """Drop a version that is unrouted and has nothing left running."""
        version = self.versions.pop(ref, None)
        if version is not None:
            name = version.manifest.name
            self._refs[name].discard(ref)
            if not self._refs[name]:
                del self._refs[name]
            self._sort(ref, None)

    def layer_found(self, ref: str) -> None:
        """The layer of `ref` is on this node: from now on it needs a look only when it is wanted."""
        self.with_requirements.discard(ref)

    def _is_routed(self, ref: str) -> bool:
        version = self.versions.get(ref)
        return version is not None and version.routed

    def _put(self, version: Version) -> None:
        self.versions[version.ref] = version
        self._refs.setdefault(version.manifest.name, set()).add(version.ref)
        self._sort(version.ref, version if version.routed else None)

    def _sort(self, ref: str, version: Version | None) -> None:
        """Have `ref` in exactly the sets its routed version belongs to, in none without one."""
        for refs in (self.floors, self.with_requirements, self._on_devices):
            refs.discard(ref)
        if version is None:
            return
        if version.scaling.min_instances:
            self.floors.add(ref)
        if version.manifest.requirements:
            self.with_requirements.add(ref)
        if wants_device(version.manifest.resources):
            self._on_devices.add(ref)


def _without_floors(scaling: Scaling) -> Scaling:
    return msgspec.structs.replace(scaling, min_instances=0, buffer_instances=0)
