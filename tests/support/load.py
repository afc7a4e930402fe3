"""A steady, counted, open-loop load of one function: what other people's traffic looks like while a test breaks things.

Calls are started on a clock, whatever became of those before; every second one on a kept-alive connection, the others
each on a fresh one. A latency counts from the instant at which the call was due, so a stall is seen by every call that
it delayed. It runs in a process of its own, so that what a test does costs it nothing: `python load.py`, with what to
call as JSON on stdin, answers with one JSON line a call until stdin is closed.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx

CALL_TIMEOUT_S = 20.0
START_TIMEOUT_S = 30.0


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
    what = {
        "url": f"{url}/v1/functions/{name}/invoke",
        "key": key,
        "value": value,
        "answer": answer,
        "rate": rate_per_s,
    }
    load = Load()
    with subprocess.Popen(
        [sys.executable, str(Path(__file__))], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdin is not None and process.stdout is not None
        is_running = threading.Event()

        def read(lines: Iterator[str]) -> None:
            for line in lines:
                load.outcomes.append(Outcome(*json.loads(line)))
                is_running.set()

        reader = threading.Thread(target=read, args=(iter(process.stdout),), name="load")
        reader.start()
        process.stdin.write(json.dumps(what) + "\n")
        process.stdin.flush()
        try:
            assert is_running.wait(START_TIMEOUT_S), "the load does not run"
            yield load
        finally:
            process.stdin.close()
            reader.join()


async def _drive(what: dict[str, Any]) -> None:
    """Call until stdin is closed."""
    stop = asyncio.Event()
    asyncio.get_running_loop().add_reader(sys.stdin, stop.set)
    body = json.dumps(what["value"]).encode()
    request = httpx.Request("POST", what["url"], content=body, headers={"authorization": f"Bearer {what['key']}"})
    fresh = httpx.Limits(max_keepalive_connections=0)
    async with (
        httpx.AsyncClient(timeout=CALL_TIMEOUT_S) as kept,
        httpx.AsyncClient(timeout=CALL_TIMEOUT_S, limits=fresh) as single,
        asyncio.TaskGroup() as calls,
    ):
        due_s, number = time.monotonic(), 0
        while not stop.is_set():
            calls.create_task(_call((kept, single)[number % 2], request, what["answer"], due_s))
            due_s, number = due_s + 1.0 / what["rate"], number + 1
            await asyncio.sleep(max(0.0, due_s - time.monotonic()))


async def _call(client: httpx.AsyncClient, request: httpx.Request, answer: Any, due_s: float) -> None:
    status, problem = 0, ""
    try:
        response = await client.request(request.method, request.url, content=request.content, headers=request.headers)
        status = response.status_code
        problem = "" if status == 200 and response.json() == answer else response.text[:500]
    except httpx.HTTPError as error:
        problem = repr(error)
    outcome = (due_s, time.monotonic() - due_s, status, problem)
    sys.stdout.write(json.dumps(outcome) + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    asyncio.run(_drive(json.loads(sys.stdin.readline())))
