"""Ten jobs of one API key behind 50,000 of another.

One instance takes one job of 20 ms at a time. The minority's ten are submitted together, first on an idle platform,
then while the majority's 50,000 wait; slowdown is how much longer it takes until the last of the ten has ended, median
of takes. With two tenants and one slot a fair share is half of it: 2 is the floor. Without fairness it is 1,000 s.
"""

from __future__ import annotations

import json
import time

from harness.jobs import ask_all, submit_many
from harness.load import BenchmarkError
from harness.report import Measured, Options, Table, median_of, run
from harness.running import ROOT, Platform

APP = ROOT / "tests" / "functions" / "naps" / "app.py"
TARGETS = {"minority_slowdown": ("<=", 3.0)}
NAP = {"values": [1.0]}
NUM_MINORITY = 10
PER_REQUEST = 5000
TIMEOUT_S = 120.0


def until_done_s(platform: Platform, name: str, key: str) -> float:
    """Return how long ten jobs of `key` take, submitted together."""
    started_s = time.perf_counter()
    [reply] = ask_all(platform, [submit_many(name, [NAP] * NUM_MINORITY)], key=key)
    ids = json.loads(reply.body)["jobs"]
    for answer in ask_all(platform, [("GET", f"/v1/jobs/{job}?wait_s=60", b"") for job in ids], NUM_MINORITY, key):
        if json.loads(answer.body)["state"] != "finished":
            raise BenchmarkError(f"a job of the minority did not finish: {answer.body[:300]!r}")
    return time.perf_counter() - started_s


def measure(options: Options) -> Measured:
    """Take the ten alone, then behind the many."""
    num_takes, num_majority = options.pick(9, 3), options.pick(50_000, 10_000)
    with Platform() as platform:
        name = platform.deploy(APP)
        platform.scale(name, min_instances=1, max_instances=1)
        platform.wait_ready(name, 1)
        few, many = (platform.cli("keys", "create", who)["key"] for who in ("few", "many"))
        until_done_s(platform, name, few)
        alone = [until_done_s(platform, name, few) for _ in range(num_takes)]
        requests = [submit_many(name, [NAP] * PER_REQUEST) for _ in range(num_majority // PER_REQUEST)]
        ask_all(platform, requests, 1, many)
        behind = [until_done_s(platform, name, few) for _ in range(num_takes)]
    idle_s, busy_s = median_of(alone, float), median_of(behind, float)
    rows = [
        ("idle", idle_s * 1000, len(alone)),
        (f"behind {num_majority:,} of another key", busy_s * 1000, len(behind)),
    ]
    return Measured(
        {"minority_slowdown": busy_s / idle_s, "idle_ms": idle_s * 1000, "behind_ms": busy_s * 1000},
        [Table("Ten jobs of 20 ms, submit to the end of the last", ("platform", "ms", "takes"), rows)],
    )


if __name__ == "__main__":
    run("jobs_fairness", TARGETS, measure)
