"""A whole platform in a temporary folder: started, deployed to, called, watched, stopped.

It is used as a user would: `samovar up`, the CLI for deploying, HTTP for calls and for looking at instances.
This module does not know what is measured.
"""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from harness.load import BenchmarkError, Target
from harness.processes import become_subreaper, end, pinned, tree

ROOT = Path(__file__).parents[3]
EXAMPLES = ROOT / "functions" / "examples"
_UP_TIMEOUT_S = 120.0
_STOP_TIMEOUT_S = 60.0


@dataclass(frozen=True)
class Answer:
    """One answer over HTTP. elapsed_ms: request written to body read. phases: `Server-Timing`, name → ms."""

    status: int
    headers: Mapping[str, str]
    body: bytes
    elapsed_ms: float

    @property
    def phases(self) -> dict[str, float]:
        """Phase durations in ms, in the order the platform lists them."""
        return parse_server_timing(self.headers.get("server-timing", ""))


def parse_server_timing(header: str) -> dict[str, float]:
    """Return name → ms of a `Server-Timing` header; entries without a duration are left out."""
    return {name: float(ms) for name, ms in re.findall(r"([\w-]+)(?:;desc=[^;,]*)?;dur=([\d.]+)", header)}


def free_port() -> int:
    """Return a TCP port on loopback that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def wait_until(predicate: Callable[[], bool], timeout_s: float, what: str, every_s: float = 0.02) -> None:
    """Return once `predicate` holds. Raises BenchmarkError naming `what` after `timeout_s`."""
    deadline_s = time.monotonic() + timeout_s
    while not predicate():
        if time.monotonic() > deadline_s:
            raise BenchmarkError(f"{what}: not within {timeout_s:.0f} s")
        time.sleep(every_s)


class Platform:
    """`samovar up` with the embedded stores, as a context manager.

    cores: what all of it is pinned to, such as "0"; None = everywhere. settings: `SAMOVAR_` variables for it.
    """

    def __init__(self, cores: str | None = None, settings: Mapping[str, str] | None = None) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="samovar-bench-"))
        self.data_dir = self.folder / "data"
        self.url = ""
        self.grpc = ""
        self.key = ""
        self.process: subprocess.Popen[bytes] | None = None
        self._cores = cores
        self._settings = dict(settings or {})
        self._connection: http.client.HTTPConnection | None = None
        self._pids: dict[str, list[int]] = {}

    def __enter__(self) -> Self:
        become_subreaper()
        try:
            self._start()
        except BaseException:
            print(self.log_tail(), file=sys.stderr)
            self._stop()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            print(self.log_tail(), file=sys.stderr)
        self._stop()

    @property
    def pid(self) -> int:
        """The supervisor's process id; everything of the platform descends from it."""
        assert self.process is not None
        return self.process.pid

    @property
    def environ(self) -> dict[str, str]:
        """The environment a client of this platform runs in."""
        return os.environ | {
            "SAMOVAR_URL": self.url,
            "SAMOVAR_API_KEY": self.key,
            "SAMOVAR_DATA_DIR": str(self.data_dir),
        }

    def cli(self, *arguments: str) -> Any:
        """Run `samovar ARGUMENTS --json` and return what it printed, decoded. Raises BenchmarkError if it fails."""
        command = [sys.executable, "-m", "samovar.cli", *arguments, "--json"]
        done = subprocess.run(command, env=self.environ, capture_output=True, text=True, timeout=300, check=False)
        if done.returncode:
            raise BenchmarkError(f"samovar {' '.join(arguments)}: exit {done.returncode}: {done.stderr.strip()[-800:]}")
        return json.loads(done.stdout or "null")

    def deploy(self, path: Path) -> str:
        """Deploy `path` by the CLI; return the function's name."""
        name: str = self.cli("deploy", str(path))["name"]
        return name

    def request(self, method: str, path: str, body: bytes | None = None, timeout_s: float = 120.0) -> Answer:
        """Return the answer to one HTTP request over a kept-alive connection, made anew if it was idle for too long."""
        if self._connection is not None:
            with contextlib.suppress(http.client.RemoteDisconnected, ConnectionResetError, BrokenPipeError):
                return self.ask(self._connection, method, path, body)
            self._connection.close()
        self._connection = self.connect(timeout_s)
        return self.ask(self._connection, method, path, body)

    def connect(self, timeout_s: float = 120.0) -> http.client.HTTPConnection:
        """Return a new connection to the gateway."""
        host, _, port = self.url.rpartition("//")[2].partition(":")
        connection = http.client.HTTPConnection(host, int(port.strip("/")), timeout=timeout_s)
        connection.connect()
        return connection

    def ask(self, connection: http.client.HTTPConnection, method: str, path: str, body: bytes | None = None) -> Answer:
        """Return the answer to one HTTP request over `connection`."""
        headers = {"Authorization": f"Bearer {self.key}", "Content-Type": "application/json"}
        started_s = time.perf_counter()
        connection.request(method, path, body, headers)
        response = connection.getresponse()
        content = response.read()
        elapsed_ms = 1000 * (time.perf_counter() - started_s)
        return Answer(response.status, {k.lower(): v for k, v in response.getheaders()}, content, elapsed_ms)

    def invoke(self, name: str, body: bytes) -> Answer:
        """Return the answer of one invocation. Raises BenchmarkError if it is not 200."""
        answer = self.request("POST", f"/v1/functions/{name}/invoke", body)
        if answer.status != 200:
            raise BenchmarkError(f"invoke {name}: {answer.status} {answer.body[:500]!r}")
        return answer

    def target(self, name: str, *bodies: bytes) -> Target:
        """Return what wrk needs to invoke `name` with `bodies` in turn."""
        return Target(f"{self.url.rstrip('/')}/v1/functions/{name}/invoke", bodies, f"Bearer {self.key}")

    def post(self, path: str, body: Mapping[str, object]) -> Any:
        """Post JSON to an administrative route and return the decoded answer. Raises BenchmarkError unless 2xx."""
        answer = self.request("POST", path, json.dumps(body).encode())
        if not 200 <= answer.status < 300:
            raise BenchmarkError(f"POST {path}: {answer.status} {answer.body[:500]!r}")
        return json.loads(answer.body or b"null")

    def get(self, path: str) -> Any:
        """Return the decoded JSON of a GET. Raises BenchmarkError unless 200."""
        answer = self.request("GET", path)
        if answer.status != 200:
            raise BenchmarkError(f"GET {path}: {answer.status} {answer.body[:500]!r}")
        return json.loads(answer.body)

    def instances(self, name: str | None = None, state: str | None = None) -> list[dict[str, Any]]:
        """Return the instance records, those of one function and in one state if asked for."""
        records: list[dict[str, Any]] = self.get("/v1/instances")
        return [
            record
            for record in records
            if (name is None or record.get("ref", "").rpartition("@")[0] == name)
            and (state is None or record["state"] == state)
        ]

    def instance_pids(self, name: str) -> list[int]:
        """Return the process ids of a function's ready instances as they were when last asked for in vain."""
        with contextlib.suppress(OSError, http.client.HTTPException, BenchmarkError):
            self._pids[name] = [record["pid"] for record in self.instances(name, "ready")]
        return self._pids.get(name, [])

    def scale(self, name: str, **scaling: float) -> None:
        """Override the function's scaling, as `samovar scale` does."""
        self.post(f"/v1/functions/{name}/scale", scaling)

    def wait_ready(self, name: str, num_instances: int, timeout_s: float = 120.0) -> None:
        """Return once the function has at least `num_instances` ready instances."""
        wait_until(
            lambda: len(self.instances(name, "ready")) >= num_instances,
            timeout_s,
            f"{num_instances} ready instances of {name}",
            every_s=0.1,
        )

    def wait_zero(self, name: str, timeout_s: float = 120.0) -> None:
        """Return once the function has no instance and the warm pool holds a blank one."""
        wait_until(
            lambda: not self.instances(name) and bool(self.instances("", "blank")),
            timeout_s,
            f"{name} at zero with a blank instance ready",
            every_s=0.1,
        )

    def wait_template(self, name: str, timeout_s: float = 60.0) -> None:
        """Return once a template of the function is alive."""

        def alive() -> bool:
            return any(status["templates"] for status in self.get(f"/v1/functions/{name}")["status"].values())

        wait_until(alive, timeout_s, f"a template of {name}", every_s=0.1)

    def log_tail(self, num_bytes: int = 3000) -> str:
        """Return the end of every log of the platform, for a benchmark that failed."""
        logs = [self.folder / "up.log", *sorted((self.data_dir / "logs").glob("*.log"))]
        tails = [
            f"== {log.name}\n{log.read_bytes()[-num_bytes:].decode(errors='replace')}" for log in logs if log.exists()
        ]
        return "\n".join(tails)

    def _start(self) -> None:
        port = free_port()
        command = [sys.executable, "-m", "samovar_up", "--data-dir", str(self.data_dir), "--port", str(port)]
        command += ["--grpc-port", "0"]  # the port after a free one need not be free
        with (self.folder / "up.log").open("wb") as log:
            self.process = subprocess.Popen(
                pinned(command, self._cores), env=os.environ | self._settings, stdout=log, stderr=log
            )
        wait_until(self._is_up, _UP_TIMEOUT_S, "samovar up", every_s=0.1)

    def _is_up(self) -> bool:
        assert self.process is not None
        if self.process.poll() is not None:
            raise BenchmarkError(f"samovar up ended with {self.process.returncode}\n{self.log_tail()}")
        try:
            connection = json.loads((self.data_dir / "connection.json").read_bytes())
            self.url, self.key, self.grpc = connection["url"], connection["admin_key"], connection["grpc"]
            return self.request("GET", "/readyz").status == 200 and bool(self.instances("", "blank"))
        except (OSError, ValueError, KeyError, http.client.HTTPException, BenchmarkError):
            self._connection = None
            return False

    def _stop(self) -> None:
        if self.process is not None:
            started = set(tree(self.pid))
            if self.process.poll() is None:
                self.process.send_signal(signal.SIGINT)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(_STOP_TIMEOUT_S)
            # orphans have become ours; a number that somebody else has by now is not among our descendants
            end(started & set(tree(os.getpid())))
        shutil.rmtree(self.folder, ignore_errors=True)
