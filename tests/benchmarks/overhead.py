"""What the platform adds to a call: the sum of 64 floats through one gateway and one instance, all features on, beside
the same work in process under the same server, and beside mosec. Servers on core 0, wrk on core 1, takes alternate.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from harness.child import Child
from harness.load import Load, Target, run_wrk
from harness.peers import PeerLoad, run_peer, why_missing
from harness.processes import tree_cpu_s
from harness.report import Measured, Metrics, Options, Table, interleave, median_of, ratio, run
from harness.running import ROOT, Platform

TARGETS = {
    "throughput_over_handler": (">=", 1.0),
    "throughput_over_asgi": (">=", 0.55),
    "cpu_over_mosec": ("<=", 0.75),
    "p50_added_ms": ("<=", 0.25),
}
APP = ROOT / "tests" / "functions" / "echo_sum" / "app.py"
BODY = json.dumps({"values": [round(i * 0.5, 3) for i in range(64)]}).encode()
CONNECTIONS = (1, 16)


@dataclass(frozen=True)
class Side:
    """One server under 1 and under 16 connections."""

    one: PeerLoad
    many: PeerLoad


def load_of(load: Load) -> PeerLoad:
    """Return the figures of one wrk run."""
    return PeerLoad(load.rps, load.p50_ms, load.p99_ms, load.cpu_ms_per_call)


def take(target: Target, cpu_s: Callable[[], float], seconds: int) -> Side:
    """Return one take of a server that runs already."""
    run_wrk(target, 16, 1, cores="1")
    one, many = (load_of(run_wrk(target, c, seconds, cores="1", server_cpu_s=cpu_s)) for c in CONNECTIONS)
    return Side(one, many)


def take_mosec(seconds: int) -> Side:
    """Start mosec, load it, end it."""
    loads = run_peer("mosec", "W0", CONNECTIONS, seconds).loads
    return Side(loads[1], loads[16])


def ratios(sides: dict[str, list[Side]]) -> Metrics:
    """Return the figures; that against mosec is None if it is missing."""

    def many_rps(side: Side) -> float:
        return side.many.rps

    def many_cpu(side: Side) -> float:
        return side.many.cpu_ms_per_call

    def one_p50(side: Side) -> float:
        return side.one.p50_ms

    own, mosec = sides["samovar"], sides.get("mosec")
    return {
        "throughput_over_handler": ratio(median_of(own, many_rps), median_of(sides["handler"], many_rps)),
        "throughput_over_asgi": ratio(median_of(own, many_rps), median_of(sides["asgi"], many_rps)),
        "cpu_over_mosec": ratio(median_of(own, many_cpu), median_of(mosec, many_cpu) if mosec else None),
        "p50_added_ms": median_of(own, one_p50) - median_of(sides["asgi"], one_p50),
        "p50_over_mosec": ratio(median_of(own, one_p50), median_of(mosec, one_p50) if mosec else None),
    }


def table(sides: dict[str, list[Side]]) -> Table:
    """Return the medians of every server."""
    columns: dict[str, Callable[[Side], float]] = {
        "c1 p50 ms": lambda side: side.one.p50_ms,
        "c16 calls/s": lambda side: side.many.rps,
        "c16 p50 ms": lambda side: side.many.p50_ms,
        "c16 p99 ms": lambda side: side.many.p99_ms,
        "c16 CPU ms/call": lambda side: side.many.cpu_ms_per_call,
    }
    rows = [(name, *(median_of(takes, value) for value in columns.values())) for name, takes in sides.items()]
    return Table("Sum of 64 floats, medians of takes", ("server", *columns), rows)


def measure(options: Options) -> Measured:
    """Measure all sides in turn; the platform and the baselines stay up, idle while another is loaded."""
    seconds = options.pick(6, 2)
    missing = why_missing("mosec")
    with Platform(cores="0") as platform, Child("litestar_server.py", cores="0") as baseline:
        name = platform.deploy(APP)
        platform.scale(name, min_instances=1, max_instances=1)
        platform.wait_ready(name, 1)
        url = f"http://127.0.0.1:{baseline.greeting.strip()}"
        sides = {
            "samovar": partial(take, platform.target(name, BODY), partial(tree_cpu_s, platform.pid), seconds),
            "asgi": partial(take, Target(f"{url}/asgi", [BODY]), partial(tree_cpu_s, baseline.pid), seconds),
            "handler": partial(take, Target(f"{url}/handler", [BODY]), partial(tree_cpu_s, baseline.pid), seconds),
        }
        if missing is None:
            sides["mosec"] = partial(take_mosec, seconds)
        taken = interleave(options.pick(5, 1), sides)
    return Measured(ratios(taken), [table(taken)], [missing] if missing else [])


if __name__ == "__main__":
    run("overhead", TARGETS, measure)
