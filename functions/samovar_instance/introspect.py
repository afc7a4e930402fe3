"""What this process is made of, read from /proc: threads, memory, and whether it may be forked from.

This module does not know versions, frames or templates.
"""

from __future__ import annotations

import os
import sys

_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_FOREIGN = ("socket:", "anon_inode:[eventpoll]", "anon_inode:[eventfd]", "anon_inode:[io_uring]", "/dev/nvidia")


def num_os_threads() -> int:
    """Return the number of threads the kernel sees, those of native libraries included."""
    return len(os.listdir("/proc/self/task"))


def is_machine_busy() -> bool:
    """Return whether more threads want to run now, this one included, than there are cores."""
    with open("/proc/loadavg", "rb") as loadavg:
        num_runnable = int(loadavg.read().split()[3].partition(b"/")[0])
    return num_runnable > (os.cpu_count() or 1)


def memory_bytes() -> int:
    """Return the resident memory of this process, shared pages included."""
    with open("/proc/self/statm", "rb") as statm:
        return int(statm.read().split()[1]) * _PAGE_BYTES


def open_fds() -> dict[int, str]:
    """Return what every open descriptor refers to."""
    found = {}
    for name in os.listdir("/proc/self/fd"):
        try:
            found[int(name)] = os.readlink(f"/proc/self/fd/{name}")
        except OSError:
            continue  # the descriptor of the listing itself
    return found


def why_not_templatable(fds_before: dict[int, str], num_pool_threads: int) -> str:
    """Return what a fork of this process could not carry over, or "" if it may be a template.

    Args:
        fds_before: `open_fds()` before user code ran; what was open then is ours.
        num_pool_threads: threads of torch's own pool that a load on one thread would not have made.
    """
    extra = num_os_threads() - 1 - num_pool_threads
    if extra > 0:
        return f"load left {extra} threads running"
    for fd, target in open_fds().items():
        if fds_before.get(fd) != target and target.startswith(_FOREIGN):
            return f"load left {target} open"
    with open("/proc/thread-self/children", "rb") as children:
        if children.read().strip():
            return "load left a child process running"
    torch = sys.modules.get("torch")
    if torch is not None and torch.cuda.is_initialized():
        return "load made a device context"
    return ""
