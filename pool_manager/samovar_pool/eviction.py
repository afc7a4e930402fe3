"""Who leaves when memory is full: templates first, then idle instances, those for queued jobs before the others, by
what is cheapest to miss; last, those that run queued jobs and are there for nothing else: what they run ends first.

Cheapest to miss is the lowest reload cost x recent use (GreedyDual's idea without its aging: residency does that here).
Never one that somebody who called waits for, never below a floor; never before its minimum residency, unless it is
there for jobs. This module does not know how memory is measured nor how an instance is stopped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from samovar.lifecycle import State
from samovar_pool.model import DeviceView, InstanceView, VersionView
from samovar_pool.placement import place

THRASH_WINDOW_S = 60.0
THRASH_EVICTIONS = 4  # evicted versions that came back within the window


def victims(
    instances: Iterable[InstanceView],
    versions: Mapping[str, VersionView],
    need_bytes: int,
    for_ref: str,
    now_s: float,
    min_residency_s: float,
) -> list[InstanceView]:
    """Return whom to stop so that `need_bytes` come free for `for_ref`, cheapest first; empty if that is impossible.

    Args:
        instances: all of them. versions: costs and floors by ref. need_bytes: > 0. min_residency_s: an instance younger
        than this (since it was ready) stays.
    """
    instances = list(instances)
    chosen: list[InstanceView] = []
    freed = 0
    spare = {ref: _num_ready(instances, ref) - version.floor for ref, version in versions.items()}
    working = [i for i in for_jobs(instances, versions, for_ref) if i.in_flight]
    for candidate in _candidates(instances, versions, for_ref, now_s, min_residency_s) + working:
        if freed >= need_bytes:
            break
        if candidate.role == "instance":
            if spare.get(candidate.ref, 1) <= 0:
                continue
            spare[candidate.ref] = spare.get(candidate.ref, 1) - 1
        chosen.append(candidate)
        freed += candidate.memory_bytes
    return chosen if freed >= need_bytes else []


def for_jobs(
    instances: Iterable[InstanceView], versions: Mapping[str, VersionView], for_ref: str
) -> list[InstanceView]:
    """Return the ready instances that are there for queued jobs alone, not those of `for_ref`: idle ones first."""
    serving = [i for i in instances if i.role == "instance" and i.state is State.READY and i.ref != for_ref]
    serving.sort(key=lambda i: (i.in_flight, i.instance_id))
    left = {ref: _num_ready(serving, ref) - version.desired + version.for_jobs for ref, version in versions.items()}
    found: list[InstanceView] = []
    for instance in serving:
        version = versions.get(instance.ref)
        if version is not None and version.for_jobs and left[instance.ref] > 0:
            left[instance.ref] -= 1
            found.append(instance)
    return found


def device_victims(
    version: VersionView,
    devices: Sequence[DeviceView],
    leaving: Iterable[InstanceView],
    staying: Iterable[InstanceView],
    versions: Mapping[str, VersionView],
) -> list[InstanceView] | None:
    """Return whom to stop so that one more instance of `version` finds its devices, besides those who leave anyway.

    Only those there for queued jobs alone give way. None if that is not enough.
    """
    left = {device.device: device for device in devices}
    chosen: list[InstanceView] = []
    on_their_way = [(instance, False) for instance in leaving]
    for instance, is_asked in on_their_way + [(i, True) for i in for_jobs(staying, versions, version.ref)]:
        if left.keys().isdisjoint(instance.devices):
            continue
        _vacate(left, instance, versions)
        if is_asked:
            chosen.append(instance)
        if place(version.resources, version.device_need_bytes, list(left.values())) is not None:
            return chosen
    return None


def _vacate(devices: dict[str, DeviceView], instance: InstanceView, versions: Mapping[str, VersionView]) -> None:
    """Note in `devices` what is free once this instance is gone."""
    version = versions.get(instance.ref)
    freed = version.device_need_bytes if version is not None else 0
    for name in devices.keys() & set(instance.devices):
        device = devices[name]
        holders = max(0, device.holders - 1)
        free_bytes = min(device.total_bytes, device.free_bytes + freed)
        exclusive = device.exclusive and holders > 0
        devices[name] = replace(device, free_bytes=free_bytes, holders=holders, exclusive=exclusive)


def _candidates(
    instances: list[InstanceView],
    versions: Mapping[str, VersionView],
    for_ref: str,
    now_s: float,
    min_residency_s: float,
) -> list[InstanceView]:
    templates = [i for i in instances if i.role == "template" and i.state is State.READY and i.ref != for_ref]
    jobs = {i.instance_id for i in for_jobs(instances, versions, for_ref)}
    idle = [
        i
        for i in instances
        if i.role == "instance"
        and i.state is State.READY
        and i.in_flight == 0
        and i.ref != for_ref
        and i.ready_at_s is not None
        and (now_s - i.ready_at_s >= min_residency_s or i.instance_id in jobs)
    ]
    cost = {ref: version.reload_cost_s * version.recent_use for ref, version in versions.items()}
    templates.sort(key=lambda i: (cost.get(i.ref, 0.0), i.instance_id))
    idle.sort(key=lambda i: (i.instance_id not in jobs, cost.get(i.ref, 0.0), i.idle_since_s or now_s, i.instance_id))
    return templates + idle


def _num_ready(instances: list[InstanceView], ref: str) -> int:
    return sum(i.ref == ref and i.role == "instance" and i.state is State.READY for i in instances)


class ThrashAlarm:
    """Notices versions that are evicted and loaded again over and over."""

    def __init__(self) -> None:
        self._evicted: dict[str, float] = {}
        self._returns: deque[float] = deque()

    def evicted(self, ref: str, now_s: float) -> None:
        """Record that an instance of `ref` was evicted."""
        self._evicted[ref] = now_s

    def loaded(self, ref: str, now_s: float) -> bool:
        """Record a load of `ref`; return True when evicted versions keep coming back: memory is too small."""
        at_s = self._evicted.pop(ref, None)
        while self._returns and self._returns[0] < now_s - THRASH_WINDOW_S:
            self._returns.popleft()
        if at_s is None or now_s - at_s > THRASH_WINDOW_S:
            return False
        self._returns.append(now_s)
        return len(self._returns) >= THRASH_EVICTIONS
