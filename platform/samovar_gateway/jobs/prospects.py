"""What a job that waits is told to wait for: its place, why, and when it may start. Facts are shared by all who ask.

This module does not know how the reason is found (`waiting.py`) or where facts come from (`facts.py`).
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import msgspec
from redis.asyncio import Redis

from samovar.jobs import JobState
from samovar.values import Struct
from samovar_storage.jobs.facts import read_facts
from samovar_storage.jobs.records import JobRecord
from samovar_storage.jobs.waiting import Facts, wait_reason

if TYPE_CHECKING:
    from samovar_dispatch.functions import FunctionEntry, FunctionTable
    from samovar_storage.jobs.redis_jobs import RedisJobs

FRESH_S = 1.0
MAX_FUNCTIONS = 1000


class Prospect(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """As in `samovar.jobs.JobView`. due_at_s: of a scheduled job."""

    position: int | None = None
    wait_reason: str = ""
    estimated_start_s: float | None = None
    due_at_s: float = 0.0

    def is_like(self, other: Prospect) -> bool:
        """Return whether both say the same, but for an estimate that has merely moved."""
        mine = (self.position, self.wait_reason, self.estimated_start_s is None, self.due_at_s)
        return mine == (other.position, other.wait_reason, other.estimated_start_s is None, other.due_at_s)

    def data(self) -> dict[str, Any]:
        """Return it as the data of an event."""
        data: dict[str, Any] = msgspec.to_builtins(self)
        return data


class Prospects:
    """One per gateway. A function's facts are read once a second, however many jobs of it are asked about."""

    def __init__(self, redis: Redis, jobs: RedisJobs, functions: FunctionTable) -> None:
        self._redis = redis
        self._jobs = jobs
        self._functions = functions
        self._facts: dict[str, tuple[float, Facts]] = {}

    async def of(self, record: JobRecord) -> Prospect:
        """Return what a job that neither runs nor has ended waits for. Raises: StoreUnavailable."""
        position = await self._jobs.position(record) if record.state is JobState.QUEUED else None
        facts = await self._read(record.spec.function) if position is not None else Facts()
        reason, start_s = wait_reason(record, facts, position or 0, time.time()) or ("", None)
        return Prospect(
            position=position,
            wait_reason=reason,
            estimated_start_s=None if start_s is None else round(start_s, 1),
            due_at_s=record.due_at_s if record.state is JobState.SCHEDULED else 0.0,
        )

    async def reason(self, record: JobRecord) -> str:
        """Return why a job does not run yet, "" for one that runs or has ended: for lists, which give no place in a
        queue. Raises: StoreUnavailable."""
        facts = await self._read(record.spec.function) if record.state is JobState.QUEUED else Facts()
        found = wait_reason(record, facts, 0, time.time())
        return found[0] if found is not None else ""

    async def _read(self, function: str) -> Facts:
        now_s = time.monotonic()
        read_s, facts = self._facts.get(function, (0.0, Facts()))
        if not read_s or now_s - read_s > FRESH_S:
            entry = self._functions.entries.get(function)
            refs = [version.ref for version in entry.versions.values()] if entry is not None else []
            facts = await read_facts(self._redis, refs, _max_running(entry)) if entry is not None else Facts()
            if len(self._facts) >= MAX_FUNCTIONS:
                self._facts.clear()
            self._facts[function] = (now_s, facts)
        return facts


def _max_running(entry: FunctionEntry) -> int | None:
    """Return the cap of the newest version that has one: workers keep that of the version each job goes to."""
    caps = [entry.versions[number].manifest.jobs.max_running for number in sorted(entry.versions)]
    return next((cap for cap in reversed(caps) if cap is not None), None)
