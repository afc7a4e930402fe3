"""Batching: MiniLM behind the platform at 64 connections, one instance of one torch thread.

Held against the same handler in a bare loop at batch 16 on the same sentences. Takes alternate; nothing is pinned.
"""

from __future__ import annotations

from harness import minilm
from harness.load import run_wrk
from harness.report import Measured, Options, Table, interleave, median_of, run
from harness.running import Platform

TARGETS = {"over_bare_loop": (">=", 0.9)}


def measure(options: Options) -> Measured:
    """Measure platform and bare loop in turn."""
    seconds = options.pick(8, 3)
    bodies = minilm.sentences(64)
    with minilm.BareLoop(bodies) as bare, Platform() as platform:
        name = platform.deploy(minilm.APP)
        platform.scale(name, min_instances=1, max_instances=1)
        platform.wait_ready(name, 1)
        target = platform.target(name, *bodies)
        run_wrk(target, 64, 2)
        rates = interleave(
            options.pick(5, 2),
            {"platform": lambda: run_wrk(target, 64, seconds).rps, "bare loop": lambda: bare.rate(16, seconds)},
        )
    platform_rps, bare_rps = (median_of(rates[side], float) for side in ("platform", "bare loop"))
    rows = [(side, median_of(values, float), min(values), max(values)) for side, values in rates.items()]
    return Measured(
        {"over_bare_loop": platform_rps / bare_rps, "platform_rps": platform_rps, "bare_loop_rps": bare_rps},
        [Table("Sentences a second", ("side", "median", "least", "most"), rows)],
    )


if __name__ == "__main__":
    run("batching", TARGETS, measure)
