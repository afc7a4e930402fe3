"""What a long queue costs: submitting, looking at one job and listing, with 1,000 and with 100,000 jobs waiting.

Two platforms stand side by side, one with the short and one with the long queue, each working it off slowly with one
instance. Requests go to them in turn, one at a time, so that both see the same machine. Growth is the 99th percentile
over the long queue by that over the short one, median of takes. Bytes are what Valkey's used memory grew by, for each
job that waits, and for each that has ended.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Sequence

from harness.jobs import ask_all, redis_of, submit, submit_many, wait_ended
from harness.report import Measured, Metrics, Options, Table, interleave, median_of, percentile, run
from harness.running import ROOT, Platform

SLOW = ROOT / "tests" / "functions" / "async_echo" / "app.py"
NOOP = ROOT / "tests" / "functions" / "noop" / "app.py"
TARGETS = {
    "submit_p99_growth": ("<=", 1.5),
    "get_p99_growth": ("<=", 1.5),
    "list_p99_growth": ("<=", 1.5),
}
NAP = {"text": "a", "sleep_s": 5.0}
PER_REQUEST = 2000
KINDS = ("submit", "get", "list")


class Queue:
    """One platform with a queue of `depth` jobs that are worked off slowly. ids: of some of them."""

    def __init__(self, platform: Platform, depth: int) -> None:
        self._platform = platform
        self.name = platform.deploy(SLOW)
        platform.scale(self.name, min_instances=1, max_instances=1)
        platform.wait_ready(self.name, 1)
        sizes = [min(PER_REQUEST, depth - start) for start in range(0, depth, PER_REQUEST)]
        with redis_of(platform) as client:
            before = client.info("memory")["used_memory"]
            replies = ask_all(platform, [submit_many(self.name, [NAP] * size) for size in sizes], connections=2)
            self.bytes_per_job = (client.info("memory")["used_memory"] - before) / depth
        self.ids: list[str] = [job_id for reply in replies for job_id in json.loads(reply.body)["jobs"]]

    def take(self, kind: str, count: int) -> float:
        """Return the 99th percentile, in ms, of `count` requests of one kind, one at a time."""
        replies = ask_all(self._platform, [self._request(kind) for _ in range(count)], connections=1)
        return 1000 * percentile([reply.took_s for reply in replies], 99)

    def _request(self, kind: str) -> tuple[str, str, bytes]:
        if kind == "submit":
            return submit(self.name, NAP)
        path = f"/v1/jobs/{random.choice(self.ids)}" if kind == "get" else f"/v1/jobs?function={self.name}&limit=50"
        return "GET", path, b""


def bytes_per_ended(platform: Platform, num_jobs: int) -> float:
    """Return what Valkey keeps of each ended no-op job, in bytes."""
    name = platform.deploy(NOOP)
    platform.scale(name, min_instances=1, max_instances=1)
    platform.wait_ready(name, 1)
    with redis_of(platform) as client:
        before = client.info("memory")["used_memory"]
        ask_all(
            platform, [submit_many(name, [{"value": 1}] * size) for size in [1000] * (num_jobs // 1000)], connections=1
        )
        wait_ended(client, name, num_jobs, 300)
        return float(client.info("memory")["used_memory"] - before) / num_jobs


def growths(takes: dict[str, list[float]], sides: Sequence[str]) -> float:
    """Return the median of the long queue's figure over that of the short one."""
    short, long = (median_of(takes[side], float) for side in sides)
    return long / short


def measure(options: Options) -> Measured:
    """Fill both queues, then ask both in turn."""
    depths = (1000, options.pick(100_000, 20_000))
    count, num_takes = options.pick(400, 100), options.pick(7, 3)
    with Platform() as one, Platform() as other:
        queues = [Queue(platform, depth) for platform, depth in zip((one, other), depths, strict=True)]
        labels = [f"{depth:,} waiting" for depth in depths]
        takes = {}
        for kind in KINDS:
            sides: dict[str, Callable[[], float]] = {
                label: lambda queue=queue, kind=kind: queue.take(kind, count)  # type: ignore[misc]
                for label, queue in zip(labels, queues, strict=True)
            }
            interleave(1, sides)
            takes[kind] = interleave(num_takes, sides)
        ended_bytes = bytes_per_ended(one, options.pick(10_000, 2000))
    rows = [(kind, *(median_of(takes[kind][label], float) for label in labels)) for kind in KINDS]
    metrics: Metrics = {f"{kind}_p99_growth": growths(takes[kind], labels) for kind in KINDS}
    metrics |= {"bytes_per_job": queues[1].bytes_per_job, "bytes_per_ended_job": ended_bytes}
    return Measured(
        metrics,
        [Table("p99 in ms, one request at a time", ("request", *labels), rows)],
    )


if __name__ == "__main__":
    run("jobs_backlog", TARGETS, measure)
