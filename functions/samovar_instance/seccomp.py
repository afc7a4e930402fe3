"""Which system calls user code may make: a classic BPF program, built once and installed at specialise.

Everything is allowed but what is listed: what traces, mounts, loads, reboots, or reaches the kernel by a side door such
as io_uring. Without `may_fork` and `may_exec` no process and no program is started either. Denied calls fail with an
errno, they kill nobody. Programs stack: of what several say the strictest holds.
This module does not know when the program is installed.
"""

from __future__ import annotations

import errno
import platform
import struct

# name: (x86_64, aarch64); None where the architecture has no such call
_DENIED: dict[str, tuple[int | None, int | None]] = {
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "process_madvise": (440, 440),
    "kcmp": (312, 272),
    "pidfd_getfd": (438, 438),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "memfd_secret": (447, 447),
    "vmsplice": (278, 75),
    "mount": (165, 40),
    "umount2": (166, 39),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "open_tree_attr": (467, 467),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "unshare": (272, 97),
    "setns": (308, 268),
    "name_to_handle_at": (303, 264),
    "open_by_handle_at": (304, 265),
    "fanotify_init": (300, 262),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "reboot": (169, 142),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "acct": (163, 89),
    "sethostname": (170, 161),
    "setdomainname": (171, 162),
    "settimeofday": (164, 170),
    "clock_settime": (227, 112),
    "clock_adjtime": (305, 266),
    "adjtimex": (159, 171),
    "syslog": (103, 116),
    "vhangup": (153, 58),
    "personality": (135, 92),
    "migrate_pages": (256, 238),
    "lookup_dcookie": (212, 18),
    "nfsservctl": (180, 42),
    "modify_ldt": (154, None),
    "iopl": (172, None),
    "ioperm": (173, None),
    "uselib": (134, None),
    "_sysctl": (156, None),
}
_EXECS: dict[str, tuple[int | None, int | None]] = {"execve": (59, 221), "execveat": (322, 281)}
_FORKS: dict[str, tuple[int | None, int | None]] = {"fork": (57, None), "vfork": (58, None)}
_CLONE, _CLONE3, _SOCKET, _SOCKETPAIR, _PRLIMIT64 = (56, 220), (435, 435), (41, 198), (53, 199), (302, 261)
_ARCHITECTURES = {"x86_64": (0, 0xC000003E), "aarch64": (1, 0xC00000B7)}
_X32_BIT = 0x40000000  # numbers beyond are calls of the x32 ABI: the same deeds by other names

_LOAD, _JUMP_EQUAL, _JUMP_GREATER_EQUAL, _JUMP_ANY_BIT, _AND, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x54, 0x06
_NR, _ARCH, _FIRST, _SECOND = 0, 4, 16, 24  # offsets into seccomp_data; the low half of an argument comes first
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_CLONE_THREAD, _CLONE_NEW_ANY = 0x00010000, 0x7E020080  # namespaces: mount, cgroup, uts, ipc, user, pid, net, time
_AF_INET, _AF_INET6, _AF_NETLINK = 2, 10, 16
_TYPE_MASK, _SOCK_STREAM, _SOCK_SEQPACKET = 0xF, 1, 5


def program(*, may_fork: bool, may_exec: bool, network: bool, machine: str = platform.machine()) -> bytes:
    """Return the BPF program, b"" on a machine whose calls are not known here.

    network: internet sockets may be made; without it no socket at all but connected pairs. Unix sockets never: a path
    or name could lead to a server of the host.
    """
    if machine not in _ARCHITECTURES:
        return b""
    column, arch = _ARCHITECTURES[machine]
    code = [_op(_LOAD, _ARCH), *_unless(_JUMP_EQUAL, arch, [_deny(errno.EPERM)]), _op(_LOAD, _NR)]
    code += _when(_JUMP_GREATER_EQUAL, _X32_BIT, [_deny(errno.EPERM)])
    # glibc falls back from clone3, whose flags cannot be read from here, to clone
    code += _when(_JUMP_EQUAL, _CLONE3[column], [_deny(errno.ENOSYS)])
    code += _when(_JUMP_EQUAL, _CLONE[column], _judge_clone(may_fork))
    code += _when(_JUMP_EQUAL, _SOCKET[column], _judge_socket(network))
    code += _when(_JUMP_EQUAL, _SOCKETPAIR[column], _judge_socketpair())
    code += _when(_JUMP_EQUAL, _PRLIMIT64[column], _judge_prlimit())
    denied = _DENIED | ({} if may_fork else _FORKS) | ({} if may_exec else _EXECS)
    return b"".join([*code, *_deny_all(denied, column), _op(_RETURN, _ALLOW)])


def no_forks(machine: str = platform.machine()) -> bytes:
    """Return a program that denies forks and nothing else, to be stacked on one that allowed them."""
    if machine not in _ARCHITECTURES:
        return b""
    column, _ = _ARCHITECTURES[machine]
    code = [_op(_LOAD, _NR), *_deny_all(_FORKS, column)]
    return b"".join([*code, *_when(_JUMP_EQUAL, _CLONE[column], _judge_clone(False)), _op(_RETURN, _ALLOW)])


def _deny_all(calls: dict[str, tuple[int | None, int | None]], column: int) -> list[bytes]:
    numbers = sorted(number for row in calls.values() if (number := row[column]) is not None)
    return [op for number in numbers for op in _when(_JUMP_EQUAL, number, [_deny(errno.EPERM)])]


def _judge_clone(may_fork: bool) -> list[bytes]:
    code = [_op(_LOAD, _FIRST), *_when(_JUMP_ANY_BIT, _CLONE_NEW_ANY, [_deny(errno.EPERM)])]
    if not may_fork:
        code += _unless(_JUMP_ANY_BIT, _CLONE_THREAD, [_deny(errno.EPERM)])
    return [*code, _op(_RETURN, _ALLOW)]


def _judge_socket(network: bool) -> list[bytes]:
    code = [_op(_LOAD, _FIRST)] if network else []
    for family in (_AF_INET, _AF_INET6, _AF_NETLINK) if network else ():
        code += _when(_JUMP_EQUAL, family, [_op(_RETURN, _ALLOW)])
    return [*code, _deny(errno.EACCES)]


def _judge_socketpair() -> list[bytes]:
    # a datagram pair could be connected anew, to a path
    code = [_op(_LOAD, _SECOND), _op(_AND, _TYPE_MASK)]
    for kind in (_SOCK_STREAM, _SOCK_SEQPACKET):
        code += _when(_JUMP_EQUAL, kind, [_op(_RETURN, _ALLOW)])
    return [*code, _deny(errno.EACCES)]


def _judge_prlimit() -> list[bytes]:
    # 0 is the caller itself; others of the same user must not have their limits cut
    return [_op(_LOAD, _FIRST), *_unless(_JUMP_EQUAL, 0, [_deny(errno.EPERM)]), _op(_RETURN, _ALLOW)]


def _op(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("=HBBI", code, if_true, if_false, value)


def _deny(number: int) -> bytes:
    return _op(_RETURN, _ERRNO | number)


def _when(test: int, value: int, body: list[bytes]) -> list[bytes]:
    return [_op(test, value, 0, len(body)), *body]


def _unless(test: int, value: int, body: list[bytes]) -> list[bytes]:
    return [_op(test, value, len(body), 0), *body]
