"""A file system that is really full after a few MiB, for one process of its own.

Root mounts a tmpfs in a private mount namespace; so does anyone else where the kernel lets them own a user namespace.
Where it does not, the largest size of a file is limited instead: one file that is too big fails in the same places.
"""

from __future__ import annotations

import ctypes
import os
import resource
import sys
from pathlib import Path

_CLONE_NEWNS, _CLONE_NEWUSER = 0x0002_0000, 0x1000_0000
_MS_REC_PRIVATE = 0x4000 | 0x4_0000


def limit_disk(folder: Path, max_bytes: int) -> bool:
    """Give `folder` (empty) `max_bytes` of room, for this process and its children alone.

    Returns: whether it is a file system of its own; else no single file may be larger. The caller has one thread.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    namespaces = _CLONE_NEWNS | (0 if os.geteuid() == 0 else _CLONE_NEWUSER)
    options = f"size={max_bytes}".encode()
    if (
        libc.unshare(namespaces) == 0
        and libc.mount(b"none", b"/", None, _MS_REC_PRIVATE, None) == 0
        and libc.mount(b"tmpfs", os.fsencode(folder), b"tmpfs", 0, options) == 0
    ):
        return True
    resource.setrlimit(resource.RLIMIT_FSIZE, (max_bytes, max_bytes))
    return False


def within_small_disk(folder: Path, max_bytes: int) -> list[str]:
    """Return a command that runs the one behind it with so little room in `folder`, which is made."""
    return [sys.executable, str(Path(__file__)), str(folder), str(max_bytes)]


if __name__ == "__main__":
    Path(sys.argv[1]).mkdir(parents=True, exist_ok=True)
    limit_disk(Path(sys.argv[1]), int(sys.argv[2]))
    os.execv(sys.argv[3], sys.argv[3:])  # noqa: S606
