"""The supervisor's decisions as plain functions: when to restart, in which order to stop, what is too little disk.

This module does not know processes, clocks or files.
"""

from __future__ import annotations

from samovar.errors import ConfigError, DiskFull

MAX_RESTART_DELAY_S = 30.0
STEADY_UPTIME_S = 60.0
MAX_SOCKET_PATH_BYTES = 107  # sun_path holds 108 with its terminating zero
LONGEST_SOCKET_NAME = f"zygote-{'0' * 32}.sock"  # the zygote of an environment with its own packages

# what brings work in, or takes it, ends first; then what does it; then what remembers it
STOP_STAGES = (("gateway", "jobs"), ("pool",), ("valkey",), ("seaweedfs",))
STOP_ORDER = tuple(kind for stage in STOP_STAGES for kind in stage)


def kind_of(name: str) -> str:
    """Return which of STOP_ORDER the child called `name` is: of several, the second is `gateway-2`."""
    return name.partition("-")[0]


def next_failures(num_failures: int, uptime_s: float) -> int:
    """Return how many failures in a row this is: one more, or the first again after a steady minute."""
    return 1 if uptime_s >= STEADY_UPTIME_S else num_failures + 1


def restart_delay_s(num_failures: int) -> float:
    """Return the wait before restart number `num_failures` (>= 1): 1, 2, 4 … 30 seconds."""
    return float(min(MAX_RESTART_DELAY_S, 2.0 ** min(num_failures - 1, 16)))


def check_disk(path: str, free_bytes: int, needed_bytes: int) -> None:
    """Raise DiskFull if fewer than `needed_bytes` are free where the data folder lies."""
    if free_bytes < needed_bytes:
        raise DiskFull(
            f"the disk of {path} has {free_bytes / 2**20:.0f} MiB free and at least {needed_bytes / 2**20:.0f} MiB "
            "are needed: free some, or choose another folder with --data-dir"
        )


def check_socket_path(run_dir: str) -> None:
    """Raise ConfigError if a Unix socket in `run_dir` would have a longer path than the kernel allows."""
    length = len(f"{run_dir}/{LONGEST_SOCKET_NAME}".encode())
    if length > MAX_SOCKET_PATH_BYTES:
        raise ConfigError(
            f"the data folder's path is {length - MAX_SOCKET_PATH_BYTES} bytes too long for Unix sockets "
            f"({run_dir}): choose a shorter one with --data-dir"
        )
