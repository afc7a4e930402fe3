"""Moves instances into cgroups of their own when that disturbs nobody, and tells why one was killed.

Entering a cgroup holds up forks and new threads everywhere for some 10 ms, so it waits until nothing starts or loads,
but no longer than MAX_WAIT_S; until then a process is in its parent's group. This module does not know cgroup files.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping

from samovar.lifecycle import State
from samovar.spec import Resources
from samovar_pool.backends.cgroups import Limits
from samovar_pool.backends.instance import Instance
from samovar_pool.backends.sandbox import Sandboxing
from samovar_pool.versions import Version

CALM_S = 0.3
MAX_WAIT_S = 2.0
LOOK_EVERY_S = 0.1
MAX_TASKS, MAX_TASKS_WHERE_FORKS = 4096, 256
_REMOVE_AFTER_S = (0.0, 0.1, 1.0, 5.0)  # a group cannot be removed before the last process in it is reaped
GIB = 1 << 30


class Groups:
    """The cgroups of a backend's instances; without any to be had, all of it does nothing.

    instances: those that live, as the backend keeps them. on_gained: told of a ready one whose sandbox has grown.
    """

    def __init__(
        self, sandboxing: Sandboxing, instances: Mapping[str, Instance], on_gained: Callable[[Instance], None]
    ) -> None:
        self._cgroups = sandboxing.cgroups
        self._max_memory_bytes = sandboxing.max_memory_bytes
        self._instances = instances
        self._on_gained = on_gained
        self._one_at_a_time = asyncio.Lock()
        self._busy_at_s = float("-inf")

    async def admit(self, instance: Instance) -> None:
        """The instance is in a group of its own afterwards, under its version's limits, if it still lives."""
        if self._cgroups is None:
            return
        asked_at_s = time.monotonic()
        async with self._one_at_a_time:
            await self._wait_for_calm(asked_at_s)
            limits = self._limits(instance.version)
            instance.groups = await asyncio.to_thread(self._cgroups.enter, instance.instance_id, instance.pid, limits)
        if self._instances.get(instance.instance_id) is not instance:
            await self.remove(instance)
        elif instance.version is not None:
            await self.specialised(instance)  # it may have become one of a version meanwhile
            if instance.state is State.READY:
                self._on_gained(instance)

    async def _wait_for_calm(self, asked_at_s: float) -> None:
        while (now_s := time.monotonic()) - asked_at_s < MAX_WAIT_S:
            if any(i.state in (State.STARTING, State.LOADING) for i in self._instances.values()):
                self._busy_at_s = now_s
            if now_s - self._busy_at_s >= CALM_S:
                return
            await asyncio.sleep(LOOK_EVERY_S)

    async def specialised(self, instance: Instance) -> None:
        """Its limits are those of its version afterwards."""
        if self._cgroups is not None and instance.groups:
            await asyncio.to_thread(self._cgroups.limit, instance.instance_id, self._limits(instance.version))

    def was_out_of_memory(self, instance: Instance) -> bool:
        """Return, and note, whether the kernel killed in its group for want of memory."""
        if self._cgroups is not None and instance.groups:
            instance.was_out_of_memory = self._cgroups.was_out_of_memory(instance.instance_id)
        return instance.was_out_of_memory

    async def remove(self, instance: Instance) -> None:
        """End what the instance left running, and remove its group."""
        for pause_s in _REMOVE_AFTER_S if self._cgroups is not None and instance.groups else ():
            await asyncio.sleep(pause_s)
            if self._cgroups is None or await asyncio.to_thread(self._cgroups.remove, instance.instance_id):
                return

    async def close(self) -> None:
        """Remove the folder of all groups, once they are gone."""
        if self._cgroups is not None:
            await asyncio.to_thread(self._cgroups.close)

    def _limits(self, version: Version | None) -> Limits:
        if version is None:
            return Limits(0, 0, 1.0)
        resources = version.manifest.resources
        return Limits(
            memory_bytes=_with_weights(declared_bytes(resources) or self._max_memory_bytes, version),
            tasks=MAX_TASKS_WHERE_FORKS if resources.allow_subprocess else MAX_TASKS,
            cpus=resources.cpus,
        )


def declared_bytes(resources: Resources) -> int:
    """Return the memory limit a version sets, 0 without one."""
    return int((resources.memory_gib or 0) * GIB)


def _with_weights(memory_bytes: int, version: Version) -> int:
    # pages of weights that nobody had read before are charged to the first who touches them
    return memory_bytes + version.weights_bytes if memory_bytes else 0
