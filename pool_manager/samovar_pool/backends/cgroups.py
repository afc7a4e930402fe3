"""A cgroup per instance: memory, tasks and CPU weight, in version 1 or 2, wherever this process may make them.

Entering one costs 10 ms and holds up forks all over the machine meanwhile, so nobody waits for it: a fork starts in its
parent's group and is moved by `enter`, in a thread. This module does not know versions or how processes are made.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import signal
from dataclasses import dataclass
from pathlib import Path

logger = logging.getLogger("samovar.pool")

CONTROLLERS = ("memory", "pids", "cpu")
MARGIN_BYTES = 256 * 1024 * 1024  # copies of inherited pages, stacks, page tables and what the kernel keeps for it
_PREFIX = "samovar-"
_CPU_SHARES_OF_ONE, _CPU_WEIGHT_OF_ONE = 1024, 100


@dataclass(frozen=True, slots=True)
class Limits:
    """memory_bytes: 0 = none. tasks: processes and threads, 0 = none. cpus: its weight when cores are short."""

    memory_bytes: int
    tasks: int
    cpus: float


@dataclass(frozen=True, slots=True)
class Tree:
    """One hierarchy: the folder our groups are made in, its controllers, its version."""

    folder: Path
    controllers: tuple[str, ...]
    version: int


def candidates(mounts: str, own: str) -> list[Tree]:
    """Return where groups might be made, best first per controller.

    Args:
        mounts: text of /proc/self/mounts. own: text of /proc/self/cgroup.
    """
    places = dict(_own_places(own))
    found = []
    for line in mounts.splitlines():
        _, mountpoint, kind, options, *_ = line.split()
        if kind == "cgroup":
            held = tuple(name for name in CONTROLLERS if name in options.split(","))
            if held:
                found.append(Tree(Path(mountpoint + places.get(held[0], "/")), held, 1))
        elif kind == "cgroup2":
            inside = Path(mountpoint + places.get("", "/"))
            # a group with processes can hand no controller down, but our own group's parent already has
            found += [Tree(folder, CONTROLLERS, 2) for folder in (inside, inside.parent) if folder.name]
    return found


def _own_places(own: str) -> list[tuple[str, str]]:
    """Return (controller, path) of this process's groups; version 2 has the controller ""."""
    rows = [line.split(":", 2) for line in own.splitlines()]
    return [(name, path) for _, names, path in rows for name in names.split(",")]


class Cgroups:
    """The groups of one data folder's instances. Methods block for as long as the kernel takes."""

    def __init__(self, trees: list[Tree]) -> None:
        self._trees = trees

    @classmethod
    def find(cls, data_dir: Path) -> Cgroups | None:
        """Return the groups that can be made here, None if none can. What an earlier manager left empty is removed."""
        try:
            mounts, own = Path("/proc/self/mounts").read_text(), Path("/proc/self/cgroup").read_text()
        except OSError:
            return None
        name = _PREFIX + hashlib.sha256(str(data_dir).encode()).hexdigest()[:12]
        trees: list[Tree] = []
        for tree in candidates(mounts, own):
            held = {controller for other in trees for controller in other.controllers}
            made = _made(tree, name, held)
            if made is not None:
                trees.append(made)
        return cls(trees) if trees else None

    @property
    def controllers(self) -> tuple[str, ...]:
        """What can be limited."""
        return tuple(name for tree in self._trees for name in tree.controllers)

    def gaps(self) -> dict[str, str]:
        """Return the controllers that cannot be had, and why."""
        return {f"cgroup_{name}": "not delegated" for name in CONTROLLERS if name not in self.controllers}

    def enter(self, instance_id: str, pid: int, limits: Limits) -> list[str]:
        """Have the process be in a group of its own, under `limits`; return the names of the layers that are on."""
        on = []
        for tree in self._trees:
            group = tree.folder / instance_id
            try:
                group.mkdir(exist_ok=True, parents=True)  # another manager may have swept our empty folder away
                _limit(group, tree, limits)
                (group / "cgroup.procs").write_text(str(pid))
            except ProcessLookupError:
                group.rmdir()
            except OSError as error:
                logger.warning("no cgroup for %s: %s", instance_id, error)
            else:
                on += [f"cgroup_{name}" for name in tree.controllers]
        return on

    def limit(self, instance_id: str, limits: Limits) -> None:
        """Change the limits of a group."""
        for tree in self._trees:
            with contextlib.suppress(OSError):
                _limit(tree.folder / instance_id, tree, limits)

    def was_out_of_memory(self, instance_id: str) -> bool:
        """Return whether the kernel has killed something in the group because of its memory limit."""
        for tree in self._trees:
            file = "memory.oom_control" if tree.version == 1 else "memory.events"
            with contextlib.suppress(OSError):
                rows = dict(line.split() for line in (tree.folder / instance_id / file).read_text().splitlines())
                if int(rows.get("oom_kill", 0)):
                    return True
        return False

    def remove(self, instance_id: str) -> bool:
        """End whatever is left in the group, and remove it; return whether that is done."""
        for tree in self._trees:
            group = tree.folder / instance_id
            with contextlib.suppress(OSError, ValueError):
                for pid in (group / "cgroup.procs").read_text().split():
                    os.kill(int(pid), signal.SIGKILL)
            with contextlib.suppress(OSError):
                group.rmdir()
        return not any((tree.folder / instance_id).exists() for tree in self._trees)

    def close(self) -> None:
        """Remove the groups that are empty."""
        for tree in self._trees:
            _sweep(tree.folder)
            with contextlib.suppress(OSError):
                tree.folder.rmdir()


