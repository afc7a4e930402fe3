"""Load: wrk with our script for a steady stream, and a burst of calls all at once.

wrk (Debian package `wrk`) is the load generator, one thread on a core of its own where there are two.
This module does not know what is being loaded.
"""

from __future__ import annotations

import asyncio
import json
import os
import re
import shutil
import subprocess
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

import msgspec

from harness.processes import pinned

_SCRIPT = Path(__file__).with_name("wrk_post.lua")
_TIMEOUT_S = 20
_BURST_TIMEOUT_S = 120


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
    """Where and what to post: `bodies` in turn, none with a line break in it. authorization: the header, or ""."""

    url: str
    bodies: Sequence[bytes]
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
    with tempfile.NamedTemporaryFile(prefix="samovar-bench-", suffix=".bodies") as file:
        file.write(b"\n".join(target.bodies))
        file.flush()
        environ = os.environ | {"BENCH_BODIES": file.name, "BENCH_AUTHORIZATION": target.authorization}
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


@dataclass(frozen=True)
class Burst:
    """Calls made at once. failed: not answered 200. first_s, last_s: from the first byte sent to that answer."""

    failed: int
    first_s: float
    last_s: float


async def call_at_once(target: Target) -> Burst:
    """Post each of the target's bodies over a connection of its own, all opened before the first is sent."""
    address = urlsplit(target.url)
    opened = await asyncio.gather(*(asyncio.open_connection(address.hostname, address.port) for _ in target.bodies))
    started_s = time.perf_counter()
    for (_, writer), body in zip(opened, target.bodies, strict=True):
        writer.write(_request(address.netloc, address.path, target.authorization, body))
    answers = await asyncio.gather(*(_answer(reader) for reader, _ in opened))
    for _, writer in opened:
        writer.close()
    times_s = [at_s - started_s for _, at_s in answers]
    return Burst(sum(status != 200 for status, _ in answers), min(times_s), max(times_s))


def _request(host: str, path: str, authorization: str, body: bytes) -> bytes:
    head = f"POST {path} HTTP/1.1\r\nHost: {host}\r\nAuthorization: {authorization}\r\n"
    return f"{head}Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n".encode() + body


async def _answer(reader: asyncio.StreamReader) -> tuple[int, float]:
    """Return the status (0 if the connection broke or nothing came) and when the body was complete."""
    try:
        async with asyncio.timeout(_BURST_TIMEOUT_S):
            head = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"(?i)\r\ncontent-length: *(\d+)", head)
            await reader.readexactly(int(length.group(1)) if length else 0)
        return int(head.split(b" ", 2)[1]), time.perf_counter()
    except (OSError, EOFError, TimeoutError):
        return 0, time.perf_counter()
