"""Facts about processes from /proc: alive, since when, how much memory of their own. Linux only."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import NamedTuple


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


def kill(pid: int, ticks: int) -> None:
    """End the process and its group at once, if `pid` is still the one that started at `ticks`."""
    if pid <= 1 or not ticks or start_ticks(pid) != ticks:
        return
    for end in (os.killpg, os.kill):
        try:
            end(pid, signal.SIGKILL)
        except (ProcessLookupError, PermissionError):
            continue
