"""5,000 jobs while things break, several times over: what was accepted must end, and count once.

- a process is killed (kill -9) every second: job workers, instances, the manager, gateways and Valkey in turn
- one of two job workers is stopped (SIGSTOP) for longer than its lease, and goes on
- SeaweedFS is stopped for 20 s, while every job's input lies there
- one job in a thousand takes its instance down with it

Jobs are submitted one by one, each repeated under its Idempotency-Key until it gets a 202. Each appends a row outside,
with its attempt's fencing token. Afterwards every job that got a 202 must have ended, and every finished one must have
exactly one row under the token with which its result was committed. The figures are sums over all of it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext

from harness.chaos import Book, Killer, Site, Verdict, book, platform_pids, run_jobs, stopped
from harness.report import Measured, Options, Table, run
from harness.running import ROOT, Platform

FUNCTIONS = ROOT / "tests" / "functions"
TARGETS = {"lost": ("==", 0.0), "double_committed": ("==", 0.0), "not_terminal": ("==", 0.0)}
TIMEOUT_S = 300.0
SETTINGS = {"SAMOVAR_GATEWAYS": "2", "SAMOVAR_JOB_WORKERS": "2"}
KINDS = ("gateway", "pool", "jobs", "valkey")
PAST_LEASE_S = 8.0
LARGE = "x" * 70_000  # an input that goes to object storage
POISON_EVERY = 1000


class Broken:
    """A platform with two instances of the function, and what is done to it."""

    def __init__(self, platform: Platform, rows: Book) -> None:
        self._platform = platform
        name = platform.deploy(FUNCTIONS / "effects" / "app.py")
        platform.scale(name, min_instances=2, max_instances=2)
        platform.wait_ready(name, 2)
        self.site = Site(platform.url, platform.key, name, rows)
        self.killer = Killer(self._victims, str(platform.data_dir))

    def _victims(self) -> Mapping[str, Sequence[int]]:
        pids = platform_pids(self._platform.data_dir)
        instances = self._platform.instance_pids(self.site.name)
        return {kind: pids.get(kind, []) for kind in KINDS} | {"instance": instances}

    def stop_one(self, kind: str, for_s: float) -> AbstractContextManager[None]:
        """Stop one process of a kind for a while."""
        return stopped(platform_pids(self._platform.data_dir)[kind][:1], 1.0, for_s)


def measure(options: Options) -> Measured:
    """Break one thing after the other."""
    num_jobs, rate = options.pick(5000, 400), 150.0
    with Platform(settings=SETTINGS) as platform, book() as rows:
        broken = Broken(platform, rows)
        site = broken.site
        poison_every = options.pick(POISON_EVERY, 200)
        faults: dict[str, Callable[[], Verdict]] = {
            "a worker stopped past its lease": lambda: run_jobs(
                site, broken.stop_one("jobs", PAST_LEASE_S), num_jobs, rate, TIMEOUT_S
            ),
            "SeaweedFS stopped for 20 s": lambda: run_jobs(
                site, broken.stop_one("seaweedfs", 20.0), options.pick(1500, 200), 50.0, TIMEOUT_S, padding=LARGE
            ),
            "one in a thousand is poison": lambda: run_jobs(
                site, nullcontext(), num_jobs, rate, TIMEOUT_S, poison_every=poison_every
            ),
            "kill -9 every second": lambda: run_jobs(site, broken.killer.at_work(), num_jobs, 60.0, TIMEOUT_S),
        }
        verdicts = {fault: work() for fault, work in faults.items()}
    killed = broken.killer.killed
    columns = ("fault", "accepted", "finished", "failed", "rows", "lost", "double committed", "not terminal")
    table = [
        (fault, v.accepted, *map(v.states.__getitem__, ("finished", "failed")), v.rows, *_wrong(v))
        for fault, v in verdicts.items()
    ]
    return Measured(
        {
            **dict(zip(TARGETS, map(sum, zip(*map(_wrong, verdicts.values()), strict=True)), strict=True)),
            "accepted": sum(verdict.accepted for verdict in verdicts.values()),
            "kills": sum(killed.values()),
        },
        [Table("What became of the jobs", columns, table)],
        [
            "Killed: " + ", ".join(f"{count} × {kind}" for kind, count in sorted(killed.items())) + ".",
            "Rows beyond one a job are attempts that were cut off after their effect: none of them was committed.",
        ],
    )


def _wrong(verdict: Verdict) -> tuple[int, int, int]:
    return verdict.lost, verdict.double_committed, verdict.not_terminal


if __name__ == "__main__":
    run("jobs_chaos", TARGETS, measure)
