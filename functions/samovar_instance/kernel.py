"""The system calls the sandbox is made of, as functions that raise OSError: the lowest seam of `confine`.

Python 3.11 has none of them. Linux on x86_64 and aarch64; elsewhere `NUMBERS` is empty and what needs one is refused.
This module does not know what a sandbox is.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import signal
import struct

CLONE_NEWNS, CLONE_NEWIPC, CLONE_NEWUSER = 0x00020000, 0x08000000, 0x10000000
CLONE_NEWPID, CLONE_NEWNET = 0x20000000, 0x40000000
MS_RDONLY, MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_REMOUNT = 1, 2, 4, 8, 32
MS_BIND, MS_REC, MS_PRIVATE = 4096, 16384, 1 << 18
_PR_SET_PDEATHSIG, _PR_SET_DUMPABLE, _PR_SET_NO_NEW_PRIVS = 1, 4, 38
_MOUNT_ATTR_RDONLY, _AT_RECURSIVE, _AT_FDCWD = 1, 0x8000, -100
_MNT_DETACH = 2
_CAPABILITY_VERSION_3 = 0x20080522
_SECCOMP_SET_MODE_FILTER, _SECCOMP_FILTER_FLAG_TSYNC = 1, 1

# Not in any libc of the oldest systems we run on; the last three are the same on every architecture.
_BY_MACHINE = {
    "x86_64": {"setns": 308, "seccomp": 317, "capset": 126},
    "aarch64": {"setns": 268, "seccomp": 277, "capset": 91},
}
NUMBERS = _BY_MACHINE.get(platform.machine(), {})
_LANDLOCK_CREATE_RULESET, _LANDLOCK_ADD_RULE, _LANDLOCK_RESTRICT_SELF, _MOUNT_SETATTR = 444, 445, 446, 442
_LANDLOCK_CREATE_RULESET_VERSION = 1

_libc = ctypes.CDLL(None, use_errno=True)
_syscall = _libc.syscall
_syscall.restype = ctypes.c_long


def _checked(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise OSError(number, f"{what}: {os.strerror(number)}")
    return result


def _call(number: int, what: str, *arguments: int | bytes | ctypes.Array[ctypes.c_char] | None) -> int:
    typed = [ctypes.c_long(a) if isinstance(a, int) else a for a in arguments]
    return _checked(int(_syscall(ctypes.c_long(number), *typed)), what)


def _number(name: str) -> int:
    if name not in NUMBERS:
        raise OSError(errno.ENOSYS, f"{name} is not known on {platform.machine()}")
    return NUMBERS[name]


def unshare(flags: int) -> None:
    """Leave the namespaces in `flags` for new ones."""
    _checked(_libc.unshare(flags), "unshare")


def setns(fd: int, kind: int) -> None:
    """Enter the namespace behind `fd`, which must be of `kind` (a CLONE_NEW… flag)."""
    _call(_number("setns"), "setns", fd, kind)


def mount(source: str, target: str, kind: str, flags: int, data: str = "") -> None:
    """mount(2)."""
    result = _libc.mount(source.encode(), target.encode(), kind.encode(), ctypes.c_ulong(flags), data.encode())
    _checked(result, f"mount {kind or 'bind'} on {target}")


def unmount(target: str) -> None:
    """Take the topmost mount off `target`, once nobody uses it any more."""
    _checked(_libc.umount2(target.encode(), _MNT_DETACH), f"umount {target}")


def make_read_only(target: str) -> None:
    """Nothing below `target`, other mounts included, can be written any more in this mount namespace."""
    attributes = struct.pack("=QQQQ", _MOUNT_ATTR_RDONLY, 0, 0, 0)
    what = f"mount_setattr on {target}"
    _call(_MOUNT_SETATTR, what, _AT_FDCWD, target.encode(), _AT_RECURSIVE, attributes, len(attributes))


def no_new_privileges() -> None:
    """No exec gives this process or its children more rights than they have."""
    _checked(_libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), "prctl(PR_SET_NO_NEW_PRIVS)")


def die_with_parent() -> None:
    """This process is killed when the thread that started it ends."""
    _checked(_libc.prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0), "prctl(PR_SET_PDEATHSIG)")


def not_dumpable() -> None:
    """Processes of the same user can neither trace this one nor read its memory or environment."""
    _checked(_libc.prctl(_PR_SET_DUMPABLE, 0, 0, 0, 0), "prctl(PR_SET_DUMPABLE)")


def drop_capabilities() -> None:
    """Give up every capability, such as those that come with a user namespace of one's own."""
    header = struct.pack("=Ii", _CAPABILITY_VERSION_3, 0)
    _call(_number("capset"), "capset", header, bytes(24))


def landlock_abi() -> int:
    """Return the version of Landlock in this kernel. Raises OSError where it has none or it is off."""
    return _call(_LANDLOCK_CREATE_RULESET, "landlock", None, 0, _LANDLOCK_CREATE_RULESET_VERSION)


def landlock_ruleset(attributes: bytes) -> int:
    """Return the descriptor of a new ruleset."""
    return _call(_LANDLOCK_CREATE_RULESET, "landlock_create_ruleset", attributes, len(attributes), 0)


def landlock_add_rule(ruleset: int, kind: int, rule: bytes) -> None:
    """Add one rule."""
    _call(_LANDLOCK_ADD_RULE, "landlock_add_rule", ruleset, kind, rule, 0)


def landlock_restrict_self(ruleset: int) -> None:
    """Bind this thread, and what it starts, to the ruleset for ever."""
    _call(_LANDLOCK_RESTRICT_SELF, "landlock_restrict_self", ruleset, 0)


def seccomp(instructions: bytes) -> None:
    """Have every system call of all threads of this process judged by the BPF program, for ever."""
    buffer = ctypes.create_string_buffer(instructions, len(instructions))
    program = struct.pack("=HxxxxxxQ", len(instructions) // 8, ctypes.addressof(buffer))
    _call(_number("seccomp"), "seccomp", _SECCOMP_SET_MODE_FILTER, _SECCOMP_FILTER_FLAG_TSYNC, program)
