"""The scheduler of cron jobs: any number of them run, one in each worker, and a run is submitted once.

    read definitions and states ──► plan (pure) ──► fire: one step moves `last` and submits ──► sleep until the next

It wakes when a definition changes. RQ's own CronScheduler reads its jobs from a file of Python, knows no time zones and
no missed or overlapping runs: what is used of RQ are its queues. This module does not know when a schedule is due.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Sequence
from contextlib import aclosing
from typing import Protocol

import msgspec
import redis.asyncio as redis_async

from samovar.errors import JobEnded, JobNotFound, NotUnique, RequestError, SamovarError, StoreUnavailable, Unavailable
from samovar.jobs import TERMINAL, CronJob, JobState
from samovar.policies import Jobs as JobRules
from samovar_dispatch.functions import FunctionTable, unusable_function
from samovar_jobs.cron_rules import Plan, may_run, overlapping, plan, run_id
from samovar_storage import keys
from samovar_storage.ending import end_tasks
from samovar_storage.failures import translating
from samovar_storage.jobs.crons import Crons, CronState, job_spec
from samovar_storage.jobs.records import JobRecord, JobSpec, NewJob
from samovar_storage.jobs.specs import PUBLIC
from samovar_storage.jobs.webhook_urls import Allowed
from samovar_storage.readable import readable
from samovar_storage.records import ApiKeyRecord
from samovar_storage.subscribe import subscribe

log = logging.getLogger(__name__)

LONGEST_SLEEP_S = 60.0
AGAIN_S = 5.0  # after one that could not be submitted
RECONCILE_S = 60.0
UNBUILT_S = 0.5  # between two looks whether a gateway has come up for the first time


class Store(Protocol):
    """What is asked of the store of jobs."""

    async def get_many(self, job_ids: list[str]) -> list[JobRecord | None]:
        """Return these jobs, None for those unknown."""

    async def cancel(self, job_id: str) -> JobState:
        """End a job, or ask its worker to."""


class Scheduler:
    """One per worker process; `run` until cancelled.

    rules: of a function's jobs, by its name; None for a function that is not there. Raises SamovarError while that is
    not known. clock: unix seconds. allowed: where webhooks may go. num_fired: runs submitted here.
    """

    def __init__(
        self,
        redis: redis_async.Redis,
        crons: Crons,
        store: Store,
        rules: Callable[[str], JobRules | None],
        clock: Callable[[], float] = time.time,
        allowed: Allowed = PUBLIC,
    ) -> None:
        self.num_fired = 0
        self._redis = redis
        self._crons = crons
        self._store = store
        self._rules = rules
        self._clock = clock
        self._allowed = allowed
        self._news = asyncio.Event()

    async def run(self) -> None:
        """Submit what is due until cancelled. Raises StoreUnavailable: run it again."""
        await self._wait_for_index()
        parts = [asyncio.create_task(self._listen()), asyncio.create_task(self._reconcile())]
        try:
            while True:
                self._news.clear()
                await self._sleep(await self.look())
                for part in parts:
                    if part.done():
                        part.result()
        finally:
            await end_tasks(parts)

    async def look(self) -> float:
        """Submit what is due now; return the seconds until something may be due."""
        crons = [cron for cron in await self._crons.all() if cron.enabled]
        states = await self._crons.states([cron.name for cron in crons])
        wait_s = LONGEST_SLEEP_S
        for cron in crons:
            try:
                next_s = await self._one(cron, states[cron.name])
                wait_s = min(wait_s, max(0.0, next_s - self._clock()))
            except SamovarError as error:
                log.warning("the cron job %s is tried again: %s", cron.name, error.detail)
                wait_s = min(wait_s, AGAIN_S)
        return wait_s

    async def _one(self, cron: CronJob, state: CronState) -> float:
        """Submit what is due of one cron job; return when it is due next."""
        wanted = plan(cron, state.last_s, self._clock())
        if not wanted.upto_s or not state.last:
            return wanted.next_s
        last = await self._unfinished(state.last_job) if wanted.runs else None
        if last is not None:
            wanted = overlapping(cron, wanted)
        rules, owner = self._rules(cron.function), await self._owner(cron)
        jobs: list[NewJob] = []
        if rules is None:
            wanted = _not_run(wanted, f"there is no function {cron.function!r}")
        elif owner is None or not may_run(owner, cron.function, self._clock()):
            wanted = _not_run(wanted, f"its API key {cron.key_id} is revoked, or may not call {cron.function!r}")
        elif wanted.runs:
            is_low, before = owner.max_priority == "low", last.id if last and cron.overlap == "queue" else ""
            try:
                spec = job_spec(cron, rules, self._clock(), low_only=is_low, allowed=self._allowed)
                jobs = jobs_of(cron, spec, wanted.runs, before)
            except RequestError as error:
                wanted = _not_run(wanted, error.detail)
        if await self._fire(cron, state, wanted, jobs) and last is not None and jobs and cron.overlap == "cancel":
            await self._cancel(last.id)
        return wanted.next_s

    async def _fire(self, cron: CronJob, state: CronState, wanted: Plan, jobs: list[NewJob]) -> bool:
        """Submit these jobs and note it; return False if another scheduler was faster."""
        after = msgspec.structs.replace(state, last=repr(wanted.upto_s), notice=wanted.notice)
        try:
            if jobs:
                ran = msgspec.structs.replace(after, last_run_s=self._clock(), last_job=jobs[-1].id)
                is_fired = await self._crons.fire(cron.name, state.last, ran, jobs)
            else:
                is_fired = await self._crons.fire(cron.name, state.last, after)
        except NotUnique as error:
            wanted = _not_run(wanted, error.detail)
            after, jobs = msgspec.structs.replace(after, notice=wanted.notice), []
            is_fired = await self._crons.fire(cron.name, state.last, after)
        if is_fired:
            self.num_fired += len(jobs)
            if wanted.notice:
                log.warning("cron job %s: %s", cron.name, wanted.notice)
        return is_fired

    async def _wait_for_index(self) -> None:
        """Return once a gateway has filled the index of functions, and it is known here: before that there may be no
        bucket to read."""
        while True:
            with translating("the functions"):
                is_built = await self._redis.exists(keys.REGISTRY_BUILT)
            if is_built and self._knows_functions():
                return
            await asyncio.sleep(UNBUILT_S)

    def _knows_functions(self) -> bool:
        try:
            self._rules("")
        except Unavailable:
            return False
        return True

    async def _owner(self, cron: CronJob) -> ApiKeyRecord | None:
        """Return the key whose job it is, None if it was revoked."""
        with translating("the API keys"):
            async with self._redis.pipeline(transaction=True) as pipe:
                pipe.exists(keys.REGISTRY_BUILT)
                pipe.hget(keys.API_KEYS, cron.key_id)
                is_built, row = await pipe.execute()
        if not is_built:
            raise StoreUnavailable("the API keys are not known yet")
        return readable(f"API key {cron.key_id}", row, ApiKeyRecord)

    async def _unfinished(self, job_id: str) -> JobRecord | None:
        (record,) = await self._store.get_many([job_id]) if job_id else [None]
        return record if record is not None and record.state not in TERMINAL else None

    async def _cancel(self, job_id: str) -> None:
        try:
            await self._store.cancel(job_id)
        except (JobEnded, JobNotFound) as error:
            log.debug("nothing to cancel: %s", error.detail)

    async def _sleep(self, wait_s: float) -> None:
        try:
            async with asyncio.timeout(max(0.01, wait_s)):
                await self._news.wait()
        except TimeoutError:
            return

    async def _reconcile(self) -> None:
        """Compare the index with object storage now and then; while that is away, what is in the index runs on."""
        while True:
            try:
                await self._crons.reconcile()
            except SamovarError as error:
                log.info("cron jobs are as Redis has them: %s", error.detail)
            await asyncio.sleep(RECONCILE_S)

    async def _listen(self) -> None:
        async with aclosing(subscribe(self._redis, keys.CHANNEL_CRONS)) as news:
            async for _ in news:
                self._news.set()


def rules_in(functions: FunctionTable) -> Callable[[str], JobRules | None]:
    """Return what says how jobs of a function are run, None for one that is not there. It raises Unavailable while
    the functions are not known, and Conflict for one that is stored in a way that cannot be used."""

    def rules(name: str) -> JobRules | None:
        if not functions.loaded:
            raise Unavailable("the functions are not known yet")
        entry, why = functions.entries.get(name), functions.faults.get(name)
        if entry is None and why is not None:
            raise unusable_function(name, why)
        return entry.main.manifest.jobs if entry is not None else None

    return rules


def jobs_of(cron: CronJob, spec: JobSpec, runs: Sequence[float], before: str) -> list[NewJob]:
    """Return the jobs of runs that were due at these instants; each waits for the end of the one before.

    before: id of the job that the first of them waits for, "" = none.
    """
    data = msgspec.json.encode(cron.input)
    due_at_s = spec.created_at_s + cron.options.delay_s if cron.options.delay_s else 0.0
    jobs: list[NewJob] = []
    for due_s in runs:
        own = msgspec.structs.replace(spec, depends_on=[before], allow_failed=True) if before else spec
        before = run_id(cron.name, due_s)
        jobs.append(NewJob(id=before, spec=own, input=data, due_at_s=due_at_s))
    return jobs


def _not_run(wanted: Plan, why: str) -> Plan:
    return msgspec.structs.replace(wanted, runs=[], notice=f"not run: {why}")
