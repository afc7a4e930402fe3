"""Who leaves when memory is full: templates first, then the idle instance that is cheapest to miss.

Cheapest to miss is the lowest reload cost x recent use (GreedyDual's idea without its aging: residency does that here).
Never one with work in flight, never below a floor, never before its minimum residency. This module does not know how
memory is measured nor how an instance is stopped.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping

from samovar.lifecycle import State
from samovar_pool.model import InstanceView, VersionView

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
    for candidate in _candidates(instances, versions, for_ref, now_s, min_residency_s):
        if freed >= need_bytes:
            break
        if candidate.role == "instance":
            if spare.get(candidate.ref, 1) <= 0:
                continue
            spare[candidate.ref] = spare.get(candidate.ref, 1) - 1
        chosen.append(candidate)
        freed += candidate.memory_bytes
    return chosen if freed >= need_bytes else []


def _candidates(
    instances: list[InstanceView],
    versions: Mapping[str, VersionView],
    for_ref: str,
    now_s: float,
    min_residency_s: float,
) -> list[InstanceView]:
    templates = [i for i in instances if i.role == "template" and i.state is State.READY and i.ref != for_ref]
    idle = [
        i
        for i in instances
        if i.role == "instance"
        and i.state is State.READY
        and i.in_flight == 0
        and i.ref != for_ref
        and i.ready_at_s is not None
        and now_s - i.ready_at_s >= min_residency_s
    ]
    cost = {ref: version.reload_cost_s * version.recent_use for ref, version in versions.items()}
    templates.sort(key=lambda i: (cost.get(i.ref, 0.0), i.instance_id))
    idle.sort(key=lambda i: (cost.get(i.ref, 0.0), i.idle_since_s or now_s, i.instance_id))
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
