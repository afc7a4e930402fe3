"""Process trees as /proc shows them: CPU time, memory, cores; and facts about the machine.

This module does not know what the processes are.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import re
import signal
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

_TICKS_PER_S = os.sysconf("SC_CLK_TCK")
_PR_SET_CHILD_SUBREAPER = 36
_MIB = 1024 * 1024


@dataclass(frozen=True)
class ProcessTimes:
    """cpu_s: user + system seconds of the process and of the children it has reaped."""

    parent: int
    cpu_s: float


@dataclass(frozen=True)
class Memory:
    """Bytes of one process: resident, proportional (shared pages divided by sharers), unique (freed if it exits)."""

    rss: int
    pss: int
    uss: int


def parse_stat(text: str) -> ProcessTimes:
    """Return the parent and CPU time in a /proc/<pid>/stat line (the name may hold spaces and brackets)."""
    fields = text.rpartition(")")[2].split()
    return ProcessTimes(int(fields[1]), sum(map(int, fields[11:15])) / _TICKS_PER_S)


def parse_smaps_rollup(text: str) -> Memory:
    """Return the memory in a /proc/<pid>/smaps_rollup text."""
    kib = {name: int(value) for name, value in re.findall(r"^(\w+):\s+(\d+) kB", text, re.MULTILINE)}
    return Memory(kib["Rss"] * 1024, kib["Pss"] * 1024, (kib["Private_Clean"] + kib["Private_Dirty"]) * 1024)


def process_table() -> dict[int, ProcessTimes]:
    """Return every process there is now, by pid."""
    table = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                table[int(entry)] = parse_stat(Path(f"/proc/{entry}/stat").read_text())
            except OSError:
                continue  # it ended while we looked
    return table


def tree(root: int, table: dict[int, ProcessTimes] | None = None) -> list[int]:
    """Return `root` and all its descendants that are alive."""
    table = process_table() if table is None else table
    found = [root]
    for pid in found:
        found += [child for child, times in table.items() if times.parent == pid]
    return found


def tree_cpu_s(root: int) -> float:
    """Return user + system seconds of `root` and its descendants, those already reaped included."""
    table = process_table()
    return sum(table[pid].cpu_s for pid in tree(root, table) if pid in table)


def memory(pid: int) -> Memory:
    """Return the memory of one process. Raises OSError if it has ended."""
    return parse_smaps_rollup(Path(f"/proc/{pid}/smaps_rollup").read_text())


def tree_pss_bytes(root: int) -> int:
    """Return the proportional memory of `root` and its descendants."""
    total = 0
    for pid in tree(root):
        try:
            total += memory(pid).pss
        except (OSError, KeyError):
            continue  # it ended, or is a zombie without memory
    return total


def command(pid: int) -> str:
    """Return the command line of a process, "" if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()
    except OSError:
        return ""


def mentions(pid: int, text: str) -> bool:
    """Return whether a living process has `text` in its command line, its environment or its working folder's name."""
    try:
        texts = [Path(f"/proc/{pid}/{name}").read_bytes() for name in ("cmdline", "environ")]
        texts.append(os.readlink(f"/proc/{pid}/cwd").encode())
    except OSError:
        return False
    return any(text.encode() in found for found in texts)


def pinned(arguments: Sequence[str], cores: str | None) -> list[str]:
    """Return the command that runs `arguments` on `cores` ("0", "0,1"), or anywhere if None."""
    return ["taskset", "-c", cores, *arguments] if cores else list(arguments)


def tree_cores(root: int) -> set[int]:
    """Return every core that `root` or a descendant may run on: shows whether a pinned server stayed pinned."""
    cores: set[int] = set()
    for pid in tree(root):
        with contextlib.suppress(ProcessLookupError):
            cores |= os.sched_getaffinity(pid)
    return cores


def become_subreaper() -> None:
    """Make orphans of our children ours, so that their CPU is counted and they can be ended."""
    ctypes.CDLL(None).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def end(pids: Iterable[int], timeout_s: float = 5.0) -> None:
    """End these processes: SIGTERM, then SIGKILL after `timeout_s`. Those already gone are no error."""
    remaining = set(pids)
    for number in (signal.SIGTERM, signal.SIGKILL):
        for pid in remaining:
            _send(pid, number)
        deadline_s = time.monotonic() + timeout_s
        while remaining and time.monotonic() < deadline_s:
            remaining = {pid for pid in remaining if _alive(pid)}
            time.sleep(0.05)


def _send(pid: int, number: signal.Signals) -> None:
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def _alive(pid: int) -> bool:
    """Reap `pid` if it is a dead child of ours; return whether it still runs."""
    try:
        if os.waitpid(pid, os.WNOHANG)[0] == pid:
            return False
    except ChildProcessError:
        pass
    return os.path.exists(f"/proc/{pid}")


def machine_facts() -> dict[str, str]:
    """Return what a reader needs to judge a figure: processor, cores, memory, system, Python."""
    model = re.search(r"model name\s*: (.*)", Path("/proc/cpuinfo").read_text())
    total_bytes = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return {
        "processor": model.group(1) if model else platform.processor() or platform.machine(),
        "usable cores": str(len(os.sched_getaffinity(0))),
        "memory": f"{total_bytes / 1024 / _MIB:.0f} GiB",
        "system": f"{platform.system()} {platform.release()}",
        "Python": platform.python_version(),
    }
