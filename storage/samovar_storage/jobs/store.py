"""The moves of jobs, each one script in Redis: accepted, taken, settled, cancelled, retried, returned from the dead.

    submit ──► take ──► settle            give back: settle as queued, counts_attempt=False
                 └── the worker falls silent: reap ──► queued again

A job is held by one worker under one token; `settle` commits only under both, so a late answer of a worker that was
given up is dropped. Times come from Redis; nobody's silence is judged by a clock that may be set (`beats`).
This module does not know how jobs are run, nor who may see them.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Literal, Protocol

from samovar.jobs import JobState
from samovar_storage.jobs.layout import QueueName
from samovar_storage.jobs.records import Backlog, GroupRecord, JobRecord, NewJob, Page, Settlement, Taken

if TYPE_CHECKING:
    from samovar.jobs import Progress


class Jobs(Protocol):
    """The store. Every method raises StoreUnavailable when Redis does not answer."""

    async def submit(self, jobs: Sequence[NewJob], durability: Literal["aof", "fsync"] = "aof") -> list[str]:
        """Accept all of these jobs or none; return their ids once they are durable as asked. An id that is known
        already is not accepted again (its id is returned: a repeated request is harmless).

        Raises: StoreFull; NotUnique; JobNotFound for an unknown dependency.
        """

    async def take(
        self,
        queue: QueueName,
        worker: str,
        most: int,
        max_running: int | None = None,
        max_running_per_key: int | None = None,
    ) -> list[Taken]:
        """Give up to `most` waiting jobs of a queue, oldest first, to a worker, durably. A job whose deadline passed
        is failed on the way. A job that was cancelled is not among them.

        max_running, max_running_per_key: no more are given than leave so many jobs started at a time, by all workers,
        of its function, and of its function and key, both lanes together; None = any number.
        """

    async def settle(self, worker: str, taken: Taken, settlement: Settlement) -> bool:
        """Leave a job in the state it has come to, with its result; return False, having changed nothing but a count,
        if the worker does not hold it any more. Dependents, group, retention, events: all in the same step."""

    async def beat(self, worker: str) -> bool:
        """Renew the leases of all jobs a worker holds; False if it was reaped: it must stop what it runs and come back
        under another id. The first beat registers it."""

    async def beats(self) -> dict[str, int]:
        """Return each known worker's count of beats."""

    async def reap(self, worker: str, beats: int) -> list[str]:
        """Put the jobs of a worker back to the head of their queues, and forget the worker, if it has not beaten since
        `beats`; return their ids."""

    async def leave(self, worker: str) -> None:
        """The worker ends; whatever it still holds is put back."""

    async def promote_due(self) -> int:
        """Queue the scheduled jobs that are due; fail those past their deadline. Return how many moved."""

    async def get(self, job_id: str) -> JobRecord:
        """Raises: JobNotFound."""

    async def get_many(self, job_ids: Sequence[str]) -> list[JobRecord | None]:
        """Return these jobs, None for those unknown."""

    async def list(
        self,
        functions: Sequence[str],
        state: JobState | Literal["quarantined"] | None,
        key_id: str | None,
        group: str | None,
        cursor: str,
        limit: int,
    ) -> Page:
        """Return jobs of these functions, newest first. The cost depends on `limit`, not on how many there are."""

    async def group(self, group_id: str) -> GroupRecord:
        """Return what became of the jobs of a group so far. Jobs may be submitted to it in several steps; one with
        `reduce_of` comes with the last and runs once all others have ended. Raises: JobNotFound."""

    async def position(self, record: JobRecord) -> int:
        """Return how many jobs of its queue are in front of a queued one, at most."""

    async def input(self, record: JobRecord) -> bytes:
        """Return a job's input, wherever it lies."""

    async def result(self, record: JobRecord) -> bytes:
        """Return a finished job's result, wherever it lies. Raises: NotFound when there is none."""

    async def result_url(self, record: JobRecord) -> str:
        """Return a link to a result in object storage, good for 15 minutes."""

    async def cancel(self, job_id: str) -> JobState:
        """End a job that does not run; ask the worker of one that does to stop it (state started, canceling).

        Raises: JobNotFound; JobEnded.
        """

    async def cancel_group(self, group_id: str) -> int:
        """Cancel what of a group has not ended, its reducing job first; return how many were, or are being stopped.

        Raises: JobNotFound.
        """

    async def retry(self, job_id: str) -> str:
        """Submit the same again, with the same input; return the new job's id. Raises: JobNotFound; Conflict for one
        that has not ended."""

    async def purge(self, function: str, state: JobState | None, older_than_s: float, key_id: str | None) -> int:
        """Delete ended jobs and their objects; return how many."""

    async def backlog(self) -> dict[str, Backlog]:
        """Return what waits, by function."""

    async def waiting(self) -> dict[QueueName, int]:
        """Return the queues with waiting jobs, and how many wait in each."""

    async def progress(self, worker: str, taken: Taken, progress: Progress) -> None:
        """Record how far a job is, if the worker holds it."""
