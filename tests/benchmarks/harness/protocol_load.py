"""A closed loop of prepared requests, by HTTP and by gRPC, from one asyncio client: its own share of a call's time is
small, and much the same for all. This module does not know what is asked.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from contextlib import AsyncExitStack
from dataclasses import dataclass
from urllib.parse import urlsplit

import grpc

from harness.load import BenchmarkError
from harness.report import percentile

Ask = Callable[[], Awaitable[None]]


@dataclass(frozen=True)
class HttpCall:
    """One request by HTTP, sent as it is on kept-alive connections. request: head and body."""

    url: str
    request: bytes

    async def opened(self, stack: AsyncExitStack) -> Ask:
        """Return what asks once, on a connection of its own."""
        parts = urlsplit(self.url)
        reader, writer = await asyncio.open_connection(parts.hostname, parts.port, limit=1 << 20)
        stack.callback(writer.close)

        async def ask() -> None:
            writer.write(self.request)
            head = (await reader.readuntil(b"\r\n\r\n")).lower()
            length = int(head.partition(b"\r\ncontent-length:")[2].partition(b"\r\n")[0])
            body = await reader.readexactly(length)
            if not head.startswith(b"http/1.1 200"):
                raise BenchmarkError(f"{self.url}: {head[:60]!r} {body[:300]!r}")

        return ask


@dataclass(frozen=True)
class GrpcCall:
    """One unary call by gRPC. request: the message."""

    address: str
    method: str
    request: bytes
    metadata: tuple[tuple[str, str], ...]

    async def opened(self, stack: AsyncExitStack) -> Ask:
        """Return what asks once, on a connection of its own."""
        options = [("grpc.use_local_subchannel_pool", 1), ("grpc.max_send_message_length", -1)]
        channel = grpc.aio.insecure_channel(self.address, options=options)
        stack.push_async_callback(channel.close)
        call = channel.unary_unary(self.method)

        async def ask() -> None:
            await call(self.request, metadata=self.metadata, timeout=60)

        return ask


@dataclass(frozen=True)
class Loop:
    """What one loop saw. cpu_ms: of the server, per call."""

    p50_ms: float
    rps: float
    cpu_ms: float


async def closed_loop(
    call: HttpCall | GrpcCall, connections: int, seconds: float, server_cpu_s: Callable[[], float]
) -> Loop:
    """Return what `connections` see that each ask again as soon as they have their answer, after one warm call each."""
    async with AsyncExitStack() as stack:
        asks = [await call.opened(stack) for _ in range(connections)]
        await asyncio.gather(*(ask() for ask in asks))
        times_ms: list[float] = []
        cpu_s, started_s = server_cpu_s(), time.perf_counter()

        async def caller(ask: Ask) -> None:
            while (begun_s := time.perf_counter()) - started_s < seconds:
                await ask()
                times_ms.append(1e3 * (time.perf_counter() - begun_s))

        await asyncio.gather(*map(caller, asks))
        took_s = time.perf_counter() - started_s
        cpu_ms = 1e3 * (server_cpu_s() - cpu_s) / len(times_ms)
    return Loop(percentile(times_ms, 50), len(times_ms) / took_s, cpu_ms)
