"""The node's run folder: one socket, one log and one note per process, so that the next manager finds them all.

The notes are the local truth for adoption: they hold what Redis may have lost, and the tokens (mode 0600, folder 0700).
This module does not know what the processes do.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import socket
from pathlib import Path

import msgspec

from samovar.errors import ConfigError
from samovar.values import Struct

STREAMS = ("stdout", "stderr")
_BACKLOG = 256
MAX_SOCKET_PATH = 107  # sun_path of Linux, without its closing zero


class Note(Struct, frozen=True, kw_only=True):
    """What must be known to adopt a process. kind: instance, template or zygote."""

    instance_id: str
    kind: str
    pid: int = 0
    start_ticks: int = 0
    address: str = ""
    token: str = ""
    ref: str = ""
    environment: str = ""
    devices: tuple[str, ...] = ("cpu",)
    generation: int = 0
    started_at_s: float = 0.0
    uid: int = 0


class RunDir:
    """Paths and files under the data folder."""

    def __init__(self, data_dir: Path, transport: str) -> None:
        self.run = data_dir / "run"
        self.instances = data_dir / "instances"
        self.logs = data_dir / "logs"
        self._transport = transport
        if len(str(self.socket_path("i-" + "0" * 12))) > MAX_SOCKET_PATH:
            raise ConfigError(
                f"data_dir {data_dir} is too long: its sockets' paths must fit in {MAX_SOCKET_PATH} bytes"
            )
        for folder in (self.run, self.instances, self.logs):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        self.instances.chmod(0o711)  # an instance with a uid of its own must get to its scratch folder

    def listen(self, instance_id: str) -> tuple[socket.socket, str]:
        """Return a bound, listening socket for an instance and its address."""
        if self._transport == "tcp":
            sock = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
            sock.bind(("127.0.0.1", 0))
            address = f"tcp:127.0.0.1:{sock.getsockname()[1]}"
        else:
            path = self.socket_path(instance_id)
            path.unlink(missing_ok=True)
            sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
            sock.bind(str(path))
            path.chmod(0o600)
            address = f"unix:{path}"
        sock.listen(_BACKLOG)
        return sock, address

    def open_logs(self, instance_id: str) -> list[int]:
        """Return descriptors of the instance's logs, stdout's and stderr's, to append to and to read its own; their
        folder now exists."""
        (self.instances / instance_id).mkdir(mode=0o711, exist_ok=True)
        flags = os.O_CREAT | os.O_APPEND | os.O_RDWR | os.O_CLOEXEC
        return [os.open(path, flags, 0o600) for path in self.log_paths(instance_id).values()]

    def add_to_log(self, instance_id: str, line: str) -> None:
        """Write a line of ours into what the instance printed, for whoever looks why it ended."""
        with contextlib.suppress(OSError), open(self.log_paths(instance_id)["stderr"], "a") as log:
            log.write(line + "\n")

    def socket_path(self, name: str) -> Path:
        """Return where a process listens when the transport is unix."""
        return self.run / f"{name}.sock"

    def log_paths(self, instance_id: str) -> dict[str, Path]:
        """Return the files that hold what an instance printed, by stream."""
        return {stream: self.instances / instance_id / f"{stream}.log" for stream in STREAMS}

    def scratch_dir(self, instance_id: str) -> Path:
        """Return the folder an instance may write to."""
        return self.instances / instance_id / "scratch"

    def make_scratch(self, instance_id: str, uid: int) -> None:
        """The folder an instance may write to exists afterwards and is `uid`'s, or this process's with 0."""
        folder = self.scratch_dir(instance_id)
        folder.mkdir(mode=0o700, exist_ok=True)
        if uid:
            os.chown(folder, uid, uid)

    def write_note(self, note: Note) -> None:
        """Store the note of a process, whole or not at all."""
        path = self.run / f"{note.instance_id}.json"
        fresh = path.with_suffix(".new")
        fd = os.open(fresh, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600)
        with os.fdopen(fd, "wb") as file:
            file.write(msgspec.json.encode(note))
        fresh.rename(path)

    def notes(self) -> list[Note]:
        """Return every readable note; one that is broken is removed, nothing can be adopted from it."""
        found = []
        for path in sorted(self.run.glob("*.json")):
            try:
                found.append(msgspec.json.decode(path.read_bytes(), type=Note))
            except (OSError, msgspec.MsgspecError):
                path.unlink(missing_ok=True)
        return found

    def forget(self, name: str) -> None:
        """Remove the socket and the note of a process that is gone."""
        self.socket_path(name).unlink(missing_ok=True)
        (self.run / f"{name}.json").unlink(missing_ok=True)

    def remove_instance(self, instance_id: str) -> None:
        """Remove an instance's folder (log and scratch)."""
        shutil.rmtree(self.instances / instance_id, ignore_errors=True)

    def remove_strays(self, known: set[str]) -> None:
        """Remove sockets and instance folders that belong to no process in `known`."""
        for path in self.run.glob("*.sock"):
            if path.stem not in known:
                path.unlink(missing_ok=True)
        for folder in self.instances.iterdir():
            if folder.name not in known:
                self.remove_instance(folder.name)
