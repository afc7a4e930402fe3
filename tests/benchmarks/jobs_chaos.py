"""5,000 jobs while a process is killed every second: job workers, instances, the manager, gateways and Valkey in turn.

Jobs are submitted one by one, each repeated under its Idempotency-Key until it gets a 202. Each appends a row outside,
with its attempt's fencing token. Afterwards every job that got a 202 must have ended, and every finished one must have
exactly one row under the token with which its result was committed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from harness.chaos import Killer, book, platform_pids, run_chaos
from harness.report import Measured, Options, Table, run
from harness.running import ROOT, Platform

APP = ROOT / "tests" / "functions" / "effects" / "app.py"
TARGETS = {"lost": ("==", 0.0), "double_committed": ("==", 0.0), "not_terminal": ("==", 0.0)}
RATE = 100.0
TIMEOUT_S = 300.0
SETTINGS = {"SAMOVAR_GATEWAYS": "2", "SAMOVAR_JOB_WORKERS": "2"}
KINDS = ("gateway", "pool", "jobs", "valkey")


def measure(options: Options) -> Measured:
    """Submit while the killer is at work."""
    with Platform(settings=SETTINGS) as platform, book() as rows:
        name = platform.deploy(APP)
        platform.scale(name, min_instances=2, max_instances=2)
        platform.wait_ready(name, 2)

        def victims() -> Mapping[str, Sequence[int]]:
            pids = platform_pids(platform.data_dir)
            return {kind: pids.get(kind, []) for kind in KINDS} | {"instance": platform.instance_pids(name)}

        killer = Killer(victims, str(platform.data_dir))
        num_jobs = options.pick(5000, 500)
        verdict = run_chaos(platform.url, platform.key, name, killer, rows, num_jobs, RATE, TIMEOUT_S)
    states = ", ".join(f"{count:,} {state}" for state, count in sorted(verdict.states.items()))
    return Measured(
        {
            "lost": verdict.lost,
            "double_committed": verdict.double_committed,
            "not_terminal": verdict.not_terminal,
            "accepted": verdict.accepted,
            "rows": verdict.rows,
            "kills": sum(killer.killed.values()),
        },
        [Table("Killed by kill -9", ("process", "times"), sorted(killer.killed.items()))],
        [
            f"Ended: {states}. Rows beyond one a job are attempts that were cut off after their effect, and not committed."
        ],
    )


if __name__ == "__main__":
    run("jobs_chaos", TARGETS, measure)
