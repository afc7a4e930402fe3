"""What an instance process may do, in the three stages its sandbox is built in.

    zygote       once, before the first fork: namespaces, a clean environment
    fork         a blank, right after the fork and still without user code: own uid, limits, no privileges
    specialise   right before user code: memory, Landlock to the version's own folders, seccomp

Each layer is tried and recorded; the names of those that are on travel in Welcome and Ready. A layer that fails is
left out and logged, or, with mode "required", ends the process. Cgroups are the pool manager's part. This module does
not know what the process is for.
"""

from __future__ import annotations

import contextlib
import glob
import logging
import os
import resource
import sys
import tempfile
from collections.abc import Callable, Collection, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import samovar
import samovar_instance
from samovar_instance import kernel, landlock, namespaces, seccomp
from samovar_instance.namespaces import MAX_OPEN_FILES, Inside

logger = logging.getLogger("samovar.instance")

Mode = Literal["off", "best-effort", "required"]
Layer = Callable[[], list[str] | None]

RUNTIME_BYTES = 32 * 1024 * 1024  # stacks and buffers of our own threads
MAX_TASKS, MAX_TASKS_WHERE_FORKS = 4096, 512  # threads count, and forks of a template share their uid
# Everything else is dropped: a credential in a variable nobody thought of must not reach user code.
_KEPT_VARIABLES = frozenset(
    {"PATH", "HOME", "LANG", "TZ", "TMPDIR", "LD_LIBRARY_PATH", "PYTHONPATH", "PYTHONUNBUFFERED", "PYTHONHASHSEED"}
)
_KEPT_PREFIXES = ("LC_", "CUDA_", "NVIDIA_", "OMP_", "MKL_", "KMP_", "PYTORCH_", "HF_HUB_OFFLINE", "TOKENIZERS_")
_HIDDEN = ("/root", "/home", "/run", "/var/lib/kubelet")  # homes; servers' sockets and mounted secrets
_KEPT = ("/run/systemd/resolve", "/run/nvidia", "/run/opengl-driver")  # resolv.conf and drivers
_SYSTEM = ("/usr", "/lib", "/lib64", "/bin", "/sbin", "/etc", "/opt", "/nix/store", "/sys")
_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom")
_DEVICE_NODES = ("/dev/nvidia*", "/dev/kfd", "/dev/dri")


class SandboxGap(Exception):
    """A layer of a sandbox that is required cannot be had."""


@dataclass(frozen=True, slots=True)
class Policy:
    """What whoever starts the zygote decides. hidden: folders and files to take away; readable, writable: what of that
    instances need all the same. network: its functions may call out. max_memory_bytes: of versions that set no limit,
    0 = none."""

    mode: Mode = "best-effort"
    hidden: tuple[str, ...] = ()
    readable: tuple[str, ...] = ()
    writable: tuple[str, ...] = ()
    network: bool = False
    max_memory_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Needs:
    """What a version may use. folders: its code, weights and layers. memory_bytes: to allocate from now on, mapped
    weights not counted, 0 = as the policy says. is_template: it is forked from, by us."""

    folders: tuple[str, ...] = ()
    scratch_dir: str = ""
    weights_dir: str = ""
    memory_bytes: int = 0
    allow_subprocess: bool = False
    is_template: bool = False


