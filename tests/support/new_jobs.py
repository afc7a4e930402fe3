"""Jobs to submit, and ways to leave them, for tests of their store."""

from __future__ import annotations

import time
from typing import Any

from samovar.jobs import JobState
from samovar_storage.jobs.layout import QueueName, new_job_id
from samovar_storage.jobs.records import JobSpec, NewJob, Settlement, Taken
from samovar_storage.jobs.redis_jobs import RedisJobs

QUEUE = QueueName("embed", "k1")
FINISHED = Settlement(state=JobState.FINISHED, result=b'"yes"', result_type="application/json", version=3)
PROBLEM = {"type": "urn:samovar:problem:function_raised", "title": "x", "status": 500, "code": "function_raised"}
FAILED = Settlement(state=JobState.FAILED, error=PROBLEM, failures=1)
QUARANTINED = Settlement(state=JobState.FAILED, error={**PROBLEM, "code": "quarantined"}, crashes=3)
AGAIN = Settlement(state=JobState.QUEUED, error=PROBLEM, failures=1)
BACK = Settlement(state=JobState.QUEUED, at_front=True, counts_attempt=False)


def new_job(function: str = "embed", key_id: str = "k1", body: bytes = b'{"a":1}', **options: Any) -> NewJob:
    """Return a job to submit; options: of its spec, and due_at_s."""
    now_s = time.time()
    due_at_s = options.pop("due_at_s", 0.0)
    spec = JobSpec(function=function, key_id=key_id, created_at_s=now_s, **options)
    return NewJob(id=new_job_id(int(now_s * 1000)), spec=spec, input=body, due_at_s=due_at_s)


async def run_all(
    jobs: RedisJobs, settlement: Settlement = FINISHED, queue: QueueName = QUEUE, worker: str = "w"
) -> list[Taken]:
    """Take all that waits in a queue and leave it so; return it."""
    await jobs.beat(worker)
    taken = await jobs.take(queue, worker, 10_000)
    for job in taken:
        assert await jobs.settle(worker, job, settlement)
    return taken
