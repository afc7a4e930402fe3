"""wrk, with our script, as one function.

wrk (Debian package `wrk`) is the load generator, one thread on a core of its own where there are two.
This module does not know what is being loaded.
"""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import msgspec

from harness.processes import pinned

_SCRIPT = Path(__file__).with_name("wrk_post.lua")
_TIMEOUT_S = 20


class BenchmarkError(Exception):
    """Something the benchmark needs is missing or answered wrongly; the text says what."""


class Load(msgspec.Struct, frozen=True):
    """What one wrk run saw. bad: answers of status 400 or above. cpu_s: of the server, 0 if not asked for."""

    requests: int
    duration_s: float
    bad: int
    socket_errors: int
    p50_ms: float
    p95_ms: float
    p99_ms: float
    max_ms: float
    cpu_s: float = 0.0

    @property
    def rps(self) -> float:
        """Answers a second."""
        return self.requests / self.duration_s

    @property
    def cpu_ms_per_call(self) -> float:
        """Server CPU milliseconds an answer."""
        return 1000 * self.cpu_s / max(1, self.requests)


@dataclass(frozen=True)
class Target:
    """Where and what to post. authorization: the whole header value, or "" for none."""

    url: str
    body: bytes
    authorization: str = ""


def parse_wrk(output: str) -> Load:
    """Return the run that our script described on its JSON line. Raises BenchmarkError if there is none."""
    line = re.search(r"^JSON (.*)$", output, re.MULTILINE)
    if line is None:
        raise BenchmarkError(f"wrk printed no result: {output.strip()[-500:] or 'nothing at all'}")
    return msgspec.json.decode(line.group(1), type=Load)


def run_wrk(
    target: Target,
    connections: int,
    seconds: int,
    cores: str | None = None,
    server_cpu_s: Callable[[], float] | None = None,
) -> Load:
    """Post `target` as fast as answers come.

    Args:
        connections: kept-alive connections, each with one call in flight, >= 1.
        seconds: how long, >= 1.
        cores: what wrk is pinned to, such as "1".
        server_cpu_s: reads the server's CPU seconds so far; its growth is put into the result.
    Raises: BenchmarkError if wrk is missing or any answer was bad.
    """
    if shutil.which("wrk") is None:
        raise BenchmarkError("wrk is not installed (Debian package `wrk`)")
    with tempfile.NamedTemporaryFile(prefix="samovar-bench-", suffix=".body") as file:
        file.write(target.body)
        file.flush()
        environ = os.environ | {"BENCH_BODY": file.name, "BENCH_AUTHORIZATION": target.authorization}
        arguments = ["wrk", "-t1", f"-c{connections}", f"-d{seconds}s", "--timeout", f"{_TIMEOUT_S}s"]
        before_s = server_cpu_s() if server_cpu_s else 0.0
        done = subprocess.run(
            pinned([*arguments, "-s", str(_SCRIPT), target.url], cores),
            env=environ,
            capture_output=True,
            text=True,
            timeout=seconds + 2 * _TIMEOUT_S,
            check=False,
        )
        used_s = server_cpu_s() - before_s if server_cpu_s else 0.0
    load = msgspec.structs.replace(parse_wrk(done.stdout + done.stderr), cpu_s=used_s)
    if load.bad or load.socket_errors or not load.requests:
        raise BenchmarkError(f"{target.url}: {json.dumps(msgspec.to_builtins(load))}")
    return load