class Sandbox:
    """The confinement of one zygote and all its forks; `on` names the layers of this process, in the order they came.

    off: why the others are not.
    """

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.on: list[str] = []
        self.off: dict[str, str] = {}
        self._inside: Inside | None = None
        self._device_groups: list[int] = []
        self._common_folders: tuple[str, ...] = ()
        self._rules: landlock.Rules | None = None
        self._may_fork = False
        # built before the first fork: 1 ms that no child pays
        self._programs = {
            key: seccomp.program(may_fork=key[0], may_exec=key[1], network=policy.network)
            for key in ((False, False), (True, False), (True, True))
        }
        self._no_forks = seccomp.no_forks()

    @property
    def is_on(self) -> bool:
        """Whether more than the plain limits is wanted."""
        return self.policy.mode != "off"

    # ---- zygote ----------------------------------------------------------------------------------------------------

    def at_zygote(self) -> None:
        """Apply the layers all children share. For a process with one thread. Raises SandboxGap."""
        layers: dict[str, Layer] = {"environment": _clean_environment}
        if self.is_on:
            if os.geteuid() != 0:
                layers["user_namespace"] = namespaces.enter_user_namespace
            if not self.policy.network:
                layers["network_namespace"] = namespaces.leave_network
            layers["ipc_namespace"] = namespaces.leave_ipc
            layers["mount_namespace"] = self._hide
            layers["pid_namespace"] = self._make_pid_namespace
            self._device_groups = _device_groups()
        self._apply(layers)
        self._common_folders = landlock.outermost([*_SYSTEM, *_KEPT, *_interpreter()])
        if self._inside is not None and self._inside.problem:
            self._refused("proc", self._inside.problem)

    def _hide(self) -> None:
        policy, kept = self.policy, landlock.outermost([*_interpreter(), *_KEPT])
        private = closed_to_others([*policy.readable, *policy.writable, sys.prefix, sys.base_prefix])
        hidden = {os.path.realpath(path) for path in (*_HIDDEN, *policy.hidden, *private) if os.path.exists(path)}
        readable = {*kept, *landlock.outermost(policy.readable)}
        namespaces.hide(namespaces.plan(hidden, readable, landlock.outermost(policy.writable)))

    def _make_pid_namespace(self) -> None:
        self._inside = namespaces.make_pid_namespace()

    # ---- fork ------------------------------------------------------------------------------------------------------

    def at_fork(self, kept_fds: Collection[int], uid: int) -> None:
        """Confine a fork of the zygote. Raises SandboxGap.

        kept_fds: descriptors beyond 0-2 that stay open. uid: what it runs as from now on, 0 = no change.
        """
        layers: dict[str, Layer] = {}
        if self._inside is not None and self._inside.mounts_fd >= 0:
            inside = self._inside
            layers["proc"] = lambda: namespaces.enter(inside)
        layers["descriptors"] = lambda: namespaces.close_all_but(kept_fds)
        layers["rlimits"] = _limit_files
        if self.is_on and uid:
            layers["uid"] = lambda: self._become(uid)
        if self.is_on:
            layers["capabilities"] = kernel.drop_capabilities
        layers["no_new_privs"] = kernel.no_new_privileges
        self._apply(layers)
        self._inside = None

    def _become(self, uid: int) -> None:
        os.setgroups(self._device_groups)
        os.setresgid(uid, uid, uid)
        os.setresuid(uid, uid, uid)

    def at_template_fork(self) -> None:
        """Set a fork of a template apart from its siblings, with which it shares uid and Landlock rules."""
        layers: dict[str, Layer] = {}
        if "landlock_scopes" in self.on:
            layers["apart"] = landlock.set_apart
        if "seccomp" in self.on and not self._may_fork:
            layers["forks"] = lambda: kernel.seccomp(self._no_forks)
        self._apply(layers)

    # ---- specialise ------------------------------------------------------------------------------------------------

    def at_specialise(self, needs: Needs) -> None:
        """Confine the process to its version's own folders, memory and calls, before any user code. Raises SandboxGap.

        Driver threads of a device context that is up keep running; Landlock does not bind those, seccomp does.
        """
        layers: dict[str, Layer] = {}
        if needs.scratch_dir:
            layers["scratch"] = lambda: _use_scratch(needs.scratch_dir)
        memory_bytes = needs.memory_bytes or self.policy.max_memory_bytes
        if memory_bytes:
            layers["memory"] = lambda: _limit_memory(memory_bytes, _size_bytes(needs.weights_dir))
        if self.is_on:
            layers["tasks"] = lambda: self._limit_tasks(needs)
            layers["landlock"] = lambda: self._restrict_files(needs)
            layers["seccomp"] = lambda: self._restrict_calls(needs)
        self._apply(layers)
        self._may_fork = needs.allow_subprocess

    def _limit_tasks(self, needs: Needs) -> None:
        # without a uid of its own, everything the user runs counts: a low limit would stop that, not a fork bomb
        may_fork = needs.allow_subprocess or needs.is_template
        wanted = MAX_TASKS_WHERE_FORKS if may_fork and "uid" in self.on else MAX_TASKS
        _, hard = resource.getrlimit(resource.RLIMIT_NPROC)
        limit = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
        resource.setrlimit(resource.RLIMIT_NPROC, (limit, limit))

    def _common_rules(self, *, may_execute: bool) -> landlock.Rules:
        """Return what every version may see: most of the cost of Landlock, paid by a blank that nobody waits for."""
        # /proc is written to for thread names; what else can be written there needs rights nobody has here
        nodes = [node for pattern in _DEVICE_NODES for node in glob.glob(pattern)]
        shared = ("/dev/shm",)  # noqa: S108 (its own, see namespaces)
        rules = landlock.Rules(network=self.policy.network)
        rules.allow(landlock.Folders(self._common_folders, shared, ("/proc", *_DEVICES, *nodes), may_execute))
        return rules

    def _restrict_files(self, needs: Needs) -> list[str]:
        rules, self._rules = self._rules, None
        if rules is None or needs.allow_subprocess:
            if rules is not None:
                rules.drop()
            rules = self._common_rules(may_execute=needs.allow_subprocess)
        scratch = tuple(path for path in (needs.scratch_dir,) if path)
        own = landlock.Folders(landlock.outermost(needs.folders), scratch, may_execute=needs.allow_subprocess)
        on = rules.restrict(own)
        for name in landlock.names(landlock.MAX_ABI, self.policy.network):
            if name not in on:
                self._refused(name, "this kernel's Landlock is older")
        return on

    def _restrict_calls(self, needs: Needs) -> None:
        program = self._programs[needs.allow_subprocess or needs.is_template, needs.allow_subprocess]
        if not program:
            raise OSError(0, "the numbers of system calls are not known on this architecture")
        kernel.seccomp(program)

    # ---- all stages ------------------------------------------------------------------------------------------------

    def _apply(self, layers: dict[str, Layer]) -> None:
        for name, layer in layers.items():
            try:
                on = layer()
            except (OSError, ValueError) as error:
                self._refused(name, str(error))
            else:
                self.on += on if on is not None else [name]

    def _refused(self, name: str, why: str) -> None:
        logger.warning("sandbox layer %s is off: %s", name, why)
        self.off[name] = why
        if self.policy.mode == "required":
            raise SandboxGap(f"sandbox = required, but the layer {name} cannot be had: {why}")


