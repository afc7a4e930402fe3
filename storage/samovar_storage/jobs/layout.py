"""Names: job ids, RQ queues, and the keys of RQ that our scripts move jobs between.

One RQ queue holds the waiting jobs of one function, one API key and one lane, so that RQ's tools show who waits for
what and a worker may be fair by going round. The keys are RQ's, built by RQ's own templates (a contract test reads
every state back through RQ's classes). This module does not know Redis.
"""

from __future__ import annotations

from collections.abc import Iterable
from secrets import token_hex
from typing import NamedTuple

from rq.job import Job
from rq.queue import Queue
from rq.registry import (
    CanceledJobRegistry,
    DeferredJobRegistry,
    FailedJobRegistry,
    FinishedJobRegistry,
    ScheduledJobRegistry,
    StartedJobRegistry,
)

PREFIX = "sv"
LOW = "low"
QUEUES = str(Queue.redis_queues_keys)
REGISTRIES = {
    "started": StartedJobRegistry.key_template,
    "scheduled": ScheduledJobRegistry.key_template,
    "deferred": DeferredJobRegistry.key_template,
    "finished": FinishedJobRegistry.key_template,
    "failed": FailedJobRegistry.key_template,
    "canceled": CanceledJobRegistry.key_template,
}


class QueueName(NamedTuple):
    """lane: "" for normal jobs, "low" for those after them."""

    function: str
    key_id: str
    lane: str = ""

    def __str__(self) -> str:
        return ":".join((PREFIX, *filter(None, self)))

    @property
    def is_low(self) -> bool:
        """Whether its jobs run after those of the normal lane."""
        return self.lane == LOW


def parse_queue(name: str) -> QueueName | None:
    """Return the parts of one of our queues' names, None for a queue of somebody else's."""
    prefix, *parts = name.split(":")
    return QueueName(*parts) if prefix == PREFIX and 2 <= len(parts) <= 3 else None


def parse_queue_keys(queue_keys: Iterable[bytes]) -> list[QueueName]:
    """Return our queues among the members of QUEUES, in the order of their names."""
    begin = len(Queue.redis_queue_namespace_prefix)
    named = [parse_queue(key.decode()[begin:]) for key in sorted(queue_keys)]
    return [queue for queue in named if queue is not None]


def new_job_id(now_ms: int) -> str:
    """Return a job id, 24 hexadecimal digits; ids of later milliseconds sort after it. now_ms: unix milliseconds."""
    return f"{now_ms:012x}{token_hex(6)}"


def job_key(job_id: str) -> str:
    """Return the key of a job's hash."""
    return str(Job.key_for(job_id))


def queue_key(queue: QueueName) -> str:
    """Return the key of the list of job ids that wait, oldest first."""
    return f"{Queue.redis_queue_namespace_prefix}{queue}"


def registry_key(state: str, queue: QueueName) -> str:
    """Return the key of RQ's registry (sorted set) of the jobs of a queue that are in `state`, see REGISTRIES."""
    return REGISTRIES[state].format(queue)
