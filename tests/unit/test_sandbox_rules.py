"""What the sandbox decides before it touches a kernel: mounts, calls, uids, groups, and what it says afterwards."""

from __future__ import annotations

import errno
import socket
import struct
from pathlib import Path

import pytest

from samovar.cli.checks import sandbox_verdict
from samovar.cli.text import sandbox as in_short
from samovar_instance import landlock, seccomp
from samovar_instance.hints import hint_for
from samovar_instance.namespaces import Step, plan
from samovar_pool.backends import cgroups, sandbox
from samovar_pool.backends.cgroups import Limits, Tree

HOME, VENV, DATA, CACHE = "/home/ada", "/home/ada/venv", "/srv/data", "/srv/data/cache"
ALLOWED = 0
EXECVE, FORK, CLONE, CLONE3, SOCKET, SOCKETPAIR, CONNECT, READ, PTRACE, IO_URING = (
    59,
    57,
    56,
    435,
    41,
    53,
    42,
    0,
    101,
    425,
)
PRLIMIT64 = 302
X86_64, I386, AARCH64 = 0xC000003E, 0x40000003, 0xC00000B7
THREAD_FLAGS, NEWUSER = 0x3D0F00, 0x10000000


@pytest.mark.parametrize(
    ("hidden", "readable", "writable", "expected"),
    [
        ([], [VENV], [], []),
        ([HOME], [], [], [("hide", HOME)]),
        ([HOME], [VENV], [], [("hide", HOME), ("read", VENV)]),
        ([HOME], ["/usr/lib/python3"], [], [("hide", HOME)]),
        ([HOME, f"{HOME}/data"], [], [], [("hide", HOME)]),
        (
            [DATA, HOME],
            [CACHE, VENV],
            [f"{DATA}/instances"],
            [("hide", HOME), ("hide", DATA), ("read", VENV), ("read", CACHE), ("write", f"{DATA}/instances")],
        ),
        (
            [HOME, f"{HOME}/project/data"],
            [f"{HOME}/project", f"{HOME}/project/data/cache"],
            [],
            [
                ("hide", HOME),
                ("read", f"{HOME}/project"),
                ("hide", f"{HOME}/project/data"),
                ("read", f"{HOME}/project/data/cache"),
            ],
        ),
        (["/", "/usr", "/proc"], [], [], []),
    ],
)
def test_what_is_mounted_over_what(
    hidden: list[str], readable: list[str], writable: list[str], expected: list[tuple[str, str]]
) -> None:
    assert plan(hidden, readable, writable) == [Step(what, path) for what, path in expected]


