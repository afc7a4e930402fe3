"""A stand-in for an instance process: speaks samovar.wire on a Unix socket, without torch, fork or user code.

python tests/support/fake_instance.py SOCKET REF TOKEN [CONCURRENCY]
The body picks the behaviour: {"x": [..]} → their sum; {"sleep_s": S}; {"until": PATH} (until the file exists);
{"die": true} (kill -9 of itself);
{"stream": N, "pause_s"?: S after each item, "raise_at"?: I, "pad"?: SPACES, "run_us"?: how long it says it took};
{"say": TEXT} (to whoever hears, first, and in a stream after each item, then how far it is);
{"fail": "text", "code": …, "status": …}; {"fail_if": PATH} (while the file exists);
{"fail_on": REF} (instances of that version alone); {"fail_every": N} (each Nth call of an instance);
{"busy": N} (busy the first N times).
Everything else is echoed, with how many calls were answered so far and the time this one had.

At SIGUSR1 it reads SOCKET.mode (JSON), which from then on is added to every body, and writes SOCKET.seen: how many
calls and checks it has had, and how many items it has sent. {"unwell": true} there makes its checks fail.
"""

from __future__ import annotations

import asyncio
import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any, ClassVar, cast

import msgspec
import uvloop

from samovar import wire
from samovar.errors import ProtocolError


