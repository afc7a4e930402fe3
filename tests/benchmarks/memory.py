"""Memory of 16 ready MiniLM instances that have all answered, against a fresh Python process that has answered once.

PSS divides shared pages by their sharers; USS is what would be freed if the process ended. MB is 10^6 bytes.
"""

from __future__ import annotations

import statistics
from concurrent.futures import ThreadPoolExecutor

from harness import minilm
from harness.processes import Memory, memory, tree_pss_bytes
from harness.report import Measured, Options, Table, run
from harness.running import Platform

TARGETS = {"fresh_over_mean_pss": (">=", 5.0), "mean_uss_mb": ("<=", 40.0)}
_MB = 1_000_000


def call_all(platform: Platform, name: str, num_instances: int) -> None:
    """Make every instance answer: more calls at once than the others could take."""

    def call(_: int) -> None:
        connection = platform.connect()
        answer = platform.ask(connection, "POST", f"/v1/functions/{name}/invoke", minilm.BODY)
        assert answer.status == 200, answer
        connection.close()

    with ThreadPoolExecutor(64) as pool:
        list(pool.map(call, range(32 * num_instances)))


def measure(options: Options) -> Measured:
    """Measure the fresh process alone, then the instances."""
    num_instances = options.pick(16, 4)
    fresh = minilm.fresh_process()[1]
    with Platform() as platform:
        name = platform.deploy(minilm.APP)
        platform.scale(name, min_instances=num_instances, max_instances=num_instances)
        platform.wait_ready(name, num_instances)
        call_all(platform, name, num_instances)
        used = [memory(record["pid"]) for record in platform.instances(name, "ready")]
        whole_bytes = tree_pss_bytes(platform.pid)
    assert len(used) == num_instances, f"{len(used)} ready instances, not {num_instances}"
    mean_pss, mean_uss = (statistics.mean(values) for values in ([m.pss for m in used], [m.uss for m in used]))
    return Measured(
        {
            "fresh_over_mean_pss": fresh.pss / mean_pss,
            "mean_uss_mb": mean_uss / _MB,
            "mean_pss_mb": mean_pss / _MB,
            "fresh_pss_mb": fresh.pss / _MB,
            "whole_platform_pss_mb": whole_bytes / _MB,
        },
        [table(fresh, used)],
    )


def table(fresh: Memory, used: list[Memory]) -> Table:
    """Return the memory of a fresh process, the mean and the largest instance."""
    rows: list[tuple[object, ...]] = [("fresh process", fresh.rss / _MB, fresh.pss / _MB, fresh.uss / _MB)]
    for label, pick in (("mean of instances", statistics.mean), ("largest", max)):
        columns = ([m.rss for m in used], [m.pss for m in used], [m.uss for m in used])
        rows.append((label, *(pick(column) / _MB for column in columns)))
    return Table(f"Memory of {len(used)} instances, MB", ("what", "RSS", "PSS", "USS"), rows)


if __name__ == "__main__":
    run("memory", TARGETS, measure)
