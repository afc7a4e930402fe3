"""What Linux says about running processes: who they are, since when, and who descends from whom.

A process is named by its pid *and* its start time, so that a recycled pid is never mistaken for one of ours.
This module does not know which processes the platform consists of.
"""

from __future__ import annotations

import ctypes
import os
import signal
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

import msgspec

PROC = Path("/proc")
_PR_SET_CHILD_SUBREAPER = 36


class Process(msgspec.Struct, frozen=True, kw_only=True):
    """One process. start_ticks: clock ticks between the machine's boot and its start. state: R, S, D, Z, T, …"""

    pid: int
    ppid: int
    start_ticks: int
    state: str
    argv: tuple[str, ...] = ()


def parse_stat(text: str) -> tuple[int, int, str]:
    """Return (ppid, start_ticks, state) of a `/proc/<pid>/stat` line; the command's name may hold any character."""
    fields = text.rpartition(")")[2].split()
    return int(fields[1]), int(fields[19]), fields[0]


def read_process(pid: int) -> Process | None:
    """Return the process with `pid`, or None if there is none."""
    try:
        ppid, start_ticks, state = parse_stat((PROC / str(pid) / "stat").read_text(errors="replace"))
        argv = (PROC / str(pid) / "cmdline").read_bytes().decode(errors="replace").split("\0")
    except (OSError, IndexError, ValueError):
        return None
    return Process(pid=pid, ppid=ppid, start_ticks=start_ticks, state=state, argv=tuple(argv[:-1]))


def all_processes() -> list[Process]:
    """Return every process that can be seen now."""
    found = (read_process(int(entry.name)) for entry in PROC.iterdir() if entry.name.isdigit())
    return [process for process in found if process is not None]


def boot_id() -> str:
    """Return the identity of the machine's current boot; start times of another boot mean nothing."""
    return (PROC / "sys/kernel/random/boot_id").read_text().strip()


def descendants(root_pid: int, processes: Iterable[Process]) -> list[Process]:
    """Return all children of `root_pid`, their children and so on, without the root."""
    children: dict[int, list[Process]] = {}
    for process in processes:
        children.setdefault(process.ppid, []).append(process)
    found: list[Process] = []
    frontier = [root_pid]
    while frontier:
        born = children.pop(frontier.pop(), [])
        found += born
        frontier += [process.pid for process in born]
    return found


def is_alive(process: Process) -> bool:
    """Return whether this very process still runs (a zombie does not)."""
    now = read_process(process.pid)
    return now is not None and now.start_ticks == process.start_ticks and now.state not in "ZX"


def send(process: Process, number: signal.Signals) -> bool:
    """Signal `process` if it is still the one it was; return whether it was."""
    if not is_alive(process):
        return False
    with suppress(ProcessLookupError, PermissionError):
        os.kill(process.pid, number)
        return True
    return False


def become_subreaper() -> None:
    """Make orphaned descendants ours: an instance whose manager died becomes our child, and can be waited for."""
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def reap_zombies(known_pids: Iterable[int]) -> list[int]:
    """Collect dead children that nobody else waits for (orphans that came to us as sub-reaper); return their pids."""
    known = set(known_pids)
    own = os.getpid()
    reaped = []
    for process in all_processes():
        if process.ppid == own and process.state == "Z" and process.pid not in known:
            with suppress(ChildProcessError):
                os.waitpid(process.pid, os.WNOHANG)
                reaped.append(process.pid)
    return reaped
