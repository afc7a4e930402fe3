"""A zygote, a function that attacks, another that is to be left alone, and a host with something to steal.

As root every instance gets a uid of its own; as a plain user (uid 65534 when the tests run as root) all share one;
"bare" is a plain user who may make no namespace, as in most containers.
"""

from __future__ import annotations

import errno
import os
import platform
import shutil
import socket
import struct
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Literal

import pytest

from samovar import wire
from samovar.spec import Resources
from samovar_instance import kernel, landlock, namespaces
from samovar_instance.confine import closed_to_others
from samovar_pool.backends.procfs import pid_inside
from samovar_pool.backends.sandbox import Uids, uid_range
from support.instance_driver import FUNCTIONS, Caller, Instance, Zygote

Who = Literal["root", "plain", "bare"]
NOBODY = 65534
SYS_UNSHARE = {"x86_64": 272, "aarch64": 97}[platform.machine()]
ANY = Resources()
SECRET = "the samovar's password"
GREETING = b"hello from the host"


class Arena:
    """One zygote with its data folder. attacker, victim: instances of one version each; ready to be called."""

    def __init__(self, folder: Path, who: Who, mode: str, *extra: str) -> None:
        self.folder = folder
        self.who = who
        self.mode = mode
        self.data = folder / "data"
        self.owner = NOBODY if who != "root" and os.geteuid() == 0 else os.geteuid()
        self._uids = Uids(uid_range(Path("/proc/self/uid_map").read_text()) if self.owner == 0 else range(0))
        self._taken: list[int] = []
        self._make_folders()
        options = ["--sandbox", mode, "--hide", str(self.data), "--readable", str(self.data / "cache")]
        options += ["--writable", str(self.data / "instances"), *extra]
        before = {"root": None, "plain": become_nobody, "bare": lose_namespaces}[who]
        try:
            self.zygote = Zygote(self.data / "run", without=("torch", "transformers"), options=options, before=before)
        except subprocess.SubprocessError as error:
            pytest.skip(f"a process here cannot become a plain user that reaches the interpreter: {error}")
        self.code = self.data / "cache" / "attacker"

    def _make_folders(self) -> None:
        shutil.copytree(FUNCTIONS / "attacker", self.data / "cache" / "attacker")
        (self.data / "cache" / "weights.bin").write_bytes(b"the weights")
        for name in ("run", "instances"):
            (self.data / name).mkdir()
        (self.data / "secret.json").write_text(SECRET)
        (self.data / "open.json").write_text(SECRET)
        for path in (self.folder, *self.folder.rglob("*")):
            path.chmod(0o755 if path.is_dir() else 0o644)
            os.chown(path, self.owner, -1)
        (self.data / "instances").chmod(0o711)
        (self.data / "secret.json").chmod(0o600)
        self.data.chmod(0o700 if self.mode != "off" else 0o755)

    def start(self, resources: Resources = ANY, role: Literal["instance", "template"] = "instance") -> Instance:
        """Return a ready instance (or template) of the attacker, with a uid of its own if there are any."""
        uid = self._uids.take(self._taken) if self.mode != "off" else 0
        self._taken.append(uid)
        blank = self.zygote.fork(uid=uid)
        scratch = self.data / "instances" / f"scratch-{blank.pid}"
        scratch.mkdir(0o700)
        os.chown(scratch, uid or self.owner, -1)
        ready = blank.specialise(self.code, role=role, resources=resources, scratch_dir=str(scratch))
        assert isinstance(ready, wire.Ready), f"{ready}\n{blank.log_text()}"
        return blank

    def pids(self, instance: Instance) -> str:
        """Return its pids, as the attacker takes them: the host's and the one inside."""
        return f"{instance.pid},{pid_inside(instance.pid)}"


def attack(caller: Caller, deed: str, target: object = "") -> str:
    """Return what an attack got."""
    answer: str = caller.call({"deed": deed, "target": str(target)})
    return answer


def become_nobody() -> None:
    """Be a plain user from now on, for whom an interpreter in somebody's home is there all the same."""
    if os.geteuid() != 0:
        return
    reach = landlock.outermost([sys.prefix, sys.base_prefix, *sys.path])
    hidden = set(closed_to_others(reach))
    if hidden:
        namespaces.hide(namespaces.plan(hidden, reach, ()))
    os.setgroups([])
    os.setresgid(NOBODY, NOBODY, NOBODY)
    os.setresuid(NOBODY, NOBODY, NOBODY)


def lose_namespaces() -> None:
    """Be a plain user whom the kernel refuses every namespace, as a container engine's seccomp profile does."""
    become_nobody()
    refused = (
        (0x20, 0, 0, 0),
        (0x15, 0, 1, SYS_UNSHARE),
        (0x06, 0, 0, 0x00050000 | errno.EPERM),
        (0x06, 0, 0, 0x7FFF0000),
    )
    kernel.no_new_privileges()
    kernel.seccomp(b"".join(struct.pack("=HBBI", *operation) for operation in refused))


@contextmanager
def arena(who: Who, mode: str, *options: str) -> Iterator[Arena]:
    """Yield an arena; skips the test where `who` cannot be had."""
    if who == "root" and os.geteuid() != 0:
        pytest.skip("only root can give instances uids of their own")
    with ExitStack() as stack:
        folder = Path(tempfile.mkdtemp(prefix="sv-"))
        stack.callback(shutil.rmtree, folder, ignore_errors=True)
        arena = Arena(folder, who, mode, *options)
        stack.enter_context(arena.zygote)
        yield arena


@contextmanager
def greeter(family: int, address: str | tuple[str, int]) -> Iterator[socket.socket]:
    """A server of the host: greets whoever connects, and lives for as long as the body."""
    with socket.socket(family, socket.SOCK_STREAM) as listener:
        listener.bind(address)
        if isinstance(address, str) and not address.startswith("\0"):
            os.chmod(address, 0o777)  # noqa: S103 (anybody may connect, as with many a server)
        listener.listen(8)
        thread = threading.Thread(target=_greet, args=(listener,), daemon=True)
        thread.start()
        try:
            yield listener
        finally:
            listener.shutdown(socket.SHUT_RDWR)
            thread.join(5)


def _greet(listener: socket.socket) -> None:
    while True:
        try:
            peer, _ = listener.accept()
        except OSError:
            return
        with peer:
            peer.sendall(GREETING)
