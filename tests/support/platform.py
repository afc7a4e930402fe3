"""A whole platform in tests: `python -m samovar_up` on a folder of its own, and what a client does with it."""

from __future__ import annotations

import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from support.processes import processes_mentioning

UP_TIMEOUT_S = 120.0
STOP_TIMEOUT_S = 60.0


def up_command(data_dir: Path, *flags: str) -> list[str]:
    """Return the command line of a platform on `data_dir` with a port of its own."""
    return [sys.executable, "-m", "samovar_up", "--json", "--data-dir", str(data_dir), "--port", "0", *flags]


def environment(**more: str) -> dict[str, str]:
    """Return this process's environment without its own settings of Samovar, and with `more`."""
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SAMOVAR_")}
    return kept | {"OMP_NUM_THREADS": "1"} | more


@dataclass
class Platform:
    """One running `samovar up`."""

    data_dir: Path
    process: subprocess.Popen[str]
    url: str = ""
    grpc: str = ""
    admin_key: str = ""
    seconds: float = 0.0
    events: queue.Queue[dict[str, Any] | None] = field(default_factory=queue.Queue)

    def __post_init__(self) -> None:
        self._reader = threading.Thread(target=self._read_events, daemon=True)

    def wait_for(self, event: str, timeout_s: float = UP_TIMEOUT_S) -> dict[str, Any]:
        """Return the next event of this kind. Raises AssertionError, with the logs, when the process ends instead."""
        while True:
            try:
                found = self.events.get(timeout=timeout_s)
            except queue.Empty:
                raise AssertionError(f"no {event!r} within {timeout_s} s\n{self.log_tail()}") from None
            assert found is not None, f"samovar up ended before {event!r}\n{self.log_tail()}"
            if found["event"] == event:
                return found

    def child(self, name: str) -> psutil.Process:
        """Return the running child called `name` (gateway, pool, valkey, seaweedfs)."""
        records = json.loads((self.data_dir / "children.json").read_bytes())["children"]
        return psutil.Process(next(record["process"]["pid"] for record in records if record["name"] == name))

    def tree(self) -> list[psutil.Process]:
        """Return every process of the platform: the supervisor's descendants and whoever names the folder."""
        mentioned = processes_mentioning(str(self.data_dir))
        found = {process.pid: process for process in mentioned}
        try:
            found |= {process.pid: process for process in psutil.Process(self.process.pid).children(recursive=True)}
        except psutil.NoSuchProcess:
            pass
        return [process for process in found.values() if process.pid != self.process.pid]

    def stop(self, number: signal.Signals = signal.SIGINT, timeout_s: float = STOP_TIMEOUT_S) -> int:
        """End the platform and return its exit code."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        code = self.process.wait(timeout_s)
        self.close()
        return code

    def close(self) -> None:
        """Let go of the pipe of a process that ended."""
        self._reader.join(5)
        if self.process.stdout is not None:
            self.process.stdout.close()

    def log_tail(self, num_bytes: int = 4000) -> str:
        """Return the end of every log, for a test that failed."""
        logs = [*sorted((self.data_dir / "logs").glob("*.log")), self.data_dir.with_suffix(".up.log")]
        return "\n".join(
            f"== {log.name}\n{log.read_bytes()[-num_bytes:].decode(errors='replace')}" for log in logs if log.exists()
        )

    def _read_events(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.events.put(json.loads(line))
        self.events.put(None)


def start(
    data_dir: Path, *flags: str, environ: Mapping[str, str] | None = None, within: Sequence[str] = ()
) -> Platform:
    """Start a platform and return at once; `wait_for("ready")` waits. within: a command that becomes the rest of it."""
    with data_dir.with_suffix(".up.log").open("ab") as log:
        process = subprocess.Popen(
            [*within, *up_command(data_dir, *flags)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=log,
            env=dict(environ or environment()),
            text=True,
            start_new_session=True,
        )
    platform = Platform(data_dir=data_dir, process=process)
    platform._reader.start()
    return platform


def wait_ready(platform: Platform, timeout_s: float = UP_TIMEOUT_S) -> Platform:
    """Return once the platform says that it is ready, with its address and admin key known."""
    ready = platform.wait_for("ready", timeout_s)
    platform.url, platform.grpc, platform.admin_key = ready["url"], ready["grpc"], ready["admin_key"]
    platform.seconds = ready["seconds"]
    return platform


@contextmanager
def running_platform(data_dir: Path, *flags: str) -> Iterator[Platform]:
    """A ready platform for the body of a `with`; nothing of it runs afterwards, whatever happened inside."""
    platform = start(data_dir, *flags)
    try:
        yield wait_ready(platform)
    finally:
        end(platform)


def end(platform: Platform) -> None:
    """Stop the platform; kill whatever of it is left."""
    try:
        platform.stop()
    except subprocess.TimeoutExpired:
        platform.process.kill()
    finally:
        for process in platform.tree():
            try:
                process.kill()
            except psutil.NoSuchProcess:
                continue
        platform.process.wait(60)
        platform.close()
