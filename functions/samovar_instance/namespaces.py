"""The namespaces that all children of a zygote share: what of the host they can see.

    user      only without root: gives the right to make the others
    network   empty, not even loopback
    ipc       System V shared memory and queues of their own
    mounts    homes, /run and the platform's data folder are gone but for what instances need
    pids      children see each other and an init, nothing of the host; the zygote itself stays outside

The pid namespace is one for all children and not one each: a template must be able to end without its forks. Its init
is a fork of the zygote that does nothing but wait; it ends when the zygote and every child have. Children enter the
init's mount namespace, which has a /proc and a /dev/shm of its own. This module does not know uids or instances.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from samovar_instance import kernel

MAX_OPEN_FILES = 4096
_LOOK_S = 0.05
_SHARED_MEMORY_BYTES = 1 << 30
_NEVER_HIDDEN = frozenset(("/", "/bin", "/dev", "/etc", "/lib", "/lib64", "/proc", "/sbin", "/sys", "/usr"))


@dataclass(frozen=True, slots=True)
class Step:
    """One mount. what: "hide" puts an empty folder over `path`, "read" and "write" put back what was there."""

    what: str
    path: str


def plan(hidden: Iterable[str], readable: Iterable[str], writable: Iterable[str]) -> list[Step]:
    """Return the mounts, outer folders first, that hide all of `hidden` but the other two. All paths are resolved.

    What no other step would change is left out: hiding inside hidden, keeping what nothing hides.
    """
    wanted = {path: "hide" for path in hidden if path not in _NEVER_HIDDEN}
    wanted |= {path: "read" for path in readable} | {path: "write" for path in writable}
    steps: list[Step] = []
    for path in sorted(wanted, key=lambda path: (path.count("/"), path)):
        around = next((s.what for s in reversed(steps) if Path(path).is_relative_to(s.path)), "")
        is_moot = around == wanted[path] or (not around and wanted[path] != "hide")
        if not is_moot:
            steps.append(Step(wanted[path], path))
    return steps


def enter_user_namespace() -> None:
    """Have all rights over the namespaces made from now on, and none over the host. For one-threaded processes."""
    uid, gid = os.getuid(), os.getgid()
    kernel.unshare(kernel.CLONE_NEWUSER)
    for name, text in (("setgroups", "deny"), ("uid_map", f"{uid} {uid} 1"), ("gid_map", f"{gid} {gid} 1")):
        Path("/proc/self", name).write_text(text)


def leave_network() -> None:
    """Be in a network namespace without any interface that is up."""
    kernel.unshare(kernel.CLONE_NEWNET)


def leave_ipc() -> None:
    """Be where no System V IPC and no POSIX message queue of the host is."""
    kernel.unshare(kernel.CLONE_NEWIPC)


def hide(steps: list[Step]) -> None:
    """Carry out `steps` in a mount namespace of this process's own. Raises OSError, with all of it still to be seen."""
    kernel.unshare(kernel.CLONE_NEWNS)
    kernel.mount("none", "/", "", kernel.MS_REC | kernel.MS_PRIVATE)
    kept = {step.path: os.open(step.path, os.O_PATH | os.O_CLOEXEC) for step in steps if step.what != "hide"}
    done: list[str] = []
    try:
        for step in steps:
            _hide(step.path) if step.what == "hide" else _keep(step, kept[step.path])
            done.append(step.path)
        for step in steps:
            if step.what == "hide":
                _seal(step.path)
    except OSError:
        for path in reversed(done):
            kernel.unmount(path)
        raise
    finally:
        for fd in kept.values():
            os.close(fd)


def _hide(path: str) -> None:
    if os.path.isdir(path):
        kernel.mount("none", path, "tmpfs", kernel.MS_NOSUID | kernel.MS_NODEV, "mode=755,size=1m")
    else:
        kernel.mount("/dev/null", path, "", kernel.MS_BIND)


