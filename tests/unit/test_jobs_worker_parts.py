"""The parts of a job worker that need no process: its lease, what handlers say, what is due, what is reduced."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from typing import Any

import msgspec
import pytest

from samovar import wire
from samovar.errors import BadOutput, Draining, StoreUnavailable
from samovar.jobs import JobState, Progress
from samovar_dispatch.ask import Ask
from samovar_jobs import cancels, reaper
from samovar_jobs.attempts import Attempts, Turn
from samovar_jobs.hearing import Ear, Said
from samovar_jobs.lease import Lease
from samovar_jobs.outcome import check_size, stop_note
from samovar_jobs.reaper import Promoter
from samovar_jobs.reduce import PAGE, reduce_input
from samovar_jobs.verdict import GiveBack
from samovar_storage.jobs.layout import QueueName
from samovar_storage.jobs.records import GroupRecord, JobRecord, JobSpec, Settlement, Taken
from support.waiting import wait_until_async

TAKEN = Taken(
    id="0" * 24, spec=JobSpec(function="f", key_id="k", created_at_s=0.0), input=b"", queue="sv:f:k", token=3, attempt=1
)


async def running_until(part: Callable[[], Any], predicate: Callable[[], Any]) -> None:
    """Run a part until something is true."""
    task = asyncio.ensure_future(part())
    try:
        await wait_until_async(predicate)
    finally:
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)


# ---- the lease ---------------------------------------------------------------------------------------------------


class Register:
    """Answers beats as it was told: True, False, or an error."""

    def __init__(self, *answers: bool | StoreUnavailable) -> None:
        self.answers = list(answers)
        self.heard: list[str] = []

    async def beat(self, worker: str) -> bool:
        self.heard.append(worker)
        answer = self.answers.pop(0) if self.answers else True
        if isinstance(answer, StoreUnavailable):
            raise answer
        return answer


async def test_a_worker_that_was_given_up_says_so_and_beats_at_once_under_another_id() -> None:
    lost: list[str] = []
    register = Register(False)
    lease = Lease(register, "tea", lost.append)
    first = lease.worker
    await running_until(lease.run, lambda: len(register.heard) == 2)
    assert lost == [first] == register.heard[:1]
    assert register.heard[1] == lease.worker != first
    assert await lease.held() == lease.worker


async def test_a_redis_that_is_away_takes_no_lease() -> None:
    lost: list[str] = []
    register = Register(StoreUnavailable("away"), StoreUnavailable("away"))
    lease = Lease(register, "tea", lost.append)
    await running_until(lease.run, lambda: len(register.heard) == 3)
    assert not lost and len({*register.heard}) == 1


# ---- what handlers say ---------------------------------------------------------------------------------------------


class Told:
    """A store of progress."""

    def __init__(self) -> None:
        self.progress_told: list[Progress] = []

    async def progress(self, worker: str, taken: Taken, progress: Progress) -> None:
        self.progress_told.append(progress)


def said(max_events: int) -> Said:
    """Return what an attempt speaks to; nobody is told."""
    ear = Ear(None, Told(), max_events)  # type: ignore[arg-type]  # nothing is sent
    return ear.listen("w", TAKEN)


async def test_of_progress_the_newest_is_told_within_its_bounds() -> None:
    attempt = said(10)
    for fraction in (0.1, 0.5, 7.0):
        attempt.hear(wire.Progress(1, fraction, "rows"))
    progress, events = attempt.take(is_last=False)
    assert progress == Progress(fraction=1.0, message="rows")
    assert [event.kind for event in events] == ["progress"]
    assert attempt.is_silent


async def test_lines_beyond_the_bound_are_counted_and_the_count_is_told_last() -> None:
    attempt = said(2)
    for number in range(5):
        attempt.hear(wire.LogLine(1, f"line {number}"))
    attempt.hear_item(b"{}")
    _, events = attempt.take(is_last=False)
    assert [event.data["line"] for event in events] == ["line 0", "line 1"]
    _, events = attempt.take(is_last=True)
    assert [event.data["line"] for event in events] == ["4 more lines or items of this attempt are not kept"]


# ---- what is due -------------------------------------------------------------------------------------------------


class Due:
    """Counts promotions."""

    def __init__(self) -> None:
        self.times = 0

    async def promote_due(self) -> int:
        self.times += 1
        return 0


async def test_what_is_due_soon_is_promoted_then(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reaper, "PROMOTE_S", 3600.0)  # nobody looks by chance
    due, now_s = Due(), [100.0]
    promoter = Promoter(due, lambda: now_s[0])  # type: ignore[arg-type]
    promoter.note(500.0)

    def is_waiting() -> bool:
        if due.times == 1:
            promoter.note(101.0)
            now_s[0] = 101.0
        return due.times >= 2

    await running_until(promoter.run, is_waiting)


# ---- what is reduced, what is too large, how it was stopped ----------------------------------------------------------


class Group:
    """A group with these results."""

    def __init__(self, results: Sequence[bytes | None]) -> None:
        self._results = results

    async def group(self, group_id: str) -> GroupRecord:
        return GroupRecord(id=group_id, function="f", key_id="k", num_jobs=len(self._results), counts={})

    async def group_results(self, group_id: str, offset: int, limit: int, max_bytes: int) -> list[bytes | None]:
        return [*self._results[offset : offset + limit]]


async def test_results_are_reduced_in_order_with_null_for_what_failed() -> None:
    assert await reduce_input(Group([b"1", None, b'{"a":2}']), "g", 100) == b'{"results":[1,null,{"a":2}]}'
    many: list[bytes | None] = [b"7"] * (PAGE + 3)
    assert (await reduce_input(Group(many), "g", 10_000)).count(b"7") == PAGE + 3
    assert await reduce_input(Group([]), "g", 100) == b'{"results":[]}'


@pytest.mark.parametrize("result", [b"{}\n{}\n", b"\xff", b"", b"[1"])
async def test_a_result_that_is_no_json_is_named(result: bytes) -> None:
    with pytest.raises(BadOutput, match="number 1 is no JSON"):
        await reduce_input(Group([b"1", result]), "g", 100)


async def test_results_that_are_too_large_together_are_refused() -> None:
    with pytest.raises(BadOutput, match="more than 30 bytes"):
        await reduce_input(Group([b'"aaaaaaaaaaaaa"'] * 3), "g", 30)


def test_a_result_may_have_as_many_bytes_as_said() -> None:
    check_size(10, 10)
    with pytest.raises(BadOutput):
        check_size(11, 10)


@pytest.mark.parametrize(
    ("ran", "was_ended", "words"),
    [(False, False, "before it ran"), (True, False, "stopped by itself"), (True, True, "its instance was replaced")],
)
def test_a_cancelled_job_says_how_it_stopped(ran: bool, was_ended: bool, words: str) -> None:
    note = stop_note(ran=ran, was_ended=was_ended)
    assert words in note["detail"] and note["instance_ended"] is was_ended


# ---- attempts ------------------------------------------------------------------------------------------------------


class Settled:
    """A store that settles once it is told to."""

    def __init__(self) -> None:
        self.may_go = asyncio.Event()
        self.tokens: list[int] = []

    async def settle(self, worker: str, taken: Taken, settlement: Settlement) -> bool:
        await self.may_go.wait()
        self.tokens.append(taken.token)
        return True


class Refusing:
    """A journey that nobody sets out on."""

    def begin_job(self, ask: Ask, version: Any) -> None:
        raise Draining("leaving")


class Looking:
    """A desk: counts who has left."""

    def __init__(self) -> None:
        self.num_ended = 0

    def refused(self, turn: Turn, back: GiveBack) -> None:
        """Nothing is paused."""

    def ended(self, *_: object) -> None:
        self.num_ended += 1


async def test_a_job_that_is_taken_again_while_its_last_attempt_leaves_keeps_a_place_of_its_own() -> None:
    store, desk, ear = Settled(), Looking(), Ear(None, Told(), 10)  # type: ignore[arg-type]  # nothing is sent
    attempts = Attempts(Refusing(), store, ear, 100)  # type: ignore[arg-type]
    turn = Turn(QueueName("f", "k"), None, None, 1, "w")  # type: ignore[arg-type]  # nobody asks for the version
    attempts.start(TAKEN, turn, 0.0, desk)  # type: ignore[arg-type]
    attempts.start(msgspec.structs.replace(TAKEN, token=4), turn, 0.0, desk)  # type: ignore[arg-type]
    assert (len(attempts.running), attempts.held["f"]) == (2, 2)
    attempts.cancel(TAKEN.id)
    assert all(attempt.canceled for attempt in attempts.running.values())
    store.may_go.set()
    await attempts.wait_idle()
    assert (len(attempts.running), attempts.held["f"], desk.num_ended) == (0, 0, 2)
    assert sorted(store.tokens) == [3, 4]


async def test_a_cancel_that_nobody_heard_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cancels, "POLL_S", 0.01)
    spec = TAKEN.spec
    asked = JobRecord(id=TAKEN.id, spec=spec, state=JobState.STARTED, queue=TAKEN.queue, canceling=True)
    stopped: list[str] = []

    class Store:
        async def get_many(self, job_ids: Sequence[str]) -> list[JobRecord | None]:
            return [asked for _ in job_ids]

    class Running:
        def __init__(self) -> None:
            self.running = {(TAKEN.id, TAKEN.token): None}

        def cancel(self, job_id: str) -> None:
            stopped.append(job_id)

    await running_until(lambda: cancels.poll_cancels(Store(), Running()), lambda: stopped)  # type: ignore[arg-type]
    assert stopped[0] == TAKEN.id
