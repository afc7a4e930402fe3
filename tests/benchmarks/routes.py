"""What many functions and instances cost a call: a platform with 5,000 registered functions, 200 of them with a ready
instance, beside one with a single function and instance. Both on core 0, wrk on core 1, takes alternate. The call is
the sum of 64 floats by one function, at 16 connections; its overhead is the CPU time of all processes of the platform.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import httpx
from harness.load import Load, run_wrk
from harness.processes import command, process_table, tree, tree_cpu_s
from harness.report import Measured, Options, Table, interleave, median_of, ratio, run
from harness.running import Platform, wait_until
from overhead import APP, BODY

TARGETS = {"overhead_growth": ("<=", 0.10)}
NUM_THREADS = 8


def register(platform: Platform, manifest: dict[str, Any], num_functions: int, num_instances: int) -> None:
    """Register copies of a deployed function under other names; the first ones keep an instance each."""
    headers = {"authorization": f"Bearer {platform.key}"}
    with httpx.Client(base_url=platform.url, headers=headers, timeout=60) as client:

        def publish(number: int) -> None:
            name = f"copy-{number}"
            scaling = {"min_instances": int(number < num_instances), "max_instances": 1}
            copy = manifest | {"name": name, "version": 0, "scaling": scaling}
            client.post(f"/v1/functions/{name}/versions", json=copy).raise_for_status()

        with ThreadPoolExecutor(NUM_THREADS) as pool:
            list(pool.map(publish, range(num_functions)))


def prepare(platform: Platform, num_functions: int, num_instances: int) -> str:
    """Deploy the function, register the others, wait for all instances; return its name."""
    name = platform.deploy(APP)
    platform.scale(name, min_instances=1, max_instances=1)
    platform.wait_ready(name, 1)
    manifest = platform.get(f"/v1/functions/{name}")["manifests"]["1"]
    register(platform, manifest, num_functions - 1, num_instances - 1)
    wait_until(
        lambda: len(platform.instances(state="ready")) >= num_instances, 600, f"{num_instances} instances", every_s=1.0
    )
    return name


def gateway_cpu_s(platform: Platform) -> float:
    """Return the CPU seconds of the gateway so far."""
    table = process_table()
    return sum(table[pid].cpu_s for pid in tree(platform.pid, table) if "samovar_gateway" in command(pid))


def take(platform: Platform, name: str, seconds: int) -> tuple[Load, float]:
    """Return one take and the gateway's CPU ms per call in it."""
    before_s = gateway_cpu_s(platform)
    load = run_wrk(platform.target(name, BODY), 16, seconds, cores="1", server_cpu_s=partial(tree_cpu_s, platform.pid))
    return load, 1000 * (gateway_cpu_s(platform) - before_s) / load.requests


def measure(options: Options) -> Measured:
    """Measure both platforms in turn."""
    num_functions, num_instances = options.pick((5000, 200), (100, 10))
    with Platform(cores="0") as small, Platform(cores="0") as large:
        sides = {
            "1 function, 1 instance": partial(take, small, prepare(small, 1, 1), options.pick(6, 2)),
            f"{num_functions} functions, {num_instances} instances": partial(
                take, large, prepare(large, num_functions, num_instances), options.pick(6, 2)
            ),
        }
        for side in sides.values():
            side()
        taken = interleave(options.pick(7, 2), sides)
    one, many = taken.values()
    growth = ratio(median_of(many, _cpu_ms), median_of(one, _cpu_ms))
    gateway = ratio(median_of(many, lambda t: t[1]), median_of(one, lambda t: t[1]))
    rows = [
        (label, median_of(takes, lambda t: t[0].rps), median_of(takes, _cpu_ms), median_of(takes, lambda t: t[1]))
        for label, takes in taken.items()
    ]
    return Measured(
        {
            "overhead_growth": None if growth is None else growth - 1,
            "gateway_growth": None if gateway is None else gateway - 1,
        },
        [Table("Medians of takes", ("platform", "calls/s", "CPU ms/call", "of it the gateway"), rows)],
    )


def _cpu_ms(taken: tuple[Load, float]) -> float:
    return taken[0].cpu_ms_per_call


if __name__ == "__main__":
    run("routes", TARGETS, measure)
