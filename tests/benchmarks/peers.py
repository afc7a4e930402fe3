"""MiniLM, one 12-word sentence a call, beside mosec and LitServe: servers on core 0, wrk on core 1.

Each take starts a server, times its first answer, loads it and ends it, ours like theirs; takes alternate. Memory: ours
is the gateway and its one warm instance; what the whole platform holds is shown beside it.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from harness import minilm
from harness.load import BenchmarkError, run_wrk
from harness.peers import PeerLoad, run_peer, why_missing
from harness.processes import command, memory, tree, tree_cores, tree_cpu_s, tree_pss_bytes
from harness.report import Measured, Metrics, Options, Table, interleave, median_of, ratio, run
from harness.running import Platform

TARGETS = {
    "w1_rps_over_mosec": (">=", 1.05),
    "w1_p50_over_mosec": ("<=", 0.75),
    "cold_over_best_peer": ("<=", 0.02),
    "pss_over_mosec": ("<=", 1.0),
}
CONNECTIONS = (1, 16, 64)
PEERS = ("mosec", "litserve")
_MIB = 1024 * 1024


@dataclass(frozen=True)
class Run:
    """One server from start to end, a peer or ours. pss_mib: of what serves; all_pss_mib: of everything it started."""

    cold_s: float
    pss_mib: float
    all_pss_mib: float
    loads: dict[int, PeerLoad]


def take_peer(peer: str, seconds: int) -> Run:
    """Return one take of a peer."""
    taken = run_peer(peer, "W1", CONNECTIONS, seconds)
    return Run(taken.cold_s, taken.pss_mib, taken.pss_mib, taken.loads)


def take_own(seconds: int) -> Run:
    """Return one take of Samovar: cold calls of the function at zero, then one warm instance under load."""
    with Platform(cores="0") as platform:
        name = platform.deploy(minilm.APP)
        platform.scale(name, max_instances=1, scale_down_window_s=0.5)
        cold_ms = []
        for _ in range(5):
            platform.wait_zero(name)
            cold_ms.append(platform.invoke(name, minilm.BODY).elapsed_ms)
        platform.scale(name, min_instances=1, max_instances=1)
        platform.wait_ready(name, 1)
        target = platform.target(name, minilm.BODY)
        cpu = partial(tree_cpu_s, platform.pid)
        run_wrk(target, 16, 3, cores="1")
        loads = {c: run_wrk(target, c, seconds, cores="1", server_cpu_s=cpu) for c in CONNECTIONS}
        if tree_cores(platform.pid) != {0}:
            raise BenchmarkError(f"not pinned to core 0, as the peers are: {tree_cores(platform.pid)}")
        return Run(
            statistics.median(cold_ms) / 1000,
            sum(memory(pid).pss for pid in serving_pids(platform, name)) / _MIB,
            tree_pss_bytes(platform.pid) / _MIB,
            {c: PeerLoad(load.rps, load.p50_ms, load.p99_ms, load.cpu_ms_per_call) for c, load in loads.items()},
        )


def serving_pids(platform: Platform, name: str) -> list[int]:
    """Return the gateway and the ready instances of `name`."""
    gateways = [pid for pid in tree(platform.pid) if "samovar_gateway" in command(pid)]
    return gateways + [record["pid"] for record in platform.instances(name, "ready")]


def ratios(own: list[Run], peers: dict[str, list[Run]]) -> Metrics:
    """Return the figures; those against a peer that is missing are None."""
    mosec = peers.get("mosec")

    def over(value: Callable[[Run], float]) -> float | None:
        return ratio(median_of(own, value), median_of(mosec, value) if mosec else None)

    rates = [over(lambda run, c=c: run.loads[c].rps) for c in (16, 64)]  # type: ignore[misc]
    colds = [median_of(runs, lambda run: run.cold_s) for runs in peers.values()]
    return {
        "w1_rps_over_mosec": min((rate for rate in rates if rate is not None), default=None),
        "w1_p50_over_mosec": over(lambda run: run.loads[1].p50_ms),
        "cold_over_best_peer": ratio(median_of(own, lambda run: run.cold_s), min(colds, default=None)),
        "pss_over_mosec": over(lambda run: run.pss_mib),
        "w1_rps_over_mosec_16": rates[0],
        "w1_rps_over_mosec_64": rates[1],
        "whole_platform_pss_over_mosec": ratio(
            median_of(own, lambda run: run.all_pss_mib), median_of(mosec, lambda run: run.pss_mib) if mosec else None
        ),
    }


def table(runs: dict[str, list[Run]]) -> Table:
    """Return the medians of every server."""
    columns: dict[str, Callable[[Run], float]] = {
        "c1 p50 ms": lambda run: run.loads[1].p50_ms,
        "c16 calls/s": lambda run: run.loads[16].rps,
        "c16 p99 ms": lambda run: run.loads[16].p99_ms,
        "c64 calls/s": lambda run: run.loads[64].rps,
        "c64 p99 ms": lambda run: run.loads[64].p99_ms,
        "c16 CPU ms/call": lambda run: run.loads[16].cpu_ms_per_call,
        "cold s": lambda run: run.cold_s,
        "PSS MiB": lambda run: run.pss_mib,
        "all PSS MiB": lambda run: run.all_pss_mib,
    }
    rows = [(name, *(median_of(takes, value) for value in columns.values())) for name, takes in runs.items()]
    return Table("W1, medians of takes", ("server", *columns), rows)


def measure(options: Options) -> Measured:
    """Measure all servers that are there, in turn."""
    seconds = options.pick(8, 2)
    notes = [note for note in map(why_missing, PEERS) if note]
    sides: dict[str, Callable[[], Run]] = {"samovar": partial(take_own, seconds)}
    sides |= {peer: partial(take_peer, peer, seconds) for peer in PEERS if why_missing(peer) is None}
    runs = interleave(options.pick(3, 1), sides)
    peers = {name: takes for name, takes in runs.items() if name != "samovar"}
    return Measured(ratios(runs["samovar"], peers), [table(runs)], notes)


if __name__ == "__main__":
    run("peers", TARGETS, measure)
