"""NUMA nodes and the devices beside them, read from a /sys tree; which cores an instance gets is a pure plan.

This module does not know processes: who calls applies the plan. `root` may name a fake tree.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Node:
    """One NUMA node: its number, its CPUs, and the distances to all nodes in order."""

    number: int
    cpus: tuple[int, ...]
    distances: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class Topology:
    """nodes in order of number; gpu_nodes: PCI address of each NVIDIA device → its node, -1 if unknown."""

    nodes: tuple[Node, ...]
    gpu_nodes: dict[str, int]


@dataclass(frozen=True, slots=True)
class CpuPlan:
    """The CPUs an instance should run on; empty means anywhere. node: the preferred memory node, -1 for none."""

    cpus: tuple[int, ...]
    node: int = -1


def parse_cpulist(text: str) -> tuple[int, ...]:
    """Return the numbers of a kernel CPU list such as `0-3,8,10-11`. Raises ValueError if it is not one."""
    cpus: list[int] = []
    for part in text.strip().split(","):
        if part:
            first, _, last = part.partition("-")
            cpus.extend(range(int(first), int(last or first) + 1))
    return tuple(cpus)


def read_topology(root: Path = Path("/sys")) -> Topology:
    """Return what the tree under `root` says; a machine without NUMA files has no nodes and gets no plan."""
    nodes = []
    for folder in sorted(root.glob("devices/system/node/node[0-9]*"), key=lambda p: int(p.name[4:])):
        cpus = parse_cpulist(_read(folder / "cpulist"))
        distances = tuple(int(word) for word in _read(folder / "distance").split())
        nodes.append(Node(int(folder.name[4:]), cpus, distances))
    return Topology(tuple(nodes), _gpu_nodes(root))


def _gpu_nodes(root: Path) -> dict[str, int]:
    found = {}
    for folder in sorted(root.glob("bus/pci/devices/*")):
        is_nvidia = _read(folder / "vendor").strip() == "0x10de"
        if is_nvidia and _read(folder / "class").strip().startswith("0x03"):
            found[folder.name.lower()] = int(_read(folder / "numa_node").strip() or -1)
    return found


def _read(path: Path) -> str:
    try:
        return path.read_text()
    except OSError:
        return ""


def plan(topology: Topology, gpu_node: int, num_cpus: int, load: dict[int, int]) -> CpuPlan:
    """Return the cores for one instance.

    Args:
        topology: of this machine. gpu_node: node of its device, -1 if none or unknown. num_cpus: cores it wants, >= 1.
        load: instances already planned per node.
    Returns: all CPUs of the device's node; else of the least loaded node that is large enough; anywhere on a machine of
        one node or when no node is large enough, since pinning would only take freedom from the kernel.
    """
    usable = [node for node in topology.nodes if node.cpus]
    if len(usable) < 2:
        return CpuPlan(())
    for node in usable:
        if node.number == gpu_node:
            return CpuPlan(node.cpus, node.number)
    roomy = [node for node in usable if len(node.cpus) >= num_cpus]
    if not roomy:
        return CpuPlan(())
    best = min(roomy, key=lambda node: (load.get(node.number, 0), node.number))
    return CpuPlan(best.cpus, best.number)
