"""Samovar's job worker as one of RQ's worker classes, so that `rq info` and dashboards show it.

`python -m samovar_jobs --config FILE` makes one; `rq worker --worker-class samovar_jobs.rq_worker.SamovarWorker` makes
one of the settings in the environment. It takes no commands over RQ's channel but listens to SIGTERM; `rq suspend` and
`rq resume` do what they say. This module does not know how jobs are run.
"""

from __future__ import annotations

import asyncio
import logging
from typing import Any

import uvloop
from redis import Redis
from rq import Queue
from rq.suspension import is_suspended
from rq.worker import WorkerStatus
from rq.worker.base import BaseWorker
from rq.worker_registration import WORKERS_BY_QUEUE_KEY, clean_worker_registry

from samovar import settings as settings_reader
from samovar_jobs.settings import JobsSettings
from samovar_storage.jobs.layout import PREFIX

log = logging.getLogger("samovar.jobs")

ALL_QUEUES = f"{PREFIX}:*"  # shown by RQ's tools; which queue is next is decided job by job
RECORD_LIFETIME_S = 60
MAX_SUFFIX = 100
MAX_QUEUES = 1000  # under which a worker is shown


class SamovarWorker(BaseWorker):
    """Holds many jobs in one process. settings: None = of the environment. Arguments are RQ's otherwise."""

    def __init__(
        self, queues: Any = ALL_QUEUES, *args: Any, settings: JobsSettings | None = None, **options: Any
    ) -> None:
        self._settings = settings or settings_reader.read(JobsSettings)
        super().__init__(ALL_QUEUES, *args, **options)
        self.worker_ttl = RECORD_LIFETIME_S
        self._shown_at: set[str] = set()  # queues

    def _set_ip_address(self, connection: Redis) -> None:
        """Ask nothing of Redis yet: it may still be on its way up."""
        self.ip_address = "unknown"

    def work(self, *_: Any, **__: Any) -> bool:
        """Run until told to stop; return whether any job was taken."""
        from samovar_jobs.worker import serve

        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            return runner.run(serve(self._settings, self))

    # ---- RQ's record of this worker: `presence.Registered` ---------------------------------------------------------

    def appear(self) -> None:
        """The record is there, under a name that is nobody else's: the second of two takes another."""
        name = self.name
        for number in range(2, MAX_SUFFIX):
            try:
                self.register_birth()  # type: ignore[no-untyped-call]
            except ValueError:
                log.warning("there is a worker named %s already: this one is %s-%d", self.name, name, number)
                self.name = f"{name}-{number}"
            else:
                self.set_state(WorkerStatus.IDLE)
                return

    def renew(self, *, is_busy: bool) -> None:
        """The record lives on, and says whether the worker is busy."""
        with self.connection.pipeline() as pipeline:
            self.heartbeat(RECORD_LIFETIME_S, pipeline)
            self.set_state(WorkerStatus.BUSY if is_busy else WorkerStatus.IDLE, pipeline)
            pipeline.hset(self.key, mapping=self.serialize())
            pipeline.execute()
        self._show_at_queues()

    def _show_at_queues(self) -> None:
        """Queues that have come since are among this worker's: `rq info` lists workers by queue, and knows no pattern.

        What killed workers left at them is taken away.
        """
        ours = sorted(queue.name for queue in Queue.all(self.connection) if queue.name.startswith(f"{PREFIX}:"))
        for name in set(ours[:MAX_QUEUES]) - self._shown_at:
            self.connection.sadd(WORKERS_BY_QUEUE_KEY % name, self.key)
            clean_worker_registry(Queue(name, connection=self.connection))
            self._shown_at.add(name)

    def vanish(self) -> None:
        """The record is gone."""
        for name in self._shown_at:
            self.connection.srem(WORKERS_BY_QUEUE_KEY % name, self.key)
        self.register_death()  # type: ignore[no-untyped-call]

    def is_suspended(self) -> bool:
        """Return whether `rq suspend` holds."""
        return bool(is_suspended(self.connection))
