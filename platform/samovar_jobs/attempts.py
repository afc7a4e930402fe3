"""The jobs this worker runs: each is sent to an instance, its end awaited, and settled exactly as `verdict.py` says.

    start ─► rate limits, breaker, seat ─► runs ─► ended ─► really stopped ─► settled
                    └── refused: given back, its queue paused        └── Redis away: again until it is back

A job holds its place until it is settled, so what is kept in memory meanwhile is bounded by the places. Once the lease
is lost (`abandon`) nothing is settled any more: the job is somebody else's. This module does not know who goes next.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import Counter, deque
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Protocol

import msgspec

from samovar.errors import SamovarError
from samovar.jobs import TERMINAL, JobState
from samovar.wire import JobTag, Result
from samovar_dispatch.ask import BACKGROUND, JOB, Ask
from samovar_dispatch.call import Call, Outcome, Version
from samovar_dispatch.functions import FunctionEntry
from samovar_dispatch.journey import Journey
from samovar_dispatch.rates.gcra import Rate
from samovar_jobs.hearing import Ear, Said
from samovar_jobs.outcome import ended_of, stop_note, stopped
from samovar_jobs.reduce import reduce_input
from samovar_jobs.verdict import Ended, GiveBack, problem_of, runs_alone, verdict
from samovar_storage.jobs.events import retry_event
from samovar_storage.jobs.layout import QueueName
from samovar_storage.jobs.records import Settlement, Taken

if TYPE_CHECKING:
    from samovar_storage.jobs.redis_jobs import RedisJobs

log = logging.getLogger(__name__)

FIRST_RETRY_S, MAX_RETRY_S = 0.05, 1.0
MAX_EARLY_CANCELS = 1000


@dataclass(frozen=True, slots=True)
class Turn:
    """A queue may have up to `most` jobs run on `version`, held under the worker's id `worker`. rate: of its key."""

    queue: QueueName
    entry: FunctionEntry
    version: Version
    most: int
    worker: str
    rate: Rate | None = None


class Desk(Protocol):
    """Who decides what is taken next, and so must hear what becomes of it."""

    def sent(self, turn: Turn) -> None:
        """An instance has a job of this turn."""

    def refused(self, turn: Turn, back: GiveBack) -> None:
        """A job of this turn did not run and is given back."""

    def slot_freed(self, turn: Turn) -> None:
        """A job of this turn has its outcome."""

    def ended(self, turn: Turn, charged_s: float, run_s: float | None, settlement: Settlement) -> None:
        """A job of this turn has left. run_s: None = it did not run."""


class Attempt:
    """One job held. canceled: somebody wants it to stop; leaving: this worker does; abandoned: it is not ours any more.

    asked: resolves to the call and its outcome. charged_s: as in `fairness.py`.
    """

    def __init__(self, taken: Taken, turn: Turn, charged_s: float, said: Said, desk: Desk) -> None:
        self.taken = taken
        self.turn = turn
        self.charged_s = charged_s
        self.said = said
        self.began_s, self.began_at_s = time.monotonic(), time.time()
        self.ask = self._make_ask()
        self.asked: asyncio.Future[tuple[Call, Outcome]] = asyncio.get_running_loop().create_future()
        self.canceled = self.leaving = self.abandoned = False
        self.has_run = self.was_ended = False
        self._desk = desk

    def begin(self, journey: Journey, body: bytes) -> SamovarError | None:
        """Send it; return why it was refused, None if it was not."""
        self.ask.body = body
        try:
            journey.begin_job(self.ask, self.turn.version)
        except SamovarError as error:
            return error
        if isinstance(self.ask.handle, Call) and self.ask.handle.seat is not None:
            self._desk.sent(self.turn)
        return None

    def stop(self) -> None:
        """Whatever runs of it is told to stop. Idempotent."""
        if self.ask.handle is not None:
            self.ask.handle.cancel()

    def _make_ask(self) -> Ask:
        taken, spec = self.taken, self.taken.spec
        left_s = min(spec.timeout_s, spec.deadline_at_s - self.began_at_s) if spec.deadline_at_s else spec.timeout_s
        ask = Ask(
            self.turn.entry,
            spec.key_id,
            self.began_s,
            self.began_s + max(0.0, left_s),
            {},
            taken.id.encode(),
            BACKGROUND,
            content_type=spec.content_type,
            protocol=JOB,
        )
        ask.rate = self.turn.rate
        ask.job = JobTag(taken.id, taken.attempt, taken.token)
        ask.alone = runs_alone(taken)
        ask.hear = self.said.hear
        ask.deliver = self._deliver
        return ask

    def _deliver(self, call: Call | None, outcome: Outcome) -> None:
        if call is not None and not self.asked.done():
            self.asked.set_result((call, outcome))
            self._desk.slot_freed(self.turn)


