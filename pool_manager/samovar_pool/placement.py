"""On which device an instance goes: whole devices together, or a share of the fullest one that still has room.

This module does not know NVML, CUDA or processes; free memory comes measured (and cut by the ledger) in `DeviceView`.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Sequence

from samovar.spec import Resources
from samovar_pool.model import CPU, DeviceView

GIB = 1 << 30


def wants_device(resources: Resources) -> bool:
    """Return whether an instance with `resources` runs on an accelerator."""
    return resources.gpus > 0 or resources.gpu_memory_gib is not None


def takes_whole_devices(resources: Resources) -> bool:
    """Return whether it must be alone on its devices: several of them, or one without a declared share."""
    return resources.gpus > 1 or (resources.gpus == 1 and resources.gpu_memory_gib is None)


def place(
    resources: Resources, need_bytes: int, devices: Sequence[DeviceView], blanks_on: Collection[str] = ()
) -> tuple[str, ...] | None:
    """Return the devices for one more instance, or None if there is no room now.

    Args:
        resources: what the version asks for. need_bytes: device memory it is expected to use (learned or declared).
        devices: with measured free memory. blanks_on: devices that have a blank with its context up.
    Returns: ("cpu",) for a version without accelerators; `gpus` whole devices, on one NUMA node when possible; else the
        one shared device with the least room that is enough, one with a blank first.
    """
    if not wants_device(resources):
        return (CPU,)
    if takes_whole_devices(resources):
        return _whole(resources.gpus, need_bytes, devices, blanks_on)
    fitting = [d for d in devices if not d.exclusive and d.free_bytes >= max(need_bytes, 1)]
    best = min(fitting, key=lambda d: (d.device not in blanks_on, d.free_bytes, d.device), default=None)
    return None if best is None else (best.device,)


def _whole(
    num: int, need_bytes: int, devices: Sequence[DeviceView], blanks_on: Collection[str]
) -> tuple[str, ...] | None:
    free = [d for d in devices if d.holders == 0 and not d.exclusive and d.free_bytes >= need_bytes]
    if len(free) < num:
        return None
    free.sort(key=lambda d: (d.device not in blanks_on, d.device))
    by_node: defaultdict[int, list[DeviceView]] = defaultdict(list)
    for device in free:
        by_node[device.numa_node].append(device)
    roomy = [group for group in by_node.values() if len(group) >= num]
    chosen = min(roomy, key=len)[:num] if roomy else free[:num]
    return tuple(device.device for device in chosen)


def could_ever_fit(
    resources: Resources, need_bytes: int, devices: Sequence[DeviceView], budget_bytes: int, host_bytes: int
) -> bool:
    """Return whether an empty node could hold one instance at all; False means its callers need not wait."""
    if host_bytes > budget_bytes:
        return False
    if not wants_device(resources):
        return True
    return sum(d.total_bytes >= need_bytes for d in devices) >= max(1, resources.gpus)