class FakeInstance(asyncio.Protocol):
    """One caller's connection."""

    busy_left: ClassVar[dict[str, int]] = {}
    num_answers: ClassVar[int] = 0
    mode: ClassVar[dict[str, Any]] = {}
    seen: ClassVar[dict[str, int]] = {"calls": 0, "checks": 0, "chunks": 0}

    def __init__(self, ref: str, token: str, concurrency: int) -> None:
        self.ref, self.token, self.concurrency = ref, token, concurrency
        self.decoder = wire.instance_side()
        self.tasks: dict[int, asyncio.Task[None]] = {}
        self.credit: dict[int, asyncio.Semaphore] = {}
        self.running = asyncio.Semaphore(concurrency)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = cast(asyncio.Transport, transport)

    def data_received(self, data: bytes) -> None:
        try:
            for message in self.decoder.feed(data):
                self.handle(message)
        except ProtocolError as error:
            self.transport.write(wire.encode(wire.Goodbye("protocol", error.detail)))
            self.transport.close()

    def handle(self, message: wire.ToInstance) -> None:
        if isinstance(message, wire.Invoke):
            started = time.perf_counter()
            self.seen["calls"] += 1
            try:
                data: Any = msgspec.json.decode(message.body)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                self.transport.write(wire.encode(wire.Failure(message.id, "malformed", 400, "no JSON", {}, 0, 0, 0)))
                return
            if self.mode:
                data = (data if isinstance(data, dict) else {}) | self.mode
            if isinstance(data, dict) and is_numbers(data.get("x")) and not self.mode:
                body = msgspec.json.encode({"sum": sum(data["x"])})
                run_us = int((time.perf_counter() - started) * 1e6)
                self.transport.write(wire.encode(wire.Result(message.id, body, 0, run_us, 1, 0)))
            else:
                task = asyncio.ensure_future(self.slow(message, data))
                self.tasks[message.id] = task
                task.add_done_callback(lambda _: self.tasks.pop(message.id, None))
        elif isinstance(message, wire.Cancel):
            if message.id in self.tasks:
                asyncio.get_running_loop().call_soon(self.tasks[message.id].cancel)  # once it has begun: it replies
        elif isinstance(message, wire.Check):
            self.seen["checks"] += 1
            well = wire.Result(message.id, b"null", 0, 0, 1, 0)
            unwell = wire.Failure(message.id, "function_raised", 500, "the samovar leaks", {}, 0, 0, 0)
            self.transport.write(wire.encode(unwell if self.mode.get("unwell") else well))
        elif isinstance(message, wire.Credit):
            for _ in range(message.num_chunks):
                self.credit[message.id].release()
        elif isinstance(message, wire.Hello):
            if message.token != self.token:
                self.transport.write(wire.encode(wire.Goodbye("token")))
                self.transport.close()
                return
            welcome = wire.Welcome(
                wire.PROTOCOL_VERSION, "fake", self.ref, "ready", self.concurrency, os.getpid(), {"load": 1.0}
            )
            self.transport.write(wire.encode(welcome))

    async def slow(self, message: wire.Invoke, data: Any) -> None:
        try:
            async with self.running:
                if message.notify_start:
                    self.transport.write(wire.encode(wire.Started(message.id)))
                reply = await self.behave(message, data if isinstance(data, dict) else {})
        except (TypeError, ValueError):
            reply = wire.Failure(message.id, "invalid_input", 422, "not what this stand-in knows", {}, 0, 0, 0)
        except asyncio.CancelledError:
            reply = wire.Failure(message.id, "cancelled", 499, "the caller left", {}, 0, 0, 0)
        self.transport.write(wire.encode(reply))

    async def behave(self, message: wire.Invoke, data: dict[str, Any]) -> wire.Message:
        if data.get("die"):
            os.kill(os.getpid(), signal.SIGKILL)
        key = message.body.decode()
        if self.busy_left.setdefault(key, int(data.get("busy", 0))) > 0:
            self.busy_left[key] -= 1
            return wire.Busy(message.id, 1)
        if "say" in data and message.hear:
            self.transport.write(wire.encode(wire.LogLine(message.id, data["say"])))
        if "sleep_s" in data:
            await asyncio.sleep(data["sleep_s"])
        while self.must_wait(data):  # noqa: ASYNC110  a file cannot be awaited
            await asyncio.sleep(0.01)
        if self.fails(data):
            code, status = data.get("code", "function_raised"), data.get("status", 500)
            return wire.Failure(
                message.id, code, status, data.get("fail", "tea spilt"), {"type": "ValueError"}, 0, 0, 0
            )
        if "garbage" in data:
            self.transport.write(b"\x00\x00\x00\x02\xc1\xc1")
        if "stream" in data:
            return await self.stream(message, data)
        FakeInstance.num_answers += 1
        facts = {"pid": os.getpid(), "answers": self.num_answers, "timeout_ms": message.timeout_ms}
        body = json.dumps({"echo": data} | facts).encode()
        return wire.Result(message.id, body, 0, int(data.get("sleep_s", 0) * 1e6), 1, 0)

    def must_wait(self, data: dict[str, Any]) -> bool:
        return "until" in data and not os.path.exists(data["until"])

    def fails(self, data: dict[str, Any]) -> bool:
        if "fail_every" in data:
            return self.seen["calls"] % int(data["fail_every"]) == 0
        return "fail" in data or os.path.exists(data.get("fail_if", "")) or data.get("fail_on") == self.ref

    async def stream(self, message: wire.Invoke, data: dict[str, Any]) -> wire.Message:
        credit = self.credit[message.id] = asyncio.Semaphore(wire.STREAM_WINDOW)
        run_us = data.get("run_us", 0)
        for number in range(data["stream"]):
            if number == data.get("raise_at"):
                extra = {"type": "ValueError"}
                return wire.Failure(message.id, "function_raised", 500, "tea spilt", extra, 0, run_us, 0)
            await credit.acquire()
            self.transport.write(wire.encode(wire.Chunk(message.id, b'{"n": %d}' % number + b" " * data.get("pad", 0))))
            self.seen["chunks"] += 1
            if "say" in data and message.hear:
                self.transport.write(wire.encode(wire.LogLine(message.id, f"{data['say']} {number}")))
                self.transport.write(wire.encode(wire.Progress(message.id, (number + 1) / data["stream"])))
            await asyncio.sleep(data.get("pause_s", 0))
        return wire.End(message.id, 0, run_us, 0)


def change_mode(path: Path) -> None:
    """Take the mode a test has written, and tell it what was seen until then."""
    mode = path.with_suffix(".mode")
    FakeInstance.mode = msgspec.json.decode(mode.read_bytes()) if mode.exists() else {}
    seen = path.with_suffix(".new")
    seen.write_bytes(msgspec.json.encode(FakeInstance.seen))
    seen.rename(path.with_suffix(".seen"))


def is_numbers(value: Any) -> bool:
    return isinstance(value, list) and all(type(item) in (int, float) for item in value)


async def serve(path: str, ref: str, token: str, concurrency: int) -> None:
    loop = asyncio.get_running_loop()
    loop.add_signal_handler(signal.SIGUSR1, change_mode, Path(path))
    server = await loop.create_unix_server(lambda: FakeInstance(ref, token, concurrency), path)
    await server.serve_forever()


if __name__ == "__main__":
    uvloop.run(serve(sys.argv[1], sys.argv[2], sys.argv[3], int((*sys.argv, "1")[4])))
