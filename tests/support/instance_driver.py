"""Drives real zygote and instance processes by frames, as the pool manager and a gateway would.

with Zygote(tmp_path) as zygote:
    instance = zygote.start(FUNCTIONS / "echo_sum")      # fork a blank, specialise it, wait until it is ready
    caller = instance.connect()
    result = caller.call(b'{"values": [1, 2]}')
"""

from __future__ import annotations

import importlib.util
import itertools
import os
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable
from pathlib import Path
from types import ModuleType
from typing import Any, Literal, TypeVar

import msgspec
import psutil

from samovar import wire
from samovar.authoring import definition_of, is_function
from samovar.spec import BlobRef, Manifest, Scaling
from samovar_pool.backends import procfs
from support.waiting import PATIENCE_S, wait_until

FUNCTIONS = Path(__file__).parents[1] / "functions"
TOKEN = "let me in"
TIMEOUT_S = PATIENCE_S
BOOT_TIMEOUT_S = 180.0  # importing torch takes a busy machine long; a process that ends is noticed at once
_numbers = itertools.count(1)

M = TypeVar("M", bound=wire.Message)


class Caller:
    """One connection to an instance, zygote or template; frames are kept in order until somebody asks for them."""

    def __init__(
        self,
        address: str,
        token: str = TOKEN,
        role: Literal["gateway", "manager"] = "gateway",
        timeout_s: float = TIMEOUT_S,
    ) -> None:
        """Connect and wait for the Welcome. timeout_s: how long for it."""
        self.sock = connect(address)
        self.decoder = wire.caller_side()
        self.frames: deque[Any] = deque()
        self.send(wire.Hello(wire.PROTOCOL_VERSION, token, role, "driver"))
        try:
            self.welcome = self.expect(wire.Welcome, timeout_s)
        except BaseException:
            self.close()
            raise

    def send(self, *messages: wire.Message, fds: Iterable[int] = ()) -> None:
        """Write the frames in one piece, with the descriptors."""
        data = b"".join(wire.encode(message) for message in messages)
        listed = list(fds)
        if listed:
            socket.send_fds(self.sock, [data], listed)
        else:
            self.sock.sendall(data)

    def next(self, timeout_s: float = TIMEOUT_S) -> Any:
        """Return the next frame. Raises EOFError when the other side closed, TimeoutError when it is silent."""
        self.sock.settimeout(timeout_s)
        while not self.frames:
            data = self.sock.recv(1 << 20)
            if not data:
                raise EOFError("closed by the instance")
            self.frames.extend(self.decoder.feed(data))
        return self.frames.popleft()

    def expect(self, kind: type[M], timeout_s: float = TIMEOUT_S) -> M:
        """Return the next frame, which must be of `kind`; Stats and exits of others are skipped."""
        while True:
            frame = self.next(timeout_s)
            if isinstance(frame, kind):
                return frame
            assert isinstance(frame, wire.Stats | wire.Exited), f"expected {kind.__name__}, got {frame}"

    def invoke(self, body: Any, timeout_ms: float = 30_000, **options: Any) -> int:
        """Send one call; return its id."""
        number = next(_numbers)
        data = body if isinstance(body, bytes) else msgspec.json.encode(body)
        self.send(wire.Invoke(number, data, timeout_ms, **options))
        return number

    def call(self, body: Any, timeout_ms: float = 30_000) -> Any:
        """Send one call and return the decoded JSON of its Result."""
        number = self.invoke(body, timeout_ms)
        result = self.expect(wire.Result)
        assert result.id == number
        return msgspec.json.decode(result.body)

    def fail(self, body: Any, timeout_ms: float = 30_000) -> wire.Failure:
        """Send one call and return its Failure."""
        self.invoke(body, timeout_ms)
        return self.expect(wire.Failure)

    def answers(self, count: int) -> dict[int, Any]:
        """Return the ends of `count` calls by id."""
        ends: dict[int, Any] = {}
        while len(ends) < count:
            frame = self.next()
            if isinstance(frame, wire.Result | wire.Failure | wire.Busy | wire.End):
                ends[frame.id] = frame
        return ends

    def close(self) -> None:
        self.sock.close()