class Attempts:
    """One per worker. running: by job and token, for a job may be taken again while an earlier attempt at it still
    leaves. held: how many by function. counts: jobs by what became of them.
    """

    def __init__(self, journey: Journey, store: RedisJobs, ear: Ear, max_result_bytes: int) -> None:
        self.running: dict[tuple[str, int], Attempt] = {}
        self.held: Counter[str] = Counter()
        self.counts: Counter[str] = Counter()
        self._journey = journey
        self._store = store
        self._ear = ear
        self._max_result_bytes = max_result_bytes
        self._tasks: set[asyncio.Task[None]] = set()
        self._early: deque[str] = deque(maxlen=MAX_EARLY_CANCELS)

    def start(self, taken: Taken, turn: Turn, charged_s: float, desk: Desk) -> None:
        """Run a job that was just taken; `desk` hears of it."""
        attempt = Attempt(taken, turn, charged_s, self._ear.listen(turn.worker, taken), desk)
        attempt.canceled = taken.id in self._early
        self.running[taken.id, taken.token] = attempt
        self.held[turn.queue.function] += 1
        refusal = None
        if not attempt.canceled and not taken.spec.reduce_of:
            refusal = attempt.begin(self._journey, taken.input)
        task = asyncio.get_running_loop().create_task(self._run(attempt, refusal, desk))
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def cancel(self, job_id: str) -> None:
        """Somebody wants this job to stop; one that is on its way here does not start."""
        attempts = [attempt for attempt in self.running.values() if attempt.taken.id == job_id]
        if not attempts:
            self._early.append(job_id)
        for attempt in attempts:
            if not attempt.canceled:
                attempt.canceled = True
                attempt.stop()

    def abandon(self, worker: str) -> None:
        """What was held under this id is somebody else's now: it is stopped, and left as it is."""
        for attempt in self.running.values():
            if attempt.turn.worker == worker:
                attempt.abandoned = True
                attempt.stop()

    def give_back_all(self) -> None:
        """The worker leaves: what runs is stopped and given back as if it had not been taken."""
        for attempt in self.running.values():
            attempt.leaving = True
            attempt.stop()

    async def wait_idle(self) -> None:
        """Return once nothing is held."""
        while self._tasks:
            await asyncio.wait({*self._tasks})

    async def close(self) -> None:
        """Nothing is run or settled any more."""
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    # ---- one attempt -----------------------------------------------------------------------------------------------

    async def _run(self, attempt: Attempt, refusal: SamovarError | None, desk: Desk) -> None:
        settlement = _broken(attempt.taken)
        try:
            settlement = self._decide(attempt, await self._ended(attempt, refusal), desk)
            await self._leave(attempt, settlement)
        except Exception:
            log.exception("job %s: an error inside the worker", attempt.taken.id)
            attempt.stop()
            settlement = _broken(attempt.taken)
            await self._leave(attempt, settlement)
        finally:
            del self.running[attempt.taken.id, attempt.taken.token]
            self.held[attempt.turn.queue.function] -= 1
            run_s = time.monotonic() - attempt.began_s if attempt.has_run else None
            desk.ended(attempt.turn, attempt.charged_s, run_s, settlement)

    async def _ended(self, attempt: Attempt, refusal: SamovarError | None) -> Ended:
        """Return what the attempt came to, once nothing of it runs any more."""
        if attempt.taken.spec.reduce_of and not attempt.canceled:
            refusal = await self._begin_reduce(attempt)
        if refusal is not None or attempt.ask.handle is None:
            return Ended(refusal, ran=False, canceled=attempt.canceled)
        call, outcome = await attempt.asked
        ended = await ended_of(call, outcome, self._max_result_bytes, attempt.said.hear_item)
        if not isinstance(outcome, Result):
            attempt.stop()
            attempt.was_ended = not await stopped(call)
        if ended.canceled:
            ended = replace(ended, ran=call.started)  # whether it had begun is certain only now
        attempt.has_run = ended.ran
        return ended

    async def _begin_reduce(self, attempt: Attempt) -> SamovarError | None:
        try:
            body = await reduce_input(self._store, attempt.taken.spec.reduce_of, self._max_result_bytes)
        except SamovarError as error:
            return error
        return None if attempt.canceled or attempt.leaving else attempt.begin(self._journey, body)

    def _decide(self, attempt: Attempt, ended: Ended, desk: Desk) -> Settlement:
        taken = attempt.taken
        if attempt.leaving and not attempt.canceled and (ended.canceled or attempt.ask.handle is None):
            return _given_back(taken)
        decided = verdict(taken, ended, time.time(), random.random())  # noqa: S311  jitter is no secret
        if isinstance(decided, GiveBack):
            desk.refused(attempt.turn, decided)
            return decided.settlement
        if decided.state is JobState.CANCELED:
            return msgspec.structs.replace(decided, error=stop_note(ran=ended.ran, was_ended=attempt.was_ended))
        return decided

    async def _leave(self, attempt: Attempt, settlement: Settlement) -> None:
        is_kept = await self._settle(attempt, settlement)
        if not is_kept:
            self.counts["late"] += 1
        elif settlement.state in TERMINAL:
            self.counts[settlement.state.value] += 1
        else:
            self.counts["repeated" if settlement.counts_attempt else "given_back"] += 1

    async def _settle(self, attempt: Attempt, settlement: Settlement) -> bool:
        """Return whether the job was ours to settle. Redis or object storage may be away for as long as they like."""
        if settlement.state not in TERMINAL and settlement.counts_attempt and not attempt.abandoned:
            taken, due_at_s = attempt.taken, settlement.due_at_s
            attempt.said.add(retry_event(taken.attempt, attempt.began_at_s, settlement.error, due_at_s, time.time()))
        if not attempt.abandoned:
            await self._ear.tell(attempt.said, is_last=True)
        retry_s = FIRST_RETRY_S
        while not attempt.abandoned:
            try:
                return await self._store.settle(attempt.turn.worker, attempt.taken, settlement)
            except SamovarError as error:  # a store is away, or full
                log.warning("job %s is not settled yet, again in %.2f s: %s", attempt.taken.id, retry_s, error.detail)
            await asyncio.sleep(retry_s)
            retry_s = min(MAX_RETRY_S, retry_s * 2)
        return False


def _given_back(taken: Taken) -> Settlement:
    return Settlement(
        state=JobState.QUEUED, at_front=True, counts_attempt=False, failures=taken.failures, crashes=taken.crashes
    )


def _broken(taken: Taken) -> Settlement:
    """Return how a job is left on which the worker itself failed: it would do so again."""
    error = problem_of(SamovarError("an error inside the job worker; its log says more"))
    return Settlement(state=JobState.FAILED, error=error, failures=taken.failures, crashes=taken.crashes)
