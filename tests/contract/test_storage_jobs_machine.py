"""The scripts in Redis and the pure machine of states, driven with the same random events: they never disagree."""

from __future__ import annotations

import asyncio
import itertools
import time
from typing import Any, NamedTuple

import hypothesis.strategies as st
import redis.asyncio as redis_async
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from samovar.errors import JobEnded
from samovar.jobs import TERMINAL, JobState
from samovar_storage.jobs.layout import queue_key
from samovar_storage.jobs.records import Settlement, Taken
from samovar_storage.jobs.redis_jobs import RedisJobs
from samovar_storage.jobs.states import SETTLED_BY, Event, Standing, after
from samovar_storage.objects import ObjectStore
from support.new_jobs import PROBLEM, QUEUE, new_job
from support.stores import Stores

GROUP = "g" * 24
PAST_S, FUTURE_S = -60.0, 3600.0


class Held(NamedTuple):
    """What a worker was given at some time, whether or not it has it still."""

    worker: str
    taken: Taken


class Moves(RuleBasedStateMachine):
    """Jobs of one queue, workers that come and die; the model: how each job stands, and the order of the queue."""

    url: str
    objects: ObjectStore

    def __init__(self) -> None:
        super().__init__()
        self.runner = asyncio.Runner()
        self.redis = redis_async.Redis.from_url(self.url)
        self.jobs = RedisJobs(self.redis, self.objects)
        self.run(self.redis.flushdb())
        self.model: dict[str, Standing] = {}
        self.queue: list[str] = []
        self.parents: dict[str, list[str]] = {}
        self.promoted: dict[str, Event | None] = {}
        self.held: list[Held] = []
        self.holders: dict[str, Held] = {}
        self.enders: dict[str, tuple[Held, JobState]] = {}
        self.num_late = 0
        self.workers = [self.register(name) for name in ("a", "b")]
        self.names = (f"w{number}" for number in itertools.count())

    def run(self, coroutine: Any) -> Any:
        return self.runner.run(coroutine)

    def register(self, worker: str) -> str:
        assert self.run(self.jobs.beat(worker))
        return worker

    def teardown(self) -> None:
        self.run(self.redis.aclose())
        self.runner.close()

    def happen(self, job_id: str, event: Event, *, at_front: bool = False) -> None:
        """Move the model, with all that follows from it."""
        became = after(self.model[job_id], event)
        assert became is not None
        self.model[job_id] = became
        if job_id in self.queue:
            self.queue.remove(job_id)
        if became.state == JobState.QUEUED:
            self.queue.insert(0 if at_front else len(self.queue), job_id)
        if became.state != JobState.STARTED:
            self.holders.pop(job_id, None)
        if became.state in TERMINAL:
            for child in [child for child, parents in self.parents.items() if job_id in parents]:
                self.resolve(child, job_id, became.state)

    def resolve(self, child: str, parent: str, state: JobState) -> None:
        if self.model[child].state != JobState.DEFERRED:
            return
        if state != JobState.FINISHED:
            self.happen(child, Event.LACK)
        else:
            self.parents[child].remove(parent)
            if not self.parents[child]:
                self.happen(child, Event.FREE)

    @rule(number=st.integers(1, 3))
    def submit(self, number: int) -> None:
        new = [new_job(group=GROUP) for _ in range(number)]
        self.run(self.jobs.submit(new))
        self.model |= {job.id: Standing(JobState.QUEUED) for job in new}
        self.queue += [job.id for job in new]

    @rule(is_late=st.booleans())
    def submit_for_later(self, is_late: bool) -> None:
        deadline_at_s = time.time() + PAST_S if is_late else 0.0
        new = new_job(group=GROUP, due_at_s=time.time() + FUTURE_S, deadline_at_s=deadline_at_s)
        self.run(self.jobs.submit([new]))
        self.model[new.id], self.promoted[new.id] = Standing(JobState.SCHEDULED), Event.EXPIRE if is_late else None

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def submit_after_others(self, data: st.DataObject) -> None:
        parents = data.draw(st.lists(st.sampled_from(sorted(self.model)), min_size=1, max_size=3, unique=True))
        new = new_job(group=GROUP, depends_on=parents)
        self.run(self.jobs.submit([new]))
        states = [self.model[parent].state for parent in parents]
        open_parents = [parent for parent in parents if self.model[parent].state not in TERMINAL]
        self.parents[new.id] = open_parents
        lacks = JobState.FAILED in states or JobState.CANCELED in states
        self.model[new.id] = Standing(JobState.DEFERRED if open_parents or lacks else JobState.QUEUED)
        if lacks:
            self.happen(new.id, Event.LACK)
        elif not open_parents:
            self.queue.append(new.id)

    @precondition(lambda self: self.workers)
    @rule(data=st.data(), most=st.integers(1, 3))
    def take(self, data: st.DataObject, most: int) -> None:
        worker = data.draw(st.sampled_from(self.workers))
        taken = self.run(self.jobs.take(QUEUE, worker, most))
        assert [job.id for job in taken] == self.queue[:most]
        for job in taken:
            self.happen(job.id, Event.TAKE)
            self.holders[job.id] = Held(worker, job)
            self.held.append(self.holders[job.id])

    @precondition(lambda self: self.held)
    @rule(data=st.data(), state=st.sampled_from(sorted(SETTLED_BY)), at_front=st.booleans(), is_due=st.booleans())
    def settle(self, data: st.DataObject, state: JobState, at_front: bool, is_due: bool) -> None:
        held = data.draw(st.sampled_from(self.held))
        due_at_s = time.time() + (PAST_S if is_due else FUTURE_S)
        error = PROBLEM if state == JobState.FAILED else None
        settlement = Settlement(state=state, result=b"1", due_at_s=due_at_s, at_front=at_front, error=error)
        is_kept = self.run(self.jobs.settle(held.worker, held.taken, settlement))
        if self.enders.get(held.taken.id) == (held, state):
            assert is_kept, "told twice: its answer may have been lost"
            return
        assert is_kept == (self.holders.get(held.taken.id) == held)
        if not is_kept:
            self.num_late += 1
            return
        self.promoted[held.taken.id] = Event.DUE if is_due else None
        if state in TERMINAL:
            self.enders[held.taken.id] = (held, state)
        self.happen(held.taken.id, SETTLED_BY[state], at_front=at_front)

    @precondition(lambda self: self.model)
    @rule(data=st.data())
    def cancel(self, data: st.DataObject) -> None:
        job_id = data.draw(st.sampled_from(sorted(self.model)))
        try:
            state = self.run(self.jobs.cancel(job_id))
        except JobEnded as error:
            assert error.extra["state"] == self.model[job_id].state in TERMINAL
            return
        self.happen(job_id, Event.CANCEL)
        assert state == self.model[job_id].state

    @precondition(lambda self: self.workers)
    @rule(data=st.data(), says_so=st.booleans())
    def lose_a_worker(self, data: st.DataObject, says_so: bool) -> None:
        worker = data.draw(st.sampled_from(self.workers))
        lost = [job_id for job_id, held in self.holders.items() if held.worker == worker]
        seq = {record.id: record.seq for record in self.run(self.jobs.get_many(lost))}
        if says_so:
            self.run(self.jobs.leave(worker))
        else:
            beats = self.run(self.jobs.beats())[worker]
            assert self.run(self.jobs.reap(worker, beats - 1)) == []
            assert {*self.run(self.jobs.reap(worker, beats))} == {*lost}
        self.workers.remove(worker)
        self.workers.append(self.register(next(self.names)))
        for job_id in sorted(lost, key=seq.__getitem__, reverse=True):
            self.happen(job_id, Event.REAP, at_front=True)

    @rule()
    def promote(self) -> None:
        self.run(self.jobs.promote_due())
        for job_id, standing in list(self.model.items()):
            if standing.state == JobState.SCHEDULED and (event := self.promoted[job_id]):
                self.happen(job_id, event)

    @invariant()
    def every_job_stands_as_it_should(self) -> None:
        records = self.run(self.jobs.get_many(list(self.model)))
        found = {record.id: Standing(record.state, record.canceling) for record in records}
        assert {job_id: standing.state for job_id, standing in found.items()} == {
            job_id: standing.state for job_id, standing in self.model.items()
        }
        holders = {record.id: (record.worker, record.token) for record in records if record.state == JobState.STARTED}
        assert holders == {job_id: (held.worker, held.taken.token) for job_id, held in self.holders.items()}

    @invariant()
    def the_queue_is_in_order(self) -> None:
        listed = self.run(self.redis.lrange(queue_key(QUEUE), 0, -1))
        assert [job_id.decode() for job_id in listed] == self.queue
        assert self.run(self.jobs.waiting()).get(QUEUE, 0) == len(self.queue)
        records = self.run(self.jobs.get_many(self.queue))
        places = [self.run(self.jobs.position(record)) for record in records]
        assert places == sorted(places) and all(place >= at for at, place in enumerate(places))

    @invariant()
    def all_is_counted(self) -> None:
        if not self.model:
            return
        counts: dict[str, int] = {}
        for standing in self.model.values():
            counts[standing.state.value] = counts.get(standing.state.value, 0) + 1
        group = self.run(self.jobs.group(GROUP))
        assert (group.counts, group.num_jobs) == (counts, len(self.model))
        totals = self.run(self.jobs.counts())
        assert totals.get("late", 0) == self.num_late
        assert {state: totals.get(state, 0) for state in TERMINAL} == {
            state: counts.get(state, 0) for state in TERMINAL
        }


def test_the_scripts_do_as_the_machine_says(stores: Stores, object_store: ObjectStore) -> None:
    class Here(Moves):
        url = stores.redis_url
        objects = object_store

    checks = [HealthCheck.too_slow, HealthCheck.filter_too_much, HealthCheck.data_too_large]
    run_state_machine_as_test(
        Here, settings=settings(max_examples=25, stateful_step_count=20, deadline=None, suppress_health_check=checks)
    )
