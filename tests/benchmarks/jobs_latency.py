"""How long a job takes from submit to its terminal event, warm and idle, beside a call of the same function.

One at a time, calls and jobs in turn. A job's time runs from writing the submit until its terminal server-sent event
has been read, over a second connection that asks for the events once the id is known: what a program does that waits.
"""

from __future__ import annotations

import asyncio
import json
import time

import uvloop
from harness.jobs import Line, submit
from harness.load import BenchmarkError
from harness.report import Measured, Options, Table, percentile, ratio, run
from harness.running import ROOT, Platform

APP = ROOT / "tests" / "functions" / "noop" / "app.py"
TERMINAL = (b"event: finished", b"event: failed", b"event: canceled")
WARM = 50


async def until_ended(platform: Platform, job_id: str) -> bytes:
    """Return the kind of a job's terminal event, read from its event stream."""
    line = Line(platform.url, platform.key)
    host, _, port = platform.url.rpartition("//")[2].partition(":")
    reader, writer = await asyncio.open_connection(host, int(port.strip("/")))
    try:
        writer.write(line.head("GET", f"/v1/jobs/{job_id}/events", 0))
        while text := await reader.readline():
            if text.strip() in TERMINAL:
                return text.strip()
        raise BenchmarkError(f"the events of job {job_id} ended early")
    finally:
        writer.close()


async def job_ms(platform: Platform, line: Line, name: str, value: int) -> float:
    """Return how long one job took."""
    started_s = time.perf_counter()
    reply = await line.ask(*submit(name, {"value": value}))
    if reply.status != 202:
        raise BenchmarkError(f"submit: {reply.status} {reply.body[:300]!r}")
    async with asyncio.timeout(30):
        ended = await until_ended(platform, json.loads(reply.body)["id"])
    took_s = time.perf_counter() - started_s
    if ended != TERMINAL[0]:
        raise BenchmarkError(f"the job ended with {ended!r}")
    return 1000 * took_s


async def call_ms(line: Line, name: str, value: int) -> float:
    """Return how long one call took."""
    reply = await line.ask("POST", f"/v1/functions/{name}/invoke", json.dumps({"value": value}).encode())
    if reply.status != 200:
        raise BenchmarkError(f"invoke: {reply.status} {reply.body[:300]!r}")
    return 1000 * reply.took_s


async def take_all(platform: Platform, name: str, num_pairs: int) -> tuple[list[float], list[float]]:
    """Return the milliseconds of jobs and of calls, taken in turn, the first few left out."""
    line = Line(platform.url, platform.key)
    jobs_ms, calls_ms = [], []
    for number in range(WARM + num_pairs):
        calls_ms.append(await call_ms(line, name, number))
        jobs_ms.append(await job_ms(platform, line, name, number))
    await line.close()
    return jobs_ms[WARM:], calls_ms[WARM:]


def measure(options: Options) -> Measured:
    """Take calls and jobs in turn."""
    with Platform() as platform:
        name = platform.deploy(APP)
        platform.scale(name, min_instances=1, max_instances=1)
        platform.wait_ready(name, 1)
        jobs_ms, calls_ms = uvloop.run(take_all(platform, name, options.pick(1000, 150)))
    rows = [
        (label, len(values), *(percentile(values, percent) for percent in (50, 90, 99)))
        for label, values in (("job, submit to terminal event", jobs_ms), ("call", calls_ms))
    ]
    p50_ms, p99_ms = percentile(jobs_ms, 50), percentile(jobs_ms, 99)
    return Measured(
        {
            "p50_ms": p50_ms,
            "p99_ms": p99_ms,
            "call_p50_ms": percentile(calls_ms, 50),
            "call_p99_ms": percentile(calls_ms, 99),
            "p50_over_call": ratio(p50_ms, percentile(calls_ms, 50)),
        },
        [Table("Milliseconds, one at a time", ("what", "taken", "p50", "p90", "p99"), rows)],
    )


if __name__ == "__main__":
    run("jobs_latency", {}, measure)
