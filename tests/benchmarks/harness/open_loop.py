"""An open-loop load generator: calls leave at their own times, however long the answers take.

Arrivals are evenly spread with jitter within each step, so that a rate is that rate in every second and still no
metronome. Connections are kept alive and reused; a call that finds none idle opens one, at most MAX_CONNECTIONS.
A client that has waited for `give_up_s` leaves, as clients do. This module does not know what is being called.
"""

from __future__ import annotations

import asyncio
import random
import time
from dataclasses import dataclass
from typing import cast
from urllib.parse import urlsplit

import uvloop

from harness.load import BenchmarkError, Target

MAX_CONNECTIONS = 2000
GONE = 0  # the status of a call without an answer


@dataclass(frozen=True, slots=True)
class Shot:
    """One call. at_s: when it was sent, seconds since the start; took_s: until its answer. status: GONE for none.

    version: of the function, that answered; "" if the answer does not say. fallback: what answered in its stead.
    """

    at_s: float
    took_s: float
    status: int
    version: str = ""
    fallback: str = ""


@dataclass(frozen=True)
class Volley:
    """All calls of one rate over `duration_s`. lag_s: the most by which one left later than it should have."""

    rate: float
    duration_s: float
    shots: list[Shot]
    lag_s: float


class _Line(asyncio.Protocol):
    """One connection, one call at a time."""

    def __init__(self) -> None:
        self.transport: asyncio.Transport | None = None
        self.version = self.fallback = ""
        self._answer: asyncio.Future[int] | None = None
        self._data = b""
        self._missing = 0

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        self._data += data
        head, separator, body = self._data.partition(b"\r\n\r\n")
        if not separator:
            return
        length = int(_header(head, b"content-length") or b"0")
        if len(body) >= length:
            self._data = b""
            self.version = _header(head, b"samovar-version").decode()
            self.fallback = _header(head, b"samovar-fallback").decode()
            self._resolve(int(head[9:12]))

    async def ask(self, request: bytes) -> int:
        """Send `request`; return the status of the answer, GONE if the connection ended without one."""
        if self.transport is None:
            return GONE
        self._answer = asyncio.get_running_loop().create_future()
        self.transport.write(request)
        return await self._answer

    def connection_lost(self, exc: Exception | None) -> None:
        self.transport = None
        self._resolve(GONE)

    def _resolve(self, status: int) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(status)


def _header(head: bytes, name: bytes) -> bytes:
    """Return the value of a header, b"" without it."""
    return head.lower().partition(b"\r\n" + name + b":")[2].split(b"\r\n", 1)[0].strip()


class _Gun:
    """Everything of one volley."""

    def __init__(self, target: Target, give_up_s: float, headers: str) -> None:
        address = urlsplit(target.url)
        self._host, self._port = str(address.hostname), int(address.port or 80)
        [body] = target.bodies
        head = f"POST {address.path} HTTP/1.1\r\nHost: {address.netloc}\r\nAuthorization: {target.authorization}\r\n"
        head += f"Content-Type: application/json\r\n{headers}Content-Length: {len(body)}\r\n\r\n"
        self._request = head.encode() + body
        self._give_up_s = give_up_s
        self._idle: list[_Line] = []
        self._num_lines = 0
        self.shots: list[Shot] = []

    async def shoot(self, started_s: float) -> None:
        """Make one call and note it."""
        sent_s = time.perf_counter()
        status, line = GONE, None
        try:
            async with asyncio.timeout(self._give_up_s):
                line = await self._line()
                sent_s = time.perf_counter()
                status = await line.ask(self._request)
        except (TimeoutError, OSError):
            status = GONE
        if status != GONE and line is not None:
            self._idle.append(line)
        elif line is not None:
            self.close(line)
        version, fallback = (line.version, line.fallback) if line is not None and status != GONE else ("", "")
        self.shots.append(Shot(sent_s - started_s, time.perf_counter() - sent_s, status, version, fallback))

    async def _line(self) -> _Line:
        while self._idle:
            line = self._idle.pop()
            if line.transport is not None and not line.transport.is_closing():
                return line
            self._num_lines -= 1
        if self._num_lines >= MAX_CONNECTIONS:
            raise BenchmarkError(f"more than {MAX_CONNECTIONS} calls are without an answer")
        _, line = await asyncio.get_running_loop().create_connection(_Line, self._host, self._port)
        self._num_lines += 1
        return line

    def close(self, line: _Line) -> None:
        """Leave."""
        self._num_lines -= 1
        if line.transport is not None:
            line.transport.abort()

    def close_idle(self) -> None:
        """Close what is kept alive."""
        for line in self._idle:
            self.close(line)


async def _fire(gun: _Gun, rate: float, duration_s: float, seed: int) -> Volley:
    dice = random.Random(seed)
    started_s = time.perf_counter()
    calls: set[asyncio.Task[None]] = set()
    lag_s = 0.0
    for number in range(int(rate * duration_s)):
        due_s = started_s + (number + dice.random()) / rate
        if (early_s := due_s - time.perf_counter()) > 0:
            await asyncio.sleep(early_s)
        lag_s = max(lag_s, time.perf_counter() - due_s)
        call = asyncio.ensure_future(gun.shoot(started_s))
        calls.add(call)
        call.add_done_callback(calls.discard)
    await asyncio.gather(*calls)
    gun.close_idle()
    return Volley(rate, duration_s, sorted(gun.shots, key=lambda shot: shot.at_s), lag_s)


def fire(target: Target, rate: float, duration_s: float, give_up_s: float, headers: str = "", seed: int = 1) -> Volley:
    """Call `target` (one body) `rate` times a second for `duration_s`; return once every call has ended.

    give_up_s: how long a client waits. headers: further header lines, each ended by CR LF.
    """
    volley: Volley = uvloop.run(_fire(_Gun(target, give_up_s, headers), rate, duration_s, seed))
    return volley
