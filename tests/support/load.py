"""A steady, counted, open-loop load of one function, from a thread of its own: what other people's traffic looks like
while a test breaks something.

Calls are started on a clock, whatever became of those before; half of them on kept-alive connections, half each on a
fresh one. A latency counts from the instant at which the call was due, so a stall is seen by every call it delayed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import httpx

CALL_TIMEOUT_S = 20.0


@dataclass(frozen=True)
class Outcome:
    """What became of one call. due_s: monotonic. status: 0 when no answer came. problem: "" for the right answer."""

    due_s: float
    latency_s: float
    status: int
    problem: str


@dataclass
class Load:
    """The calls so far."""

    outcomes: list[Outcome] = field(default_factory=list)

    def between(self, begin_s: float, end_s: float) -> list[Outcome]:
        """Return the calls that were due from `begin_s` to `end_s`, monotonic seconds, and have ended."""
        return [outcome for outcome in self.outcomes if begin_s <= outcome.due_s < end_s]


def problems(outcomes: Sequence[Outcome]) -> list[Outcome]:
    """Return the calls that did not get their answer."""
    return [outcome for outcome in outcomes if outcome.problem]


def p99_ms(outcomes: Sequence[Outcome]) -> float:
    """Return the 99th percentile of latency, milliseconds; 0 without calls."""
    ordered = sorted(outcome.latency_s for outcome in outcomes)
    return ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))] * 1e3 if ordered else 0.0


@contextlib.contextmanager
def steady_load(url: str, key: str, name: str, value: Any, answer: Any, rate_per_s: float) -> Iterator[Load]:
    """Call function `name` with `value` at `rate_per_s` for the body of a `with`; every call has ended afterwards."""
    load, stop = Load(), threading.Event()
    request = httpx.Request(
        "POST",
        f"{url}/v1/functions/{name}/invoke",
        content=json.dumps(value).encode(),
        headers={"authorization": f"Bearer {key}"},
    )
    arguments = (load, stop, request, answer, 1.0 / rate_per_s)
    thread = threading.Thread(target=lambda: asyncio.run(_drive(*arguments)), name="load")
    thread.start()
    try:
        yield load
    finally:
        stop.set()
        thread.join()


async def _drive(load: Load, stop: threading.Event, request: httpx.Request, answer: Any, gap_s: float) -> None:
    fresh = httpx.Limits(max_keepalive_connections=0)
    async with (
        httpx.AsyncClient(timeout=CALL_TIMEOUT_S) as kept,
        httpx.AsyncClient(timeout=CALL_TIMEOUT_S, limits=fresh) as single,
        asyncio.TaskGroup() as calls,
    ):
        due_s, number = time.monotonic(), 0
        while not stop.is_set():
            calls.create_task(_call(load, (kept, single)[number % 2], request, answer, due_s))
            due_s, number = due_s + gap_s, number + 1
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))


async def _call(load: Load, client: httpx.AsyncClient, request: httpx.Request, answer: Any, due_s: float) -> None:
    try:
        response = await client.request(request.method, request.url, content=request.content, headers=request.headers)
    except httpx.HTTPError as error:
        load.outcomes.append(Outcome(due_s, time.monotonic() - due_s, 0, repr(error)))
        return
    is_right = response.status_code == 200 and response.json() == answer
    load.outcomes.append(
        Outcome(due_s, time.monotonic() - due_s, response.status_code, "" if is_right else response.text[:500])
    )
