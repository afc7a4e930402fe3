"""Jobs of a running platform: submitted over HTTP from many connections, counted in Redis.

This module does not know what is measured.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import redis
import uvloop
from rq.utils import as_text

from harness.load import BenchmarkError
from harness.running import Platform, wait_until

CONNECTIONS = 16
_TIMEOUT_S = 60.0
_ENDED = ("finished", "failed", "canceled")


@dataclass(frozen=True, slots=True)
class Reply:
    """One answer over HTTP. took_s: request written to body read."""

    status: int
    body: bytes
    took_s: float


class Line:
    """One kept-alive connection to the gateway."""

    def __init__(self, url: str, key: str) -> None:
        self._address = urlsplit(url)
        self._key = key
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def ask(self, method: str, path: str, body: bytes = b"", headers: str = "") -> Reply:
        """Return the answer to one request. headers: further lines, each ended by CR LF.

        Raises BenchmarkError without an answer within a minute; then the connection is of no more use.
        """
        try:
            async with asyncio.timeout(_TIMEOUT_S):
                return await self._ask(method, path, body, headers)
        except (TimeoutError, OSError, asyncio.IncompleteReadError) as error:
            raise BenchmarkError(f"{method} {path}: {error!r}") from error

    async def _ask(self, method: str, path: str, body: bytes, headers: str) -> Reply:
        if self._streams is None:
            self._streams = await asyncio.open_connection(self._address.hostname, self._address.port)
        reader, writer = self._streams
        started_s = time.perf_counter()
        writer.write(self.head(method, path, len(body), headers) + body)
        head = await reader.readuntil(b"\r\n\r\n")
        length = int(head.lower().partition(b"\r\ncontent-length:")[2].split(b"\r\n", 1)[0] or b"0")
        content = await reader.readexactly(length)
        return Reply(int(head[9:12]), content, time.perf_counter() - started_s)

    def head(self, method: str, path: str, length: int, headers: str = "") -> bytes:
        """Return the head of a request with a JSON body of `length` bytes."""
        return (
            f"{method} {path} HTTP/1.1\r\nHost: {self._address.netloc}\r\nAuthorization: Bearer {self._key}\r\n"
            f"Content-Type: application/json\r\n{headers}Content-Length: {length}\r\n\r\n"
        ).encode()

    async def close(self) -> None:
        """End the connection; the next request opens another."""
        streams, self._streams = self._streams, None
        if streams is not None:
            streams[1].close()
            with contextlib.suppress(OSError):
                await streams[1].wait_closed()


def ask_all(
    platform: Platform, requests: Sequence[tuple[str, str, bytes]], connections: int = CONNECTIONS, key: str = ""
) -> list[Reply]:
    """Make every request (method, path, body) over `connections` connections, in order on each; return the replies.

    key: API key, "" = the platform's own. Raises BenchmarkError on the first that is not 2xx.
    """

    async def work(line: Line, numbers: Iterator[int], replies: list[Reply | None]) -> None:
        for number in numbers:
            reply = replies[number] = await line.ask(*requests[number])
            if not 200 <= reply.status < 300:
                raise BenchmarkError(f"{requests[number][:2]}: {reply.status} {reply.body[:500]!r}")

    async def all_of_them() -> list[Reply]:
        numbers = iter(range(len(requests)))
        replies: list[Reply | None] = [None] * len(requests)
        lines = [Line(platform.url, key or platform.key) for _ in range(min(connections, len(requests)))]
        await asyncio.gather(*(work(line, numbers, replies) for line in lines))
        await asyncio.gather(*(line.close() for line in lines))
        return [reply for reply in replies if reply is not None]

    made: list[Reply] = uvloop.run(all_of_them())
    return made


def submit(name: str, value: Any, **options: Any) -> tuple[str, str, bytes]:
    """Return the request that submits one job."""
    return "POST", f"/v1/functions/{name}/jobs", json.dumps({"input": value, **options}).encode()


def submit_many(name: str, values: Sequence[Any], **options: Any) -> tuple[str, str, bytes]:
    """Return the request that submits these jobs together."""
    return "POST", f"/v1/functions/{name}/jobs", json.dumps({"inputs": list(values), **options}).encode()


@contextmanager
def redis_of(platform: Platform) -> Iterator[redis.Redis]:
    """Yield a client of the platform's own Redis."""
    settings = json.loads((platform.data_dir / "settings.json").read_bytes())
    client = redis.Redis.from_url(settings["redis_url"], socket_timeout=30)
    try:
        yield client
    finally:
        client.close()


class Commands:
    """Counts the commands that Redis carries out, those inside scripts included."""

    def __init__(self, client: redis.Redis) -> None:
        self._client = client
        self._before = self._calls()

    def since(self) -> dict[str, int]:
        """Return how often each command ran since this object was made, without our own INFO."""
        now = self._calls()
        counts = {name: calls - self._before.get(name, 0) for name, calls in now.items()}
        return {name: calls for name, calls in counts.items() if calls > 0 and name != "info"}

    def _calls(self) -> dict[str, int]:
        stats: Mapping[str, Any] = self._client.info("commandstats")
        return {name.removeprefix("cmdstat_"): int(entry["calls"]) for name, entry in stats.items()}


def num_ended(client: redis.Redis, name: str) -> int:
    """Return how many jobs of a function are in one of RQ's registries of ended jobs."""
    known = [as_text(key).removeprefix("rq:queue:") for key in client.smembers("rq:queues")]
    queues = [queue for queue in known if queue.split(":")[:2] == ["sv", name]]
    return sum(int(client.zcard(f"rq:{state}:{queue}")) for queue in queues for state in _ENDED)


def wait_ended(client: redis.Redis, name: str, total: int, timeout_s: float) -> None:
    """Return once `total` jobs of a function have ended."""
    wait_until(lambda: num_ended(client, name) >= total, timeout_s, f"{total} ended jobs of {name}", every_s=0.01)
