"""The request log with full payloads: 2,000 calls/s for a minute, all found afterwards in Parquet and Redis; what it
costs a platform that is loaded as far as it goes; whether gateway and keeper stay the size they are.

Two platforms, one with `request_log` off; takes alternate. What a call passes (gateway, instance) is on core 0; what
works beside the calls (stores, keeper, pool manager) is on core 1, with wrk. `cpu_cost` counts the processor time of
all of them. Calls are the sum of 64 floats, about half a kilobyte.
"""

from __future__ import annotations

import os
import statistics
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial

from harness.load import Load, run_wrk
from harness.open_loop import GONE, fire
from harness.processes import command, memory, tree, tree_cpu_s
from harness.report import Measured, Options, Table, interleave, median_of, ratio, run
from harness.running import ROOT, Platform, wait_until
from overhead import BODY

TARGETS = {"records_lost": ("==", 0.0), "throughput_cost": ("<=", 0.07), "memory_growth": ("<=", 0.05)}
APP = ROOT / "tests" / "functions" / "logged_sum" / "app.py"
RATE = 2000.0
GIVE_UP_S = 10.0
SAMPLE_S = 0.5
OFF = {"SAMOVAR_REQUEST_LOG": "false"}
BESIDE = ("requestlog.keeper", "samovar_pool", "samovar_up", "valkey", "weed")
LOGGING = ("-m samovar_gateway", "requestlog.keeper")
_MB = 1_000_000


def prepare(platform: Platform) -> str:
    """Deploy the function with one instance that stays; return its name."""
    name = platform.deploy(APP)
    platform.scale(name, min_instances=1, max_instances=1)
    platform.wait_ready(name, 1)
    found(platform, name, time.time())  # starts the keeper
    return name


def take(platform: Platform, name: str, seconds: int) -> Load:
    """Return one closed-loop take at 16 connections."""
    move_aside(platform)
    cpu_s = partial(tree_cpu_s, platform.pid)
    return run_wrk(platform.target(name, BODY), 16, seconds, cores="1", server_cpu_s=cpu_s)


def move_aside(platform: Platform) -> None:
    """What no call passes runs on core 1 afterwards."""
    for pid in tree(platform.pid):
        if any(part in command(pid) for part in BESIDE):
            for thread in os.listdir(f"/proc/{pid}/task"):
                os.sched_setaffinity(int(thread), {1})


def log_bytes(platform: Platform) -> float:
    """Return what gateway and keeper take up, in bytes."""
    return float(sum(memory(pid).pss for pid in tree(platform.pid) if any(part in command(pid) for part in LOGGING)))


@contextmanager
def sampled(value: Callable[[], float]) -> Iterator[list[float]]:
    """Read `value` every half second during the body."""
    samples: list[float] = []
    ended = threading.Event()

    def sample() -> None:
        while not ended.wait(SAMPLE_S):
            samples.append(value())

    thread = threading.Thread(target=sample)
    thread.start()
    try:
        yield samples
    finally:
        ended.set()
        thread.join()


def growth(samples: list[float]) -> float | None:
    """Return by which share the last third is above the middle one; what grows without end grows there too."""
    third = len(samples) // 3
    if not third:
        return None
    middle, last = samples[third : 2 * third], samples[2 * third :]
    return statistics.median(last) / statistics.median(middle) - 1


def found(platform: Platform, name: str, since_s: float) -> int:
    """Return how many calls since then have a record."""
    answer = platform.get(f"/v1/functions/{name}/requests/summary?since_s={since_s:.3f}")
    return sum(int(version["calls"]) for version in answer["versions"])


def steady(platform: Platform, name: str, seconds: float) -> dict[str, float | None]:
    """Call at the rate; return what became of the records, of memory, and of the calls."""
    time.sleep(1.0)  # calls before now have other milliseconds
    since_s = time.time()
    with sampled(partial(log_bytes, platform)) as samples:
        volley = fire(platform.target(name, BODY), RATE, seconds, GIVE_UP_S)
    answered = sum(shot.status != GONE for shot in volley.shots)
    wait_until(lambda: found(platform, name, since_s) >= answered, 60, "every record", every_s=1.0)
    took_ms = sorted(1000 * shot.took_s for shot in volley.shots)
    return {
        "calls": float(answered),
        # a call whose client had left before its answer came has a record, too
        "records_lost": float(max(0, answered - found(platform, name, since_s))),
        "failed_calls": float(sum(shot.status != 200 for shot in volley.shots)),
        "p99_ms": took_ms[int(0.99 * len(took_ms))],
        "memory_growth": growth(samples),
        "memory_mb": samples[-1] / _MB if samples else None,
        "calls_per_s": len(volley.shots) / seconds,
    }


def measure(options: Options) -> Measured:
    """Measure the cost in turn, then the steady minute."""
    seconds = options.pick(8, 3)
    with Platform(cores="0") as on, Platform(cores="0", settings=OFF) as off:
        names = {"on": (on, prepare(on)), "off": (off, prepare(off))}
        sides = {label: partial(take, platform, name, seconds) for label, (platform, name) in names.items()}
        for side in sides.values():
            side()
        taken = interleave(options.pick(7, 2), sides)
        kept = steady(on, names["on"][1], options.pick(60.0, 6.0))
    rps = ratio(median_of(taken["on"], lambda load: load.rps), median_of(taken["off"], lambda load: load.rps))
    cpu = ratio(median_of(taken["on"], _cpu_ms), median_of(taken["off"], _cpu_ms))
    rows = [
        (f"log {label}", *(median_of(loads, value) for value in (lambda x: x.rps, _cpu_ms, lambda x: x.p99_ms)))
        for label, loads in taken.items()
    ]
    return Measured(
        {
            "records_lost": kept["records_lost"],
            "throughput_cost": None if rps is None else 1 - rps,
            "memory_growth": kept["memory_growth"],
            "cpu_cost": None if cpu is None else cpu - 1,
            **{f"steady_{key}": kept[key] for key in ("calls", "calls_per_s", "failed_calls", "p99_ms", "memory_mb")},
        },
        [Table("As fast as it goes, medians of takes", ("platform", "calls/s", "CPU ms/call", "p99 ms"), rows)],
    )


def _cpu_ms(load: Load) -> float:
    return load.cpu_ms_per_call


if __name__ == "__main__":
    run("request_log", TARGETS, measure)
