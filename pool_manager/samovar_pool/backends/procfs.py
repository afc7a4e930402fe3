"""Facts about processes from /proc: alive, since when, how much memory of their own. Linux only."""

from __future__ import annotations

import contextlib
import os
import signal
import time
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

CHANGE_BYTES = 1 << 20
MEASURED_FOR_S = 60.0
MAX_ROUND_S = 0.03  # of a round's time for sizes that are merely old; the kernel walks every page of a process
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def start_ticks(pid: int) -> int:
    """Return when the process started, in clock ticks since boot, 0 if it does not run: tells a reused pid apart."""
    try:
        text = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return 0
    state, *fields = text.rpartition(")")[2].split()
    return 0 if state in "ZX" else int(fields[18])


class Memory(NamedTuple):
    """What a process takes, in bytes. share: its part of all its pages (PSS). own: pages nobody else maps."""

    share: int
    own: int


def memory(pid: int) -> Memory:
    """Return what a process takes, zeros if it cannot be read.

    Resident size would count the pages that all forks of a zygote share once per fork.
    """
    share = own = 0
    try:
        with open(f"/proc/{pid}/smaps_rollup", "rb") as rollup:
            for line in rollup:
                if line.startswith(b"Pss:"):
                    share = int(line.split()[1]) * 1024
                elif line.startswith(b"Private_"):
                    own += int(line.split()[1]) * 1024
    except OSError:
        pass
    return Memory(share, own)


class Known(NamedTuple):
    """A process, its resident size when it was measured last, and when that was (monotonic).

    has_children: whether children of it that are not known themselves count for it, such as a template's parked fork.
    """

    pid: int
    resident_bytes: int
    measured_at_s: float
    has_children: bool = False


class Measured(NamedTuple):
    """What a process takes, and its resident size then."""

    memory: Memory
    resident_bytes: int


def measure(processes: Iterable[Known]) -> dict[int, Measured]:
    """Return, by pid, what those take whose resident size changed, and some of those that were measured long ago.

    The resident size is one cheap number, so hundreds of quiet processes cost next to nothing.
    """
    listed = list(processes)
    known_pids = {known.pid for known in listed}
    found: dict[int, Measured] = {}
    old: list[tuple[Known, list[int], int]] = []
    for known in listed:
        pids = [known.pid, *(sorted(children(known.pid) - known_pids) if known.has_children else [])]
        now_bytes = sum(map(resident_bytes, pids))
        if abs(now_bytes - known.resident_bytes) >= CHANGE_BYTES:
            found[known.pid] = Measured(_total(pids), now_bytes)
        else:
            old.append((known, pids, now_bytes))
    started_s = time.monotonic()
    for known, pids, now_bytes in sorted(old, key=lambda entry: entry[0].measured_at_s):
        now_s = time.monotonic()
        if now_s - started_s > MAX_ROUND_S or now_s - known.measured_at_s < MEASURED_FOR_S:
            break
        found[known.pid] = Measured(_total(pids), now_bytes)
    return found


def _total(pids: Iterable[int]) -> Memory:
    each = [memory(pid) for pid in pids]
    return Memory(sum(one.share for one in each), sum(one.own for one in each))


def children(pid: int) -> set[int]:
    """Return the children that the main thread of a process has, none if it does not run."""
    try:
        with open(f"/proc/{pid}/task/{pid}/children", "rb") as listing:
            return {int(child) for child in listing.read().split()}
    except OSError:
        return set()


def pid_of_child(parent_pid: int, inside_pid: int) -> int:
    """Return the pid, as it is known here, of the child that its parent knows as `inside_pid`; 0 if there is none.

    The two differ in a pid namespace. What is no child of the parent is not believed: the parent may run user code.
    """
    newest_first = sorted(children(parent_pid), reverse=True)
    return next((pid for pid in newest_first if pid_inside(pid) == inside_pid), 0)


def pid_inside(pid: int) -> int:
    """Return the pid of a process in its own pid namespace, 0 if it does not run."""
    with contextlib.suppress(OSError), open(f"/proc/{pid}/status", "rb") as status:
        for line in status:
            if line.startswith(b"NSpid:"):
                return int(line.split()[-1])
    return 0


def resident_bytes(pid: int) -> int:
    """Return the resident size of a process, shared pages included, 0 if it does not run."""
    try:
        with open(f"/proc/{pid}/statm", "rb") as statm:
            return int(statm.read().split()[1]) * _PAGE_BYTES
    except (OSError, IndexError):
        return 0


def kill(pid: int, ticks: int) -> None:
    """End the process and its group at once, if `pid` is still the one that started at `ticks`."""
    if pid <= 1 or not ticks or start_ticks(pid) != ticks:
        return
    for end in (os.killpg, os.kill):
        try:
            end(pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            continue