def _interpreter() -> list[str]:
    """Return where Python and its packages are, ours among them: an editable install may have them in a home."""
    libraries = os.environ.get("LD_LIBRARY_PATH", "").split(os.pathsep)
    ours = [*samovar.__path__, *samovar_instance.__path__]
    return [
        sys.prefix,
        sys.base_prefix,
        sys.exec_prefix,
        os.path.realpath(sys.executable),
        *sys.path,
        *libraries,
        *ours,
    ]


def closed_to_others(paths: Iterable[str]) -> Iterator[str]:
    """Yield, of what is around each path, the outermost folder that only some users may pass: an empty one that all
    may pass must take its place, or an instance with a uid of its own would not get to the path."""
    for path in map(Path, map(os.path.realpath, paths)):
        yield from [str(folder) for folder in reversed(path.parents) if not folder.stat().st_mode & 0o001][:1]


def _device_groups() -> list[int]:
    """Return the groups that may open accelerators which not everybody may."""
    found = set()
    for node in (node for pattern in (*_DEVICE_NODES, "/dev/dri/*") for node in glob.glob(pattern)):
        with contextlib.suppress(OSError):
            status = os.stat(node)
            if status.st_gid and status.st_mode & 0o060 and not status.st_mode & 0o006:
                found.add(status.st_gid)
    return sorted(found)


def _clean_environment() -> None:
    for name in list(os.environ):
        if name not in _KEPT_VARIABLES and not name.startswith(_KEPT_PREFIXES):
            del os.environ[name]
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
    # torch must not initialise CUDA just to count devices: children of a process that did cannot use it
    os.environ.setdefault("PYTORCH_NVML_BASED_CUDA_CHECK", "1")


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


def _use_scratch(scratch_dir: str) -> None:
    os.makedirs(scratch_dir, mode=0o700, exist_ok=True)
    os.environ["TMPDIR"] = os.environ["HOME"] = scratch_dir
    tempfile.tempdir = scratch_dir  # it had been found out in the zygote
    os.chdir(scratch_dir)
