"""A host that lacks a piece: every layer but those that need it is still on, and the report says why one is not."""

from __future__ import annotations

import os
import subprocess
import sys

import msgspec
import pytest

from samovar_pool.backends.sandbox import Report, uid_range

pytestmark = pytest.mark.process

# The lowest seam: one system call of the kernel module fails as a host without it would have it fail.
NAMESPACES = {"user_namespace", "proc"} | {f"{kind}_namespace" for kind in ("network", "ipc", "mount", "pid")}
SCRIPT = """
import errno, sys
from samovar_instance import kernel, probe

def refuse(*arguments):
    raise OSError(errno.EPERM, "not on this host")

real, broken, when = None, sys.argv[1], sys.argv[2]
if broken:
    real = getattr(kernel, broken)
    flag = getattr(kernel, when, 0)
    setattr(kernel, broken, lambda *a: refuse() if not flag or flag in a else real(*a))
probe.main(sys.argv[3:])
"""


def report(broken: str = "", when: str = "", uid: int = 0, *options: str) -> Report:
    """Return what the probe says where a system call is broken: always, or when called with a flag."""
    command = [sys.executable, "-c", SCRIPT, broken, when, "--uid", str(uid), *options]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, timeout=60, check=True)
    return msgspec.json.decode(done.stdout, type=Report)


@pytest.fixture(scope="module")
def whole() -> Report:
    """What this machine can do."""
    return report()


@pytest.mark.parametrize(
    ("broken", "when", "lost"),
    [
        ("unshare", "CLONE_NEWNET", {"network_namespace"}),
        ("unshare", "CLONE_NEWIPC", {"ipc_namespace"}),
        ("unshare", "CLONE_NEWPID", {"pid_namespace", "proc"}),
        ("unshare", "", NAMESPACES),
        ("mount", "", {"mount_namespace", "proc"}),
        ("make_read_only", "", {"mount_namespace"}),
        ("setns", "", {"proc"}),
        ("seccomp", "", {"seccomp"}),
        ("landlock_abi", "", {"landlock", "landlock_tcp", "landlock_scopes"}),
        ("landlock_restrict_self", "", {"landlock", "landlock_tcp", "landlock_scopes"}),
        # without privileges the kernel lets nobody restrict himself who could gain some by an exec
        ("no_new_privileges", "", {"no_new_privs", "landlock", "landlock_tcp", "landlock_scopes", "seccomp"}),
        ("drop_capabilities", "", {"capabilities"}),
    ],
)
def test_one_missing_piece_costs_its_own_layers_only(whole: Report, broken: str, when: str, lost: set[str]) -> None:
    here = report(broken, when)
    assert set(here.on) == set(whole.on) - lost
    assert set(here.off) & lost, here.off


def test_an_older_landlock_gives_what_it_has(whole: Report) -> None:
    if "landlock_scopes" not in whole.on:
        pytest.skip("this kernel's Landlock is older itself")
    script = SCRIPT.replace("probe.main", "kernel.landlock_abi = lambda: 3\nprobe.main")
    command = [sys.executable, "-c", script, "", ""]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, timeout=60, check=True)
    here = msgspec.json.decode(done.stdout, type=Report)
    assert set(whole.on) - set(here.on) == {"landlock_tcp", "landlock_scopes"}
    assert here.off["landlock_scopes"] == "this kernel's Landlock is older"


def test_root_gives_each_a_uid_and_others_say_why_not(whole: Report) -> None:
    if os.geteuid() != 0:
        assert "user_namespace" in whole.on or "uid" in whole.off
        return
    assert "uid" not in whole.on and "uid" in whole.off
    with open("/proc/self/uid_map") as uid_map:
        uids = uid_range(uid_map.read())
    if uids:
        assert "uid" in report("", "", uids[0]).on


def test_the_sandbox_can_be_switched_off() -> None:
    assert report("", "", 0, "--sandbox", "off").on == [
        "environment",
        "descriptors",
        "rlimits",
        "no_new_privs",
        "memory",
    ]


def test_a_function_that_calls_out_keeps_the_rest(whole: Report) -> None:
    online = report("", "", 0, "--network")
    assert set(whole.on) - set(online.on) == {"network_namespace", "landlock_tcp"} & set(whole.on)
