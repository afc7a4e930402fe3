"""What RQ's tools see as the function of each of our jobs, and a stock RQ worker calls by mistake: it cannot run them.

Such a job is scheduled again a moment later, for a worker that can; nothing of it is lost or counted. A stock worker
that is started on all queues (`rq worker` names queues, so nobody does this by accident) delays jobs, no more.
This module does not know how jobs are run.
"""

from __future__ import annotations

import logging
import time
from typing import Any

from rq import Retry, get_current_job

from samovar_storage import keys

log = logging.getLogger(__name__)

AGAIN_S = 2
MAX_TIMES = 1_000_000_000


def invoke(*_: Any, **__: Any) -> Retry:
    """Say in the stock worker's log that it is the wrong one, and have RQ schedule the job again."""
    job = get_current_job()
    log.error(
        "this job runs in a Samovar instance: start `python -m samovar_jobs` (or `samovar up`) and end this RQ worker; "
        "the job is queued again"
    )
    if job is not None:  # our workers look where something is due, not through all queues
        job.connection.zadd(keys.JOBS_DUE, {job.origin: time.time() + AGAIN_S})
    return Retry(max=MAX_TIMES, interval=AGAIN_S)
