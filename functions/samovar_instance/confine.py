"""What an instance process may do, in the three stages its sandbox is built in.

    zygote       once, before the first fork: everything all children share
    fork         a blank, right after the fork and still without user code
    specialise   right before user code: what only now is known, such as which folders it may read

Each layer is tried and recorded; the names of those that are on travel in Welcome and Ready. Today's layers: a clean
environment, closed descriptors, rlimits and no_new_privs. This module does not know what the process is for.
"""

from __future__ import annotations

import ctypes
import logging
import os
import resource
from collections.abc import Callable, Collection
from pathlib import Path

logger = logging.getLogger("samovar.instance")

MAX_OPEN_FILES = 4096
RUNTIME_BYTES = 32 * 1024 * 1024  # stacks and buffers of our own threads
# Everything else is dropped: a credential in a variable nobody thought of must not reach user code.
_KEPT_VARIABLES = frozenset(
    {"PATH", "HOME", "LANG", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "PYTHONPATH", "PYTHONUNBUFFERED", "PYTHONHASHSEED"}
)
_KEPT_PREFIXES = ("LC_", "CUDA_", "NVIDIA_", "OMP_", "MKL_", "KMP_", "PYTORCH_", "HF_HUB_OFFLINE", "TOKENIZERS_")
_PR_SET_NO_NEW_PRIVS = 38
# Looked up once, in the zygote: the first ctypes call costs a fresh child 0.1 ms.
_prctl = ctypes.CDLL(None, use_errno=True).prctl


def at_zygote() -> list[str]:
    """Apply the layers all children share; return the names of those that are on."""
    return _apply({"environment": _clean_environment})


def at_fork(kept_fds: Collection[int] | None) -> list[str]:
    """Confine a process that was just forked; return the names of the layers that are on.

    kept_fds: descriptors beyond 0-2 that stay open; None leaves all open (a template's children share its files).
    """
    layers: dict[str, Callable[[], None]] = {"no_new_privs": _no_new_privileges, "rlimits": _limit_files}
    if kept_fds is not None:
        layers["descriptors"] = lambda: _close_all_but(kept_fds)
    return _apply(layers)


def at_specialise(scratch_dir: str, weights_dir: str, memory_bytes: int) -> list[str]:
    """Confine the process to its version's own folders and memory, before any user code; return the layers on.

    memory_bytes: what it may allocate of its own from now on, mapped weights not counted; 0 = unlimited.
    """
    layers: dict[str, Callable[[], None]] = {}
    if scratch_dir:
        layers["scratch"] = lambda: _use_scratch(scratch_dir)
    if memory_bytes:
        layers["memory"] = lambda: _limit_memory(memory_bytes, _size_bytes(weights_dir))
    return _apply(layers)


def _apply(layers: dict[str, Callable[[], None]]) -> list[str]:
    on = []
    for name, layer in layers.items():
        try:
            layer()
        except (OSError, ValueError) as error:
            logger.warning("sandbox layer %s is off: %s", name, error)
        else:
            on.append(name)
    return on


def _clean_environment() -> None:
    for name in list(os.environ):
        if name not in _KEPT_VARIABLES and not name.startswith(_KEPT_PREFIXES):
            del os.environ[name]
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    # torch must not initialise CUDA just to count devices: children of a process that did cannot use it
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")


def _no_new_privileges() -> None:
    if _prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_NO_NEW_PRIVS)")


def _limit_files() -> None:
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    limit = MAX_OPEN_FILES if hard == resource.RLIM_INFINITY else min(MAX_OPEN_FILES, hard)
    resource.setrlimit(resource.RLIMIT_NOFILE, (limit, limit))


def _limit_memory(memory_bytes: int, weights_bytes: int) -> None:
    # RLIMIT_DATA and not RLIMIT_AS: CUDA reserves 64 GiB of addresses. It counts private pages inherited from the
    # parent and copy-on-write maps of weight files too, which cost nothing until written: they come on top.
    limit = inherited_data_bytes() + weights_bytes + RUNTIME_BYTES + memory_bytes
    resource.setrlimit(resource.RLIMIT_DATA, (limit, limit))


def _size_bytes(folder: str) -> int:
    return sum(file.stat().st_size for file in Path(folder).rglob("*") if file.is_file()) if folder else 0


def inherited_data_bytes() -> int:
    """Return what RLIMIT_DATA counts in this process now (VmData), in bytes."""
    with open("/proc/self/status", "rb") as status:
        for line in status:
            if line.startswith(b"VmData:"):
                return int(line.split()[1]) * 1024
    return 0


def _close_all_but(kept_fds: Collection[int]) -> None:
    low = 3
    for fd in sorted(kept_fds):
        os.closerange(low, fd)
        low = fd + 1
    os.closerange(low, MAX_OPEN_FILES)
    highest = max((int(name) for name in os.listdir("/proc/self/fd")), default=0)
    if highest >= MAX_OPEN_FILES:
        os.closerange(MAX_OPEN_FILES, highest + 1)


def _use_scratch(scratch_dir: str) -> None:
    os.makedirs(scratch_dir, mode=0o700, exist_ok=True)
    os.environ["TMPDIR"] = os.environ["HOME"] = scratch_dir
    os.chdir(scratch_dir)
