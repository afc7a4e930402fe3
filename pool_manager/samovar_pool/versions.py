"""The versions this node may have to run: what their manifests say, made ready so that the cold path only looks it up.

This module does not know Redis: records are handed in as they change.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import msgspec

from samovar.spec import Manifest, Scaling, concurrency, target_concurrency
from samovar_pool.placement import GIB, wants_device
from samovar_storage.records import FunctionRecord

BASE_NEED_BYTES = 64 << 20  # of its own, for a version never measured


@dataclass(frozen=True)
class Version:
    """One version. scaling: the operator's override or the manifest's. routed: its route gives it traffic."""

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

    floors, with_requirements: refs of routed versions that have them. uses_devices: any routed version does.
    """

    def __init__(self) -> None:
        self.versions: dict[str, Version] = {}
        self.floors: set[str] = set()
        self.with_requirements: set[str] = set()
        self.uses_devices = False
        self._functions: dict[str, FunctionRecord] = {}

    def update(self, name: str, record: FunctionRecord | None) -> None:
        """Take over what is now true of a function; None means it was deleted."""
        self._apply(name, record)
        self._index()

    def _apply(self, name: str, record: FunctionRecord | None) -> None:
        if record is not None and self._functions.get(name) == record:
            return
        routed = _versions_of(record) if record is not None else {}
        for ref, version in list(self.versions.items()):
            if version.manifest.name == name and ref not in routed:
                no_floor = msgspec.structs.replace(version.scaling, min_instances=0, buffer_instances=0)
                self.versions[ref] = Version(version.manifest, no_floor, False)
        self.versions |= routed
        if record is None:
            self._functions.pop(name, None)
        else:
            self._functions[name] = record

    def replace_all(self, records: dict[str, FunctionRecord]) -> None:
        """Take over the whole index; functions not in it were deleted."""
        for name in self._functions.keys() - records.keys():
            self._apply(name, None)
        for name, record in records.items():
            self._apply(name, record)
        self._index()

    def is_deleted(self, ref: str) -> bool:
        """Return whether the function of `ref` no longer exists at all."""
        return ref.rpartition("@")[0] not in self._functions

    def forget(self, ref: str) -> None:
        """Drop a version that is unrouted and has nothing left running."""
        self.versions.pop(ref, None)
        self._index()

    def _index(self) -> None:
        routed = [version for version in self.versions.values() if version.routed]
        self.floors = {version.ref for version in routed if version.scaling.min_instances}
        self.with_requirements = {version.ref for version in routed if version.manifest.requirements}
        self.uses_devices = any(wants_device(version.manifest.resources) for version in routed)


def _versions_of(record: FunctionRecord) -> dict[str, Version]:
    routed = {}
    for manifest in record.manifests.values():
        share = record.route.shares.get(str(manifest.version), 0)
        scaling = record.route.scaling or manifest.scaling
        if share > 0:
            routed[manifest.ref] = Version(manifest, scaling, True)
    return routed