class Instance:
    """A forked process. address: "unix:…" or "tcp:…". ready: what it said when it was loaded."""

    def __init__(self, pid: int, address: str, log: Path, manager: Caller | None = None) -> None:
        self.pid = pid
        self.address = address
        self.log = log
        self.manager = manager
        self.callers: list[Caller] = []
        self.ready: wire.Ready | None = None
        self.inside_pid = pid  # as its parent knows it
        self.process = psutil.Process(pid)

    def connect(self, token: str = TOKEN, role: Literal["gateway", "manager"] = "gateway") -> Caller:
        caller = Caller(self.address, token, role)
        self.callers.append(caller)
        return caller

    def control(self) -> Caller:
        """Return the manager's connection."""
        if self.manager is None:
            self.manager = self.connect(role="manager")
        return self.manager

    def specialise(
        self, folder: Path, *, weights: Path | None = None, role: Literal["instance", "template"] = "instance",
        num_threads: int = 1, layers: list[Path] | None = None, device: str = "cpu",
        is_awaited: bool = False, scratch_dir: str = "", **changes: Any,
    ) -> wire.Ready | wire.BootFailed:  # fmt: skip
        """Tell it to become the function in `folder`; return Ready or BootFailed."""
        manifest = msgspec.json.encode(msgspec.structs.replace(manifest_of(folder), **changes))
        self.control().send(
            wire.Specialise(
                manifest,
                str(folder),
                str(weights or ""),
                [str(layer) for layer in layers or []],
                device,
                num_threads,
                role,
                scratch_dir=scratch_dir or str(self.log.parent / f"scratch-{self.pid}"),
                is_awaited=is_awaited,
            )
        )
        answer = self.control().next(BOOT_TIMEOUT_S)
        assert isinstance(answer, wire.Ready | wire.BootFailed)
        self.ready = answer if isinstance(answer, wire.Ready) else None
        return answer

    def log_text(self) -> str:
        return self.log.read_text()

    def is_alive(self) -> bool:
        try:
            return self.process.is_running() and self.process.status() != psutil.STATUS_ZOMBIE
        except psutil.NoSuchProcess:
            return False

    def kill(self, number: int = signal.SIGKILL) -> None:
        if self.is_alive():
            os.kill(self.pid, number)


class Zygote:
    """A running zygote; leaving the `with` ends it and every process forked from it."""

    def __init__(
        self,
        folder: Path,
        *,
        without: tuple[str, ...] = (),
        options: Iterable[str] = (),
        before: Callable[[], None] | None = None,
    ) -> None:
        """Start it.

        without: packages that shall seem not to be installed. options: more of its command line. before: what its
        process does first, such as becoming another user.
        """
        self.folder = folder
        self.socket_path = folder / "zygote.sock"
        self.instances: list[Instance] = []
        self.exits: dict[int, int] = {}
        command = [sys.executable, "-m", "samovar_instance.zygote", "--socket", str(self.socket_path), *options]
        environment = {"PATH": os.environ["PATH"], "OMP_NUM_THREADS": "1", "PYTHONPATH": str(folder / "hidden")}
        (folder / "hidden").mkdir()
        for name in without:
            (folder / "hidden" / f"{name}.py").write_text(f"raise ImportError('no module named {name}')")
        with (folder / "zygote.log").open("ab") as log:
            self.process = subprocess.Popen(
                command,
                env=environment,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                preexec_fn=before,
            )
        try:
            wait_until(self._has_started, BOOT_TIMEOUT_S, "the zygote listens")
            self.control = Caller(f"unix:{self.socket_path}", "", "manager", BOOT_TIMEOUT_S)
        except BaseException:
            self.process.kill()
            self.process.wait()
            raise

    def _has_started(self) -> bool:
        assert self.process.poll() is None, (self.folder / "zygote.log").read_text()
        return self.socket_path.exists()

    def __enter__(self) -> Zygote:
        return self

    def __exit__(self, *_: object) -> None:
        self.clean()
        self.control.close()
        self.process.terminate()
        self.process.wait(60)

    def clean(self) -> None:
        """End every instance and close every connection to one."""
        for instance in self.instances:
            instance.kill()
            for caller in instance.callers:
                caller.close()
        self.instances.clear()

    def fork(self, *, tcp: bool = False, parent: Instance | None = None, **options: Any) -> Instance:
        """Fork a blank (or, from a template, a ready instance)."""
        name = f"i{next(_numbers)}"
        listener, address = listen(self.folder / f"{name}.sock", tcp)
        log = self.folder / f"{name}.log"
        log_fd = os.open(log, os.O_CREAT | os.O_RDWR | os.O_APPEND, 0o600)
        control = parent.control() if parent is not None else self.control
        control.send(wire.Fork(name, TOKEN, **options), fds=[listener.fileno(), log_fd, log_fd])
        forked = control.expect(wire.Forked)
        listener.close()
        os.close(log_fd)
        pid = forked.pid if parent is None else procfs.pid_of_child(parent.pid, forked.pid)
        instance = Instance(pid, address, log)
        instance.inside_pid = forked.pid
        self.instances.append(instance)
        return instance

    def start(self, folder: Path, *, tcp: bool = False, memory_bytes: int = 0, **options: Any) -> Instance:
        """Return a ready instance of the function in `folder`."""
        instance = self.fork(tcp=tcp, memory_bytes=memory_bytes)
        answer = instance.specialise(folder, **options)
        assert isinstance(answer, wire.Ready), f"{answer}\n{instance.log_text()}"
        return instance

    def exit_code(self, instance: Instance) -> int:
        """Wait for the zygote's word that the instance ended."""
        while instance.pid not in self.exits:
            exited = self.control.expect(wire.Exited)
            self.exits[exited.pid] = exited.exit_code
        return self.exits.pop(instance.pid)


