"""A burst: 200 MiniLM calls at once to the function at zero, at most 4 instances.

Ideal: the total work (200 sentences at the rate of the bare loop at batch 16, one thread) divided by the usable cores,
and one cold start. The load generator is `harness.load.call_at_once`: its connections are open before the clock
starts; it is measured against a server that answers at once.
"""

from __future__ import annotations

import asyncio
import os
import statistics

from harness import minilm
from harness.child import Child
from harness.load import Burst, Target, call_at_once
from harness.report import Measured, Options, Table, run
from harness.running import Platform

TARGETS = {"failed": ("==", 0.0), "over_ideal": ("<=", 1.5)}
NUM_CALLS = 200


def generator_s(bodies: list[bytes]) -> float:
    """Return what the load generator takes by itself, median of 5."""
    with Child("instant_server.py") as server:
        target = Target(f"http://127.0.0.1:{server.greeting.strip()}/", bodies)
        return statistics.median(asyncio.run(call_at_once(target)).last_s for _ in range(5))


def measure(options: Options) -> Measured:
    """Measure bursts, cold starts and the bare loop in turn."""
    bodies = minilm.sentences(NUM_CALLS)
    cores = len(os.sched_getaffinity(0))
    bursts: list[Burst] = []
    colds_s, rates = [], []
    with minilm.BareLoop(bodies) as bare, Platform() as platform:
        name = platform.deploy(minilm.APP)
        platform.scale(name, max_instances=4, scale_down_window_s=0.5)
        for _ in range(options.pick(7, 2)):
            rates.append(bare.rate(16, 2.0))
            platform.wait_zero(name)
            colds_s.append(platform.invoke(name, minilm.BODY).elapsed_ms / 1000)
            platform.wait_zero(name)
            bursts.append(asyncio.run(call_at_once(platform.target(name, *bodies))))
    work_s, cold_s = NUM_CALLS / statistics.median(rates), statistics.median(colds_s)
    ideal_s = work_s / cores + cold_s
    last_s = statistics.median(burst.last_s for burst in bursts)
    rows = [(i + 1, burst.failed, burst.first_s, burst.last_s) for i, burst in enumerate(bursts)]
    return Measured(
        {
            "failed": sum(burst.failed for burst in bursts),
            "over_ideal": last_s / ideal_s,
            "last_answer_s": last_s,
            "ideal_s": ideal_s,
            "work_s": work_s,
            "cold_s": cold_s,
            "load_generator_s": generator_s(bodies),
        },
        [Table(f"{NUM_CALLS} calls at once, seconds", ("burst", "failed", "first answer", "last answer"), rows)],
    )


if __name__ == "__main__":
    run("burst", TARGETS, measure)
