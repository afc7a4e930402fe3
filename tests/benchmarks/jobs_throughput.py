"""Jobs a second, end to end: submitted one by one while the worker works, until the last one has ended.

Three sides take turns in one run, on the platform's own Valkey and with the same no-op function: one job worker of ours
with one instance, submitted to over HTTP; RQ's SimpleWorker and RQ's default Worker, enqueued to by RQ's `Queue`. Each
side has one worker process. Commands are those that Valkey counts, those inside scripts included, from the first submit
to the last end, the platform's usual traffic included.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass

import redis
from harness.jobs import Commands, ask_all, redis_of, submit, wait_ended
from harness.load import BenchmarkError
from harness.processes import end
from harness.report import Measured, Options, Table, interleave, median_of, ratio, run
from harness.running import ROOT, Platform, wait_until
from rq import Queue, Worker

CHILDREN = ROOT / "tests" / "benchmarks" / "children"
APP = ROOT / "tests" / "functions" / "noop" / "app.py"
TARGETS = {
    "over_default_worker": (">=", 5.0),
    "over_simple_worker": (">=", 1.5),
    "redis_commands_per_job": ("<=", 25.0),
}
TIMEOUT_S = 300.0


@dataclass(frozen=True)
class Take:
    """One turn of one side."""

    jobs_per_s: float
    commands_per_job: float


def timed(client: redis.Redis, num_jobs: int, work: Callable[[], None]) -> Take:
    """Return what `work`, which submits `num_jobs` jobs and waits for their end, took."""
    commands = Commands(client)
    started_s = time.perf_counter()
    work()
    took_s = time.perf_counter() - started_s
    return Take(num_jobs / took_s, sum(commands.since().values()) / num_jobs)


class Ours:
    """The platform's side. ended: jobs of earlier turns."""

    def __init__(self, platform: Platform, client: redis.Redis, name: str, num_jobs: int) -> None:
        self._platform = platform
        self._client = client
        self._name = name
        self._num_jobs = num_jobs
        self._num_ended = 0

    def take(self) -> Take:
        """Submit and wait."""
        return timed(self._client, self._num_jobs, self._work)

    def _work(self) -> None:
        self._num_ended += self._num_jobs
        ask_all(self._platform, [submit(self._name, {"value": number}) for number in range(self._num_jobs)])
        wait_ended(self._client, self._name, self._num_ended, TIMEOUT_S)


class Theirs:
    """RQ's side. worker: class name of the worker."""

    def __init__(self, client: redis.Redis, url: str, worker: str, num_jobs: int) -> None:
        self._client = client
        self._url = url
        self._worker = worker
        self._num_jobs = num_jobs
        self._queue = Queue(f"bench-{worker}", connection=client)

    def take(self) -> Take:
        """Start a worker, enqueue, wait for the end of all; then the worker ends."""
        self._queue.finished_job_registry.cleanup()
        before = self._queue.finished_job_registry.count
        command = [sys.executable, "-m", "rq.cli", "worker", "--quiet", "--path", str(CHILDREN)]
        command += ["--worker-class", f"rq.worker.{self._worker}", self._queue.name]
        environ = os.environ | {"RQ_REDIS_URL": self._url}
        process = subprocess.Popen(command, env=environ, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        try:
            wait_until(lambda: bool(Worker.all(queue=self._queue)), 30, f"RQ's {self._worker}")
            return timed(self._client, self._num_jobs, lambda: self._work(before, process))
        finally:
            end([process.pid])
            wait_until(lambda: not self._forget(), 30, "no RQ worker")

    def _work(self, before: int, process: subprocess.Popen[bytes]) -> None:
        for number in range(self._num_jobs):
            self._queue.enqueue("rq_noop.noop", number)

        def is_done() -> bool:
            if process.poll() is not None:
                raise BenchmarkError(f"RQ's {self._worker} ended with {process.returncode}")
            return bool(self._queue.finished_job_registry.count >= before + self._num_jobs)

        wait_until(is_done, TIMEOUT_S, f"{self._num_jobs} jobs by RQ's {self._worker}", every_s=0.01)

    def _forget(self) -> bool:
        """Strike killed workers off RQ's list; return whether any is left."""
        workers = Worker.all(queue=self._queue)
        for worker in workers:
            worker.register_death()  # type: ignore[no-untyped-call]
        return bool(Worker.all(queue=self._queue))


def measure(options: Options) -> Measured:
    """Let the three sides take turns."""
    with Platform() as platform, redis_of(platform) as client:
        name = platform.deploy(APP)
        platform.scale(name, min_instances=1, max_instances=1)
        platform.wait_ready(name, 1)
        url = _url_of(client)
        sides: dict[str, Callable[[], Take]] = {
            "one worker of ours": Ours(platform, client, name, options.pick(4000, 1000)).take,
            "RQ SimpleWorker": Theirs(client, url, "SimpleWorker", options.pick(600, 150)).take,
            "RQ default Worker": Theirs(client, url, "Worker", options.pick(300, 60)).take,
        }
        ours_first = next(iter(sides.values()))
        ours_first()  # connections, caches and the instance are there
        takes = interleave(options.pick(5, 2), sides)
    rates = {side: median_of(results, lambda take: take.jobs_per_s) for side, results in takes.items()}
    commands = {side: median_of(results, lambda take: take.commands_per_job) for side, results in takes.items()}
    ours, simple, default = rates
    rows = [(side, rates[side], commands[side], len(takes[side])) for side in takes]
    return Measured(
        {
            "over_default_worker": ratio(rates[ours], rates[default]),
            "over_simple_worker": ratio(rates[ours], rates[simple]),
            "redis_commands_per_job": commands[ours],
            "jobs_per_s": rates[ours],
        },
        [Table("No-op jobs, submit to end", ("worker", "jobs/s", "Redis commands a job", "takes"), rows)],
    )


def _url_of(client: redis.Redis) -> str:
    options = client.connection_pool.connection_kwargs
    return f"redis://:{options['password']}@{options['host']}:{options['port']}/{options.get('db', 0)}"


if __name__ == "__main__":
    run("jobs_throughput", TARGETS, measure)
