"""What queued jobs ask of a version: those that run, and its share of those that wait and might run, up to a cap.

| calls | jobs running + waiting | cap | target concurrency | demand       | instances
|-------|------------------------|-----|--------------------|--------------|----------
| 0     | 0 + 1                  | 4   | 1                  | 0 + 1        | 1
| 0     | 0 + 1,200              | 4   | 1                  | 0 + 4        | 4
| 0     | 4 + 1,196              | 4   | 1                  | 0 + 4        | 4
| 3     | 4 + 1,196              | 4   | 1                  | 3 + 4        | 7, as far as max_instances allow
| 0     | 16 + 1,000             | 4   | 16                 | 0 + 64       | 4

So a backlog alone never takes a version beyond its cap, and calls get instances beside those that jobs keep busy. Only
jobs that could be run are counted: no low ones if the function says so, and no more than its caps let run at a time.
This module does not know Redis, processes or the clock.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from samovar.policies import Jobs
from samovar.spec import Route, Scaling
from samovar_storage.jobs.layout import QueueName

Waiting = Mapping[QueueName, int]  # queue → jobs in it


@dataclass(frozen=True, slots=True)
class JobLoad:
    """running: attempts that workers have under way. waiting: jobs that could run beside them. cap: instances."""

    running: float = 0.0
    waiting: int = 0
    cap: int = 1

    def demand(self, target_concurrency: float) -> float:
        """Return the demand of these jobs, no more than `cap` instances can take."""
        return min(self.running + self.waiting, self.cap * target_concurrency)


def load_of(waiting: int, running: float, jobs: Jobs, scaling: Scaling) -> JobLoad:
    """Return what jobs ask of a version. waiting: from `spread`; running: in all workers."""
    if jobs.max_running is not None:
        waiting = max(0, min(waiting, math.ceil(jobs.max_running - running)))
    return JobLoad(running, waiting, cap_of(jobs, scaling))


def cap_of(jobs: Jobs, scaling: Scaling) -> int:
    """Return up to how many instances a backlog may scale a version, >= 1."""
    return min(jobs.max_instances or math.ceil(scaling.max_instances / 2), scaling.max_instances)


def num_eligible(queues: Waiting, jobs: Jobs) -> int:
    """Return how many of a function's waiting jobs count: what its caps let run, low ones only if they scale."""
    by_key: defaultdict[str, int] = defaultdict(int)
    for queue, num_jobs in queues.items():
        if jobs.low_scales or not queue.is_low:
            by_key[queue.key_id] += num_jobs
    most = jobs.max_running_per_key
    return sum(by_key.values()) if most is None else sum(min(num, most) for num in by_key.values())


def spread(route: Route) -> dict[int, float]:
    """Return version → share, within (0, 1], of the jobs of a function: as its calls are spread."""
    canary = route.canary.percent / 100 if route.canary is not None else 0.0
    shares = {int(version): share / 100 * (1 - canary) for version, share in route.shares.items() if share > 0}
    if route.canary is not None:
        shares[route.canary.version] = canary
    return shares


def by_function(queues: Waiting) -> dict[str, dict[QueueName, int]]:
    """Return function → its queues and how many jobs wait in each."""
    found: dict[str, dict[QueueName, int]] = {}
    for queue, num_jobs in queues.items():
        if num_jobs > 0:
            found.setdefault(queue.function, {})[queue] = num_jobs
    return found


def in_words(target: int, load: JobLoad) -> str:
    """Return why a version has so many instances, such as "3 instances for 1,200 waiting jobs, capped at 4"."""
    counted = [(math.ceil(load.running), "running"), (load.waiting, "waiting")]
    jobs = " and ".join(f"{number:,} {what}" for number, what in counted if number)
    noun = "instance" if target == 1 else "instances"
    return f"{target} {noun} for {jobs} {'job' if load.running + load.waiting == 1 else 'jobs'}, capped at {load.cap}"
