"""The machine of job states: terminal is final, all ends are reached, what was cancelled never waits again."""

from __future__ import annotations

import re

import hypothesis.strategies as st
from hypothesis import settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from samovar.jobs import TERMINAL, JobState
from samovar_storage.jobs import states
from samovar_storage.jobs.states import SETTLED_BY, TABLE, Event, Standing, after

WAITING = (JobState.QUEUED, JobState.SCHEDULED, JobState.DEFERRED)


class AnyJob(RuleBasedStateMachine):
    """One job, to which anything may happen at any time."""

    def __init__(self) -> None:
        super().__init__()
        self.standing = Standing(JobState.QUEUED)
        self.was_canceled = False
        self.end: JobState | None = None

    @rule(state=st.sampled_from(WAITING))
    def begin(self, state: JobState) -> None:
        if self.end is None and self.standing.state in WAITING:
            self.standing = Standing(state)

    @rule(event=st.sampled_from(Event))
    def happen(self, event: Event) -> None:
        became = after(self.standing, event)
        if became is None:
            return
        assert self.standing.state not in TERMINAL
        self.was_canceled |= event == Event.CANCEL
        self.standing = became
        self.end = became.state if became.state in TERMINAL else None

    @invariant()
    def what_was_canceled_does_not_wait(self) -> None:
        assert not (self.was_canceled and self.standing.state in WAITING)

    @invariant()
    def only_what_runs_is_being_stopped(self) -> None:
        assert not self.standing.canceling or self.standing.state == JobState.STARTED

    @invariant()
    def ended_is_ended(self) -> None:
        assert self.end is None or self.standing.state == self.end


TestAnyJob = AnyJob.TestCase
TestAnyJob.settings = settings(max_examples=50, stateful_step_count=30)


def test_nothing_happens_to_what_has_ended() -> None:
    assert all(after(Standing(state), event) is None for state in TERMINAL for event in Event)


def test_every_end_is_reached_from_every_state_that_is_none() -> None:
    reached = {state: {state} for state in JobState}
    for _ in JobState:
        for (state, _event), became in TABLE.items():
            reached[state] |= reached[became]
    assert all(reached[state] >= TERMINAL for state in JobState if state not in TERMINAL)


def test_a_job_is_left_in_a_state_that_it_can_come_to_while_it_runs() -> None:
    assert {TABLE[JobState.STARTED, event]: event for event in SETTLED_BY.values()} == SETTLED_BY


def test_the_table_of_the_page_is_the_table() -> None:
    head, _, *rows = [line for line in (states.__doc__ or "").splitlines() if line.startswith("|")]
    events = [Event(name.strip()) for name in head.split("|")[2:-1]]
    written: dict[tuple[JobState, Event], JobState] = {}
    for row in rows:
        name, *cells = [cell.strip() for cell in re.split(r"\|", row)[1:-1]]
        written |= {(JobState(name), event): JobState(cell) for event, cell in zip(events, cells, strict=True) if cell}
    assert written == TABLE