def judged(program: bytes, number: int, *arguments: int, arch: int = X86_64) -> int:
    """Run a BPF program on one system call; return the errno it answers, 0 if the call is let through."""
    words = [number, arch, 0, 0]
    for argument in (*arguments, 0, 0)[:2]:
        words += [argument & 0xFFFFFFFF, argument >> 32]
    accumulator, position = 0, 0
    while True:
        code, if_true, if_false, value = struct.unpack_from("=HBBI", program, 8 * position)
        position += 1
        if code == 0x20:
            accumulator = words[value // 4]
        elif code == 0x54:
            accumulator &= value
        elif code == 0x06:
            return ALLOWED if value == 0x7FFF0000 else value & 0xFFFF
        else:
            holds = {0x15: accumulator == value, 0x35: accumulator >= value, 0x45: bool(accumulator & value)}[code]
            position += if_true if holds else if_false


@pytest.mark.parametrize(
    ("call", "strict", "template", "subprocesses", "network"),
    [
        ((READ,), 0, 0, 0, 0),
        ((EXECVE,), errno.EPERM, errno.EPERM, 0, errno.EPERM),
        ((FORK,), errno.EPERM, 0, 0, errno.EPERM),
        ((CLONE, 17), errno.EPERM, 0, 0, errno.EPERM),
        ((CLONE, THREAD_FLAGS), 0, 0, 0, 0),
        ((CLONE, NEWUSER | 17), *[errno.EPERM] * 4),
        ((CLONE3,), *[errno.ENOSYS] * 4),
        ((SOCKET, socket.AF_INET), errno.EACCES, errno.EACCES, errno.EACCES, 0),
        ((SOCKET, socket.AF_UNIX), *[errno.EACCES] * 4),
        ((SOCKET, 17), *[errno.EACCES] * 4),
        ((SOCKETPAIR, socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_CLOEXEC), 0, 0, 0, 0),
        ((SOCKETPAIR, socket.AF_UNIX, socket.SOCK_DGRAM), *[errno.EACCES] * 4),
        ((PTRACE,), *[errno.EPERM] * 4),
        ((PRLIMIT64, 0), 0, 0, 0, 0),
        ((PRLIMIT64, 7), *[errno.EPERM] * 4),
        ((IO_URING,), *[errno.EPERM] * 4),
        ((READ | 0x40000000,), *[errno.EPERM] * 4),
    ],
)
def test_which_calls_are_let_through(
    call: tuple[int, ...], strict: int, template: int, subprocesses: int, network: int
) -> None:
    def program(may_fork: bool, may_exec: bool, network: bool) -> bytes:
        return seccomp.program(may_fork=may_fork, may_exec=may_exec, network=network, machine="x86_64")

    kinds = [(False, False, False), (True, False, False), (True, True, False), (False, False, True)]
    assert [judged(program(*kind), *call) for kind in kinds] == [strict, template, subprocesses, network]


def test_forks_of_a_template_lose_the_right_to_fork() -> None:
    program = seccomp.no_forks("x86_64")
    denied = [judged(program, FORK), judged(program, CLONE, 17), judged(program, CLONE, THREAD_FLAGS)]
    assert denied == [errno.EPERM, errno.EPERM, ALLOWED]
    assert judged(program, READ) == judged(program, EXECVE) == ALLOWED, "the first program judges those"


def test_other_architectures_are_known_or_left_out() -> None:
    arm = seccomp.program(may_fork=False, may_exec=False, network=False, machine="aarch64")
    assert [judged(arm, number, arch=AARCH64) for number in (221, 117, 63)] == [errno.EPERM, errno.EPERM, ALLOWED]
    assert judged(arm, READ, arch=X86_64) == errno.EPERM
    x86 = seccomp.program(may_fork=True, may_exec=True, network=True, machine="x86_64")
    assert judged(x86, READ, arch=I386) == errno.EPERM, "the same calls have other numbers there"
    assert seccomp.program(may_fork=True, may_exec=True, network=True, machine="riscv64") == b""
    assert seccomp.no_forks("riscv64") == b""


@pytest.mark.parametrize(
    ("abi", "network", "expected"),
    [
        (1, False, ["landlock"]),
        (3, False, ["landlock"]),
        (4, False, ["landlock", "landlock_tcp"]),
        (4, True, ["landlock"]),
        (7, False, ["landlock", "landlock_tcp", "landlock_scopes"]),
    ],
)
def test_what_a_version_of_landlock_gives(abi: int, network: bool, expected: list[str]) -> None:
    assert landlock.names(abi, network) == expected


def test_only_outermost_paths_need_a_rule(tmp_path: Path) -> None:
    (tmp_path / "a" / "b").mkdir(parents=True)
    (tmp_path / "ab").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "a")
    listed = [str(tmp_path / name) for name in ("a/b", "a", "ab", "link", "absent")]
    assert landlock.outermost([*listed, ""]) == (f"{tmp_path}/a", f"{tmp_path}/ab")


@pytest.mark.parametrize(
    ("uid_map", "first", "count"),
    [
        ("         0          0 4294967295\n", 0x70000000, sandbox.NUM_UIDS),
        ("         0     100000      65536\n", 40000, 20000),
        ("         0       1000          1\n", 0, 0),
        ("0 1000 1\n1 100000 65536\n", 40000, 20000),
    ],
)
def test_uids_are_taken_from_what_is_mapped(uid_map: str, first: int, count: int) -> None:
    uids = sandbox.uid_range(uid_map)
    assert len(uids) == count and (not count or uids[0] == first)


def test_a_uid_rests_before_it_is_used_again() -> None:
    uids = sandbox.Uids(range(10, 14))
    assert [uids.take({11}) for _ in range(4)] == [10, 12, 13, 10]
    assert sandbox.Uids(range(10, 12)).take({10, 11}) == 0
    assert sandbox.Uids(range(0)).take(()) == 0


