"""How late an item of a stream is: from `yield` in a handler to the bytes in the client's hands, by the clock that all
processes of the machine share. So the instance's share and the client's are in it: the gateway adds less than this.

Lines, events and resumable events take turns, calls one at a time; then what a gateway holds for a client that does not
read. Platform on core 0, client on core 1.
"""

from __future__ import annotations

import json
import os
import re
import socket
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from urllib.parse import urlsplit

from harness.processes import command, process_table, tree
from harness.report import Measured, Options, Table, interleave, percentile, run
from harness.running import ROOT, Platform

TARGETS = {
    "first_byte_added_ms_p50": ("<=", 2.0),
    "first_line_added_ms_p50": ("<=", 2.0),
    "first_resumable_added_ms_p50": ("<=", 2.0),
    "slow_reader_mib": ("<=", 16.0),
}
APP = ROOT / "tests" / "functions" / "stamps" / "app.py"
PAUSE_S = 0.005
NUM_ITEMS = 20
HELD_BYTES, HELD_S = 64 * 1024, 3.0
STAMP = re.compile(rb'"at_s":([0-9.]+)')
KINDS = {
    "events": b"accept: text/event-stream\r\n",
    "lines": b"",
    "resumable events": b"accept: text/event-stream\r\nsamovar-resume: 30\r\n",
}


@dataclass(frozen=True)
class Take:
    """Lateness in ms of the first items of calls, and of all that follow."""

    first_ms: list[float]
    next_ms: list[float]


def request(platform: Platform, name: str, body: Mapping[str, float], head: bytes) -> bytes:
    """Return the bytes of a call."""
    data = json.dumps(body).encode()
    return b"".join(
        (
            f"POST /v1/functions/{name}/invoke HTTP/1.1\r\nhost: x\r\n".encode(),
            f"authorization: Bearer {platform.key}\r\ncontent-length: {len(data)}\r\n".encode(),
            head + b"\r\n" + data,
        )
    )


def connect(platform: Platform) -> socket.socket:
    """Return a connection to the gateway."""
    address = urlsplit(platform.url)
    connection = socket.create_connection((address.hostname, address.port), timeout=30)
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    return connection


def lateness_ms(connection: socket.socket) -> Iterator[float]:
    """Yield how late each item of a stream is as it arrives, up to the end of the response."""
    rest = b""
    while not rest.endswith(b"0\r\n\r\n"):
        data = connection.recv(65536)
        now_s = time.monotonic()
        rest += data
        place = 0
        for stamp in STAMP.finditer(rest):
            yield 1000 * (now_s - float(stamp.group(1)))
            place = stamp.end()
        rest = rest[place:]
        if not data:
            raise ConnectionError("the stream broke")


def take(platform: Platform, name: str, head: bytes, num_calls: int) -> Take:
    """Return the lateness of some calls, one after another, on one connection."""
    sent = request(platform, name, {"n": NUM_ITEMS, "pause_s": PAUSE_S}, head)
    found = Take([], [])
    with connect(platform) as connection:
        for _ in range(num_calls):
            connection.sendall(sent)
            first, *others = lateness_ms(connection)
            found.first_ms.append(first)
            found.next_ms.extend(others)
    return found


def gateway_mib(platform: Platform) -> float:
    """Return the resident memory of the gateways now."""
    table = process_table()
    pids = [pid for pid in tree(platform.pid, table) if "samovar_gateway" in command(pid)]
    pages = sum(int(open(f"/proc/{pid}/statm").read().split()[1]) for pid in pids)
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20


def slow_reader_mib(platform: Platform, name: str) -> float:
    """Return by how much the gateway grows for a client that reads nothing of a stream of 640 MB."""
    body = {"n": 10_000, "num_bytes": HELD_BYTES}
    with connect(platform) as connection:  # one that reads: what is held for it is let go
        connection.sendall(request(platform, name, body | {"n": 1000}, KINDS["events"]))
        list(lateness_ms(connection))
    before = most = gateway_mib(platform)
    with connect(platform) as connection:
        connection.sendall(request(platform, name, body, KINDS["events"]))
        until_s = time.monotonic() + HELD_S
        while time.monotonic() < until_s:
            time.sleep(0.05)
            most = max(most, gateway_mib(platform))
    return most - before


def measure(options: Options) -> Measured:
    """Measure the three kinds in turn, then the slow reader."""
    os.sched_setaffinity(0, {max(os.sched_getaffinity(0))})
    with Platform(cores="0") as platform:
        name = platform.deploy(APP)
        platform.scale(name, min_instances=1, max_instances=1)
        platform.wait_ready(name, 1)
        num_calls = options.pick(100, 15)
        sides = {kind: partial(take, platform, name, head, num_calls) for kind, head in KINDS.items()}
        for side in sides.values():
            side()
        taken = interleave(options.pick(5, 2), sides)
        slow = slow_reader_mib(platform, name)
    firsts = {kind: [ms for one in takes for ms in one.first_ms] for kind, takes in taken.items()}
    nexts = {kind: [ms for one in takes for ms in one.next_ms] for kind, takes in taken.items()}
    metrics: dict[str, float | None] = {"slow_reader_mib": slow}
    for key, kind in (("first_byte", "events"), ("first_line", "lines"), ("first_resumable", "resumable events")):
        metrics[f"{key}_added_ms_p50"] = percentile(firsts[kind], 50)
        metrics[f"{key}_added_ms_p99"] = percentile(firsts[kind], 99)
    metrics["item_added_ms_p50"] = percentile(nexts["events"], 50)
    rows = [
        (kind, *(percentile(values[kind], percent) for values in (firsts, nexts) for percent in (50, 99)))
        for kind in KINDS
    ]
    columns = ("stream", "first item p50 ms", "p99", "items p50 ms", "p99")
    return Measured(metrics, [Table("From yield to the client, ms", columns, rows)])


if __name__ == "__main__":
    run("streaming", TARGETS, measure)