def _keep(step: Step, fd: int) -> None:
    if os.path.isdir(f"/proc/self/fd/{fd}"):
        os.makedirs(step.path, exist_ok=True)
    else:
        os.makedirs(os.path.dirname(step.path), exist_ok=True)
        Path(step.path).touch()
    kernel.mount(f"/proc/self/fd/{fd}", step.path, "", kernel.MS_BIND | kernel.MS_REC)
    if step.what == "read":
        kernel.make_read_only(step.path)


def _seal(path: str) -> None:
    # what is mounted below keeps its own rights: a read-only remount is of this mount alone
    flags = kernel.MS_REMOUNT | kernel.MS_BIND | kernel.MS_RDONLY | kernel.MS_NOSUID | kernel.MS_NODEV
    if os.path.isdir(path):
        kernel.mount("none", path, "", flags)


@dataclass(frozen=True, slots=True)
class Inside:
    """The pid namespace of the children. alive_fd: the init ends some time after every copy of it is closed.

    mounts_fd: the mount namespace with a /proc of their own, -1 if there is none, for the reason in `problem`.
    """

    init_pid: int
    alive_fd: int
    mounts_fd: int = -1
    problem: str = ""


def make_pid_namespace() -> Inside:
    """Have every later fork of this process be in a new pid namespace, whose init runs. Raises OSError."""
    alive_read, alive_write = os.pipe()
    ready_read, ready_write = os.pipe()
    kernel.unshare(kernel.CLONE_NEWPID)
    pid = os.fork()
    if pid == 0:
        _be_init(alive_read, ready_write)
    for fd in (alive_read, ready_write):
        os.close(fd)
    with open(ready_read, "rb") as ready:
        problem = ready.read().decode()
    if problem:
        return Inside(pid, alive_write, problem=problem)
    return Inside(pid, alive_write, os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC))


def _be_init(alive_fd: int, ready_fd: int) -> NoReturn:
    """Hold the namespace open, inherit and reap orphans, until the zygote and all in here have ended."""
    os.setsid()  # whoever ends the zygote's group leaves its children alone
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # orphans are reaped by the kernel
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    close_all_but((alive_fd, ready_fd))
    try:
        _mount_own()
    except OSError as error:
        os.write(ready_fd, str(error).encode())
    os.close(ready_fd)
    os.read(alive_fd, 1)
    while _is_anybody_here():
        time.sleep(_LOOK_S)
    os._exit(0)


def _is_anybody_here() -> bool:
    """Return whether this init is not alone. Not by wait: whose parent was the zygote, outside, was never its child."""
    try:
        os.kill(-1, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def close_all_but(kept_fds: Collection[int]) -> None:
    """Close every descriptor beyond 2 that is not among `kept_fds`."""
    low = 3
    for fd in sorted(kept_fds):
        os.closerange(low, fd)
        low = fd + 1
    os.closerange(low, MAX_OPEN_FILES)
    highest = max((int(name) for name in os.listdir("/proc/self/fd")), default=0)
    if highest >= MAX_OPEN_FILES:
        os.closerange(MAX_OPEN_FILES, highest + 1)


def _mount_own() -> None:
    kernel.unshare(kernel.CLONE_NEWNS)
    kernel.mount("none", "/", "", kernel.MS_REC | kernel.MS_PRIVATE)
    safe = kernel.MS_NOSUID | kernel.MS_NODEV | kernel.MS_NOEXEC
    kernel.mount("proc", "/proc", "proc", safe, "hidepid=2")
    kernel.mount("none", "/dev/shm", "tmpfs", safe, f"mode=1777,size={_SHARED_MEMORY_BYTES}")  # noqa: S108


def enter(inside: Inside) -> None:
    """Be, as a fork of the zygote, where /proc shows the children alone."""
    kernel.setns(inside.mounts_fd, kernel.CLONE_NEWNS)
    os.chdir("/")
