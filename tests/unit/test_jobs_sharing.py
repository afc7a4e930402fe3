"""Many who ask at once share a question to Redis; what comes meanwhile goes together with the next."""

from __future__ import annotations

import asyncio

import pytest

from samovar.errors import StoreUnavailable
from samovar_storage.jobs.barrier import Shared
from samovar_storage.jobs.batcher import Batcher
from samovar_storage.jobs.submission import MAX_BATCH, MAX_BATCH_BYTES, flat, steps


class Gate:
    """A question that is answered when the test says so."""

    def __init__(self) -> None:
        self.asked = 0
        self.open = asyncio.Event()
        self.error: Exception | None = None

    async def ask(self) -> None:
        self.asked += 1
        await self.open.wait()
        if self.error is not None:
            raise self.error


async def settle() -> None:
    """Let every task go as far as it can."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_a_question_answers_those_who_came_before_it_was_asked() -> None:
    gate = Gate()
    shared = Shared(gate.ask)
    first = [asyncio.create_task(shared.wait()) for _ in range(10)]
    await settle()
    late = [asyncio.create_task(shared.wait()) for _ in range(10)]
    await settle()
    assert gate.asked == 1
    gate.open.set()
    await asyncio.gather(*first)
    assert not any(task.done() for task in late) or gate.asked == 2
    await asyncio.gather(*late)
    assert gate.asked == 2


async def test_who_gives_up_takes_nobody_along() -> None:
    gate = Gate()
    shared = Shared(gate.ask)
    impatient, patient = [asyncio.create_task(shared.wait()) for _ in range(2)]
    await settle()
    impatient.cancel()
    await settle()
    gate.open.set()
    await patient
    assert impatient.cancelled()


async def test_all_learn_that_there_was_no_answer_and_the_next_is_asked_anew() -> None:
    gate = Gate()
    gate.error = StoreUnavailable("gone")
    gate.open.set()
    shared = Shared(gate.ask)
    outcomes = await asyncio.gather(*(shared.wait() for _ in range(3)), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes] == [StoreUnavailable] * 3
    gate.error = None
    await shared.wait()


async def test_requests_that_come_together_go_together() -> None:
    sent: list[list[int]] = []

    async def send(batch: list[int]) -> list[int]:
        sent.append(batch)
        await asyncio.sleep(0)
        return [number * number for number in batch]

    batcher = Batcher(send, 4)
    replies = await asyncio.gather(*(batcher.add(number) for number in range(10)))
    assert replies == [number * number for number in range(10)]
    assert [len(batch) for batch in sent] == [4, 4, 2]
    assert await batcher.add(11) == 121


async def test_a_batch_that_fails_fails_its_own() -> None:
    async def send(batch: list[int]) -> list[int]:
        if 0 in batch:
            raise StoreUnavailable("gone")
        return batch

    batcher = Batcher(send, 2)
    outcomes = await asyncio.gather(*(batcher.add(number) for number in range(4)), return_exceptions=True)
    assert [type(outcome) for outcome in outcomes[:2]] == [StoreUnavailable] * 2
    assert outcomes[2:] == [2, 3]


async def test_a_caller_that_left_is_no_error_of_others() -> None:
    gate = Gate()

    async def send(batch: list[int]) -> list[int]:
        await gate.ask()
        return batch

    batcher = Batcher(send, 8)
    left, stays = [asyncio.create_task(batcher.add(number)) for number in range(2)]
    await settle()
    left.cancel()
    gate.open.set()
    assert await stays == 1
    with pytest.raises(asyncio.CancelledError):
        await left


def test_steps_are_bounded_in_jobs_and_bytes() -> None:
    assert [len(step) for step in steps([[b"x", b""]] * (MAX_BATCH + 1))] == [MAX_BATCH, 1]
    half = [b"x" * (MAX_BATCH_BYTES // 2), b"y"]
    assert [len(step) for step in steps([half] * 3 + [[b"z" * 2 * MAX_BATCH_BYTES]])] == [1, 1, 1, 1]
    assert steps([]) == []
    assert flat([[b"a", b"b"], [b"c"]]) == [b"a", b"b", b"c"]