def listen(path: Path, tcp: bool) -> tuple[socket.socket, str]:
    """Return a bound, listening socket and its address."""
    if tcp:
        listener = socket.create_server(("127.0.0.1", 0))
        return listener, f"tcp:127.0.0.1:{listener.getsockname()[1]}"
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind(str(path))
    listener.listen(64)
    return listener, f"unix:{path}"


def connect(address: str) -> socket.socket:
    """Return a connected socket, waiting for the listener to appear."""
    kind, _, rest = address.partition(":")
    deadline_s = time.monotonic() + TIMEOUT_S
    while True:
        try:
            if kind == "tcp":
                host, _, port = rest.rpartition(":")
                return socket.create_connection((host, int(port)), TIMEOUT_S)
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            sock.settimeout(TIMEOUT_S)
            sock.connect(rest)
            return sock
        except (FileNotFoundError, ConnectionRefusedError):
            sock.close()
            if time.monotonic() > deadline_s:
                raise
            time.sleep(0.02)


def _class(name: str, entry: str, example: Any = None) -> Manifest:
    code = BlobRef(sha256="", size_bytes=0)
    return Manifest(name=name, version=1, entry=entry, kind="class", handler="sync", code=code, example=example)


def _chats(name: str, entry: str) -> Manifest:
    manifest = _class(name, entry, {"prompt": "the", "max_tokens": 2})
    scaling = Scaling(target_concurrency=64)
    return msgspec.structs.replace(manifest, handler="async_generator", has_check=True, scaling=scaling)


# Importing these here would import torch into the test process.
HAND_MADE = {
    "linear": _class("linear", "app:Linear", {"rows": 4}),
    "on_gpu": _class("on-gpu", "app:OnGpu", {"deed": "embed"}),
    "draws": _class("draws", "app:Draws", {"generator": "torch"}),
    "torch_tensors": Manifest(
        name="torch-tensors",
        version=1,
        entry="app:torch_tensors",
        kind="function",
        handler="sync",
        code=BlobRef(sha256="", size_bytes=0),
    ),
    "loads_models": _class("loads-models", "app:LoadsModels"),
    "chats": _chats("chats", "app:Chats"),
    "drafts": _chats("drafts", "app:Drafts"),
    "chats_alone": _chats("chats-alone", "app:ChatsAlone"),
}


def manifest_of(folder: Path, version: int = 1) -> Manifest:
    """Return the manifest of the one function in `folder/app.py`, without blobs."""
    if folder.name in HAND_MADE:
        return HAND_MADE[folder.name]
    module = _import(folder / "app.py")
    name, target = next((name, value) for name, value in vars(module).items() if is_function(value))
    definition = definition_of(target)
    return Manifest(
        name=definition.name,
        version=version,
        entry=f"app:{name}",
        kind=definition.kind,
        handler=definition.handler,
        code=BlobRef(sha256="", size_bytes=0),
        scaling=definition.scaling,
        batch=definition.batch.spec if definition.batch is not None else None,
        resources=definition.resources,
        limits=definition.limits,
        has_check=definition.has_check,
        example=definition.example,
    )


def _import(path: Path) -> ModuleType:
    name = f"driven_{path.parent.name}"
    if name not in sys.modules:
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None and spec.loader is not None
        module = importlib.util.module_from_spec(spec)
        sys.modules[name] = module
        spec.loader.exec_module(module)
    return sys.modules[name]