def _made(tree: Tree, name: str, held: set[str]) -> Tree | None:
    """Return the tree with our folder made in it and the controllers it really has beyond `held`; None if none."""
    folder = tree.folder / name
    if tree.version == 1:
        for left in tree.folder.glob(f"{_PREFIX}*"):  # by managers that were killed and have no successor
            _sweep(left)
            with contextlib.suppress(OSError):
                left.rmdir()
    try:
        if tree.version == 2:
            _hand_down(tree.folder)
        folder.mkdir(exist_ok=True)
        if tree.version == 2:
            _hand_down(folder)
        there = tree.controllers if tree.version == 1 else (folder / "cgroup.subtree_control").read_text().split()
    except OSError:
        return None
    usable = tuple(c for c in tree.controllers if c in there and c not in held)
    if not usable or not os.access(folder, os.W_OK):
        with contextlib.suppress(OSError):
            folder.rmdir()
        return None
    _sweep(folder)
    return Tree(folder, usable, tree.version)


def _hand_down(folder: Path) -> None:
    there = (folder / "cgroup.controllers").read_text().split()
    for controller in set(CONTROLLERS).intersection(there):
        with contextlib.suppress(OSError):
            (folder / "cgroup.subtree_control").write_text(f"+{controller}")


def _sweep(folder: Path) -> None:
    for group in folder.iterdir() if folder.is_dir() else ():
        if group.is_dir():
            with contextlib.suppress(OSError):
                group.rmdir()  # refused while a process is in it


def _limit(group: Path, tree: Tree, limits: Limits) -> None:
    for file, value in values(tree, limits).items():
        (group / file).write_text(value)


def values(tree: Tree, limits: Limits) -> dict[str, str]:
    """Return what goes into which file."""
    memory_bytes = limits.memory_bytes + MARGIN_BYTES if limits.memory_bytes else 0
    is_first = tree.version == 1
    values = {
        "memory": (
            "memory.limit_in_bytes" if is_first else "memory.max",
            memory_bytes or ("-1" if is_first else "max"),
        ),
        "pids": ("pids.max", limits.tasks or "max"),
        "cpu": (
            ("cpu.shares", max(2, round(_CPU_SHARES_OF_ONE * limits.cpus)))
            if is_first
            else ("cpu.weight", min(10000, max(1, round(_CPU_WEIGHT_OF_ONE * limits.cpus))))
        ),
    }
    return {values[name][0]: str(values[name][1]) for name in tree.controllers}