@pytest.mark.parametrize(("environment", "network"), [("", False), ("", True), ("0a1b", False), ("0a1b", True)])
def test_names_of_environments_with_the_network(environment: str, network: bool) -> None:
    name = sandbox.network_environment(environment, network)
    assert sandbox.packages_of(name) == environment
    assert sandbox.has_network(name) == network


def test_where_groups_can_be_made() -> None:
    first = (
        "cgroup /sys/fs/cgroup/memory cgroup rw,relatime,memory 0 0\n"
        "cgroup /sys/fs/cgroup/cpu cgroup rw,relatime,cpu 0 0\n"
        "cgroup2 /sys/fs/cgroup/unified cgroup2 rw,relatime 0 0\n"
        "tmpfs /run tmpfs rw 0 0\n"
    )
    own = "9:name=systemd:/\n4:memory:/box/7\n1:cpu:/\n0::/\n"
    trees = cgroups.candidates(first, own)
    assert Tree(Path("/sys/fs/cgroup/memory/box/7"), ("memory",), 1) in trees
    assert Tree(Path("/sys/fs/cgroup/cpu"), ("cpu",), 1) in trees
    second = "cgroup2 /sys/fs/cgroup cgroup2 rw,nosuid 0 0\n"
    folders = [tree.folder for tree in cgroups.candidates(second, "0::/user.slice/app.slice/samovar.service\n")]
    inside = Path("/sys/fs/cgroup/user.slice/app.slice/samovar.service")
    assert folders == [inside, inside.parent]


def test_limits_in_both_versions() -> None:
    limits, none = Limits(1 << 30, 256, 2.0), Limits(0, 0, 0.5)
    first, second = (Tree(Path("/x"), cgroups.CONTROLLERS, version) for version in (1, 2))
    bytes_ = str((1 << 30) + cgroups.MARGIN_BYTES)
    assert cgroups.values(first, limits) == {
        "memory.limit_in_bytes": bytes_,
        "pids.max": "256",
        "cpu.shares": "2048",
    }
    assert cgroups.values(second, limits) == {"memory.max": bytes_, "pids.max": "256", "cpu.weight": "200"}
    assert cgroups.values(first, none) == {"memory.limit_in_bytes": "-1", "pids.max": "max", "cpu.shares": "512"}
    assert cgroups.values(second, none) == {"memory.max": "max", "pids.max": "max", "cpu.weight": "50"}


def wrapped(error: Exception) -> Exception:
    """As urllib does it."""
    return RuntimeError(error)


@pytest.mark.parametrize(
    ("error", "expected"),
    [
        (PermissionError(errno.EACCES, "Permission denied"), "network=True"),
        (PermissionError(errno.EACCES, "Permission denied", "/etc/shadow"), "scratch folder"),
        (wrapped(PermissionError(errno.EPERM, "Operation not permitted")), "allow_subprocess=True"),
        (OSError(errno.ENETUNREACH, "Network is unreachable"), "network=True"),
        (socket.gaierror(-3, "Temporary failure in name resolution"), "network=True"),
        (BlockingIOError(errno.EAGAIN, "Resource temporarily unavailable"), "limit on processes"),
        (MemoryError(), "memory_gib"),
        (ValueError("tea"), ""),
        (FileNotFoundError(errno.ENOENT, "No such file", "x"), ""),
    ],
)
def test_a_refusal_says_what_to_ask_for(error: Exception, expected: str) -> None:
    hint = hint_for(error)
    assert expected in hint and bool(expected) == bool(hint)


def test_an_error_that_came_from_itself_ends_the_search() -> None:
    error = ValueError("tea")
    error.__context__ = KeyError("milk")
    error.__context__.__context__ = error
    assert hint_for(error) == ""


def test_how_the_layers_are_shown() -> None:
    assert in_short(["environment", "rlimits"]) == "off"
    assert (
        in_short(["uid", "network_namespace", "landlock", "seccomp", "cgroup_pids"])
        == "uid net landlock seccomp cgroup"
    )
    assert sandbox_verdict(["seccomp"], {}).level == "ok"
    verdict = sandbox_verdict(["seccomp"], {"uid": "only root can"})
    assert verdict.level == "note" and "uid (only root can)" in verdict.detail
