"""Why a job does not run yet, and when it may.

| the job is                                             | reason
|--------------------------------------------------------|------------------------------------------------------
| deferred                                               | dependencies
| scheduled, after a failure; else                       | retry; delayed
| queued, and no worker is alive                         | no_worker
| … every worker leaves its queue alone                  | what the worker says that is nearest to taking it
| … as many jobs of its function run as may              | paused
| … no instance is ready: the last boot failed           | crash_loop
|   … the breaker is open                                | breaker_open
|   … instances come up, or the manager has not seen     | cold_start
|     the job yet                                        |
|   … none comes up                                      | no_capacity
| … instances are ready: the breaker is open; else       | breaker_open; busy

**Estimated start** = (jobs of its queue in front of it + 1) / (jobs a second that all workers took from that queue
lately). A queue nobody took from yet is expected to get a fair share of what its function's queues get. It is never
before the end of a pause. It is a guess from the past minutes, None without one: it does not know how long the jobs in
front will take, nor interactive calls to come, and a cold function has none.
This module does not know Redis or the clock.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from samovar.jobs import JobState, WaitReason
from samovar_storage.breakers import BreakerNews
from samovar_storage.jobs.layout import QueueName, parse_queue
from samovar_storage.jobs.records import Hold, JobRecord, WorkerStatus
from samovar_storage.records import BootFailure, VersionStatus

SEEN_WITHIN_S = 5.0  # the pool manager has heard of a job by then
_BOOT_REASONS = ("crash_loop", "load_failed")


@dataclass(frozen=True, slots=True)
class Facts:
    """What was read of one function, all at about the same time; each tuple holds what there is.

    max_running: how many jobs of it may run at a time, None = any number.
    """

    workers: tuple[WorkerStatus, ...] = ()
    versions: tuple[VersionStatus, ...] = ()
    boot_failures: tuple[BootFailure, ...] = ()
    breakers: tuple[BreakerNews, ...] = ()
    max_running: int | None = None


def wait_reason(record: JobRecord, facts: Facts, position: int, now_s: float) -> tuple[WaitReason, float | None] | None:
    """Return why a job waits, and in how many seconds (>= 0) it may start, None if nobody can tell.

    Args:
        position: jobs of its queue in front of it, >= 0; of a queued one.
        now_s: unix seconds.
    Returns: None for a job that runs or has ended.
    """
    if record.state is JobState.DEFERRED:
        return "dependencies", None
    if record.state is JobState.SCHEDULED:
        return ("retry" if record.failures else "delayed"), max(0.0, record.due_at_s - now_s)
    if record.state is not JobState.QUEUED:
        return None
    queue = parse_queue(record.queue)
    if queue is None or not facts.workers:
        return "no_worker", None
    hold = _hold(queue, facts.workers, now_s)
    reason = hold.reason if hold else _of_function(record, facts, now_s)
    start_s = estimated_start_s(queue, facts.workers, position)
    if hold and start_s is not None:
        start_s = max(start_s, hold.until_s - now_s)
    return reason, start_s


def estimated_start_s(queue: QueueName, workers: Iterable[WorkerStatus], position: int) -> float | None:
    """Return in how many seconds a job with `position` others in front of it may start; None if nobody can tell."""
    rates: dict[str, float] = {}
    for worker in workers:
        for name, per_s in worker.taken_per_s.items():
            rates[name] = rates.get(name, 0.0) + per_s
    rate = rates.get(str(queue)) or _fair_share(queue, rates)
    return (position + 1) / rate if rate else None


def _fair_share(queue: QueueName, rates: dict[str, float]) -> float:
    """Return what a queue that nobody took from lately may get, 0 if that cannot be told: of low jobs behind others."""
    same = {other: per_s for name, per_s in rates.items() if (other := parse_queue(name)) and _is_same(other, queue)}
    if queue.is_low and any(not other.is_low for other in same):
        return 0.0
    return sum(same.values()) / (len(same) + 1)


def _is_same(one: QueueName, other: QueueName) -> bool:
    return one.function == other.function


def _hold(queue: QueueName, workers: Iterable[WorkerStatus], now_s: float) -> Hold | None:
    """Return the hold that ends first if every worker has one on this queue, else None."""
    nearest: Hold | None = None
    for worker in workers:
        keys = ("", queue.function, f"{queue.function}:{queue.key_id}")
        found = [worker.holds[key] for key in keys if key in worker.holds]
        held = [hold for hold in found if not hold.until_s or hold.until_s > now_s]
        if not held:
            return None
        last = max(held, key=lambda hold: hold.until_s)
        nearest = last if nearest is None or last.until_s < nearest.until_s else nearest
    return nearest


def _of_function(record: JobRecord, facts: Facts, now_s: float) -> WaitReason:
    num_running = sum(worker.running.get(record.spec.function, 0) for worker in facts.workers)
    if facts.max_running is not None and num_running >= facts.max_running:
        return "paused"
    is_ready = any(version.ready for version in facts.versions) if facts.versions else _is_served(record, facts)
    is_open = any(news.until_s > now_s and news.state != "closed" for news in facts.breakers)
    if is_ready:
        return "breaker_open" if is_open else "busy"
    if facts.boot_failures or any(news.reason in _BOOT_REASONS for news in facts.breakers):
        return "crash_loop"
    if is_open:
        return "breaker_open"
    is_coming = any(version.starting for version in facts.versions)
    is_new = now_s - record.enqueued_at_s < SEEN_WITHIN_S
    return "cold_start" if is_coming or is_new else "no_capacity"


def _is_served(record: JobRecord, facts: Facts) -> bool:
    """Whether workers took jobs of the function lately: the next best word while no pool manager says what is ready."""
    queues = (parse_queue(name) for worker in facts.workers for name in worker.taken_per_s)
    return any(queue is not None and queue.function == record.spec.function for queue in queues)
