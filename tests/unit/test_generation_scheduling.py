"""Blocks and scheduler, without a model: what a step reads is what was written there for it, and everybody finishes."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samovar_instance.engines.generation.blocks import Blocks, BlockTable
from samovar_instance.engines.generation.contract import EndReason, Sequence, Token
from samovar_instance.engines.generation.scheduler import Limits, Run, Scheduler, Segment


class Deaf:
    def token(self, token: Token) -> None: ...

    def ended(self, reason: EndReason, error: Exception | None) -> None: ...


def run_of(prompt: list[int], max_tokens: int = 1, tenant: str = "") -> Run:
    return Run(Sequence(prompt, max_tokens, None, Deaf(), tenant=tenant), [*prompt])


@dataclass
class Machine:
    """Carries out plans as an engine does: what it writes to a slot is the whole prefix that the slot depends on."""

    scheduler: Scheduler
    slots: dict[tuple[int, int], tuple[int, ...]] = field(default_factory=dict)
    finished: list[Run] = field(default_factory=list)
    num_steps: int = 0

    def step(self) -> list[Segment]:
        segments = self.scheduler.plan()
        assert segments or not [*self.scheduler.all_runs()], "nothing is planned, and somebody waits"
        for segment in segments:
            self.compute(segment)
        self.check_blocks()
        for segment in segments:
            self.scheduler.done(segment)
        for run in [segment.run for segment in segments if segment.num_logits]:
            run.tokens.append(sum(run.tokens) % 3)
            run.sequence.generated.append(run.tokens[-1])
            if len(run.sequence.generated) == run.sequence.max_tokens:
                self.scheduler.remove(run)
                self.finished.append(run)
        self.check_blocks()
        self.num_steps += 1
        return segments

    def compute(self, segment: Segment) -> None:
        run, size = segment.run, self.scheduler.blocks.block_tokens
        assert run.is_running and segment.start == run.table.num_tokens
        assert segment.num_logits == (segment.start + segment.count == len(run.tokens))
        for place in range(segment.start + segment.count):
            slot = (run.table.blocks[place // size], place % size)
            prefix = tuple(run.tokens[: place + 1])
            if place >= segment.start:
                self.slots[slot] = prefix
            assert self.slots[slot] == prefix, "it would read what is another's"

    def check_blocks(self) -> None:
        scheduler, blocks = self.scheduler, self.scheduler.blocks
        held = Counter(block for run in scheduler.running for block in run.table.blocks)
        assert blocks.num_held == len(held) and blocks.num_free == blocks.num_blocks - len(held)
        assert all(not run.table.blocks for run in scheduler.all_runs() if not run.is_running)
        assert len(scheduler.running) <= scheduler.limits.max_running
        for run in scheduler.running:
            assert len(run.table.blocks) >= -(-run.table.num_tokens // blocks.block_tokens)
            owned = run.table.blocks[run.table.num_tokens // blocks.block_tokens :]
            assert all(held[block] == 1 for block in owned), "a block that is still written to is shared"

    def run(self, max_steps: int) -> None:
        while [*self.scheduler.all_runs()]:
            self.step()
            assert self.num_steps <= max_steps, "no end in sight"


requests = st.tuples(
    st.lists(st.integers(0, 1), min_size=1, max_size=24), st.integers(1, 12), st.sampled_from("abc"), st.integers(0, 9)
)


@given(
    asked=st.lists(requests, min_size=1, max_size=14),
    block_tokens=st.integers(1, 5),
    spare_blocks=st.integers(0, 12),
    max_running=st.integers(1, 6),
    max_step_tokens=st.integers(1, 20),
    growth_tokens=st.integers(0, 6),
    shares=st.booleans(),
    cancelled=st.sets(st.integers(0, 13)),
)
def test_nothing_leaks_nothing_is_mixed_up_and_everybody_finishes(
    asked: list[tuple[list[int], int, str, int]],
    block_tokens: int,
    spare_blocks: int,
    max_running: int,
    max_step_tokens: int,
    growth_tokens: int,
    shares: bool,
    cancelled: set[int],
) -> None:
    largest = max(len(prompt) + num for prompt, num, _, _ in asked)
    blocks = Blocks(-(-largest // block_tokens) + spare_blocks, block_tokens, shares=shares)
    limits = Limits(max_running, max_step_tokens, chunk_tokens=3, chunk_per_decode=1, growth_tokens=growth_tokens)
    machine = Machine(Scheduler(blocks, limits))
    gone = 0
    for number, (prompt, num, tenant, num_steps) in enumerate(asked):
        run = run_of(prompt, num, tenant)
        machine.scheduler.add(run)
        for _ in range(num_steps):
            machine.step()
        if number in cancelled and run not in machine.finished:
            machine.scheduler.remove(run)
            machine.check_blocks()
            gone += 1
    work = sum(len(prompt) + num for prompt, num, _, _ in asked)
    machine.run(max_steps=machine.num_steps + work * len(asked) * 4)
    assert len(machine.finished) == len(asked) - gone
    assert blocks.num_held == 0 and blocks.num_free == blocks.num_blocks


def scheduler_of(num_blocks: int = 64, block_tokens: int = 4, **limits: int) -> Scheduler:
    return Scheduler(Blocks(num_blocks, block_tokens), Limits(growth_tokens=block_tokens, **limits))


def test_a_newcomer_does_not_wait_for_the_many_of_another_tenant() -> None:
    machine = Machine(scheduler_of(max_running=4))
    for _ in range(20):
        machine.scheduler.add(run_of([1] * 8, 50, "many"))
    for _ in range(30):
        machine.step()
    late = run_of([2] * 8, 5, "few")
    machine.scheduler.add(late)
    for _ in range(5):
        machine.step()
    assert machine.finished == [late]
    assert machine.scheduler.num_preemptions == 1


def test_tenants_share_the_engine_however_much_they_ask_for() -> None:
    machine = Machine(scheduler_of(max_running=4))
    for _ in range(60):
        machine.scheduler.add(run_of([1] * 8, 8, "many"))
    for _ in range(20):
        machine.scheduler.add(run_of([2] * 8, 8, "few"))
    while len(machine.finished) < 40:
        machine.step()
    finished = Counter(run.sequence.tenant for run in machine.finished)
    assert finished["few"] >= 16


def test_idling_saves_up_nothing() -> None:
    machine = Machine(scheduler_of(max_running=2))
    for _ in range(20):
        machine.scheduler.add(run_of([1] * 8, 20, "busy"))
    while len(machine.finished) < 10:
        machine.step()
    for _ in range(12):
        machine.scheduler.add(run_of([2] * 8, 20, "rested"))
    machine.run(1000)
    next_ones = Counter(run.sequence.tenant for run in machine.finished[10:18])
    assert 3 <= next_ones["rested"] <= 5


def test_decodes_go_first_and_prompts_share_what_is_left() -> None:
    machine = Machine(scheduler_of(max_step_tokens=32, chunk_tokens=6, chunk_per_decode=1))
    machine.scheduler.add(run_of([1, 2, 3], 9))
    assert [(s.start, s.count, s.num_logits) for s in machine.step()] == [(0, 3, 1)]
    machine.scheduler.add(run_of([*range(10, 30)], 9))
    pieces = [[(s.start, s.count, s.num_logits) for s in machine.step()] for _ in range(5)]
    assert [piece[0] for piece in pieces] == [(place, 1, 1) for place in range(3, 8)]
    assert [piece[1] for piece in pieces[:4]] == [(0, 4, 0), (4, 4, 0), (8, 4, 0), (12, 4, 0)]
    assert pieces[4][1] == (16, 4, 1)


def test_the_one_admitted_last_gives_way_and_comes_back_to_what_it_had() -> None:
    machine = Machine(scheduler_of(num_blocks=8, block_tokens=2))
    first, last = run_of([1, 2, 3, 4], 12), run_of([5, 6, 7, 8], 6)
    for run in (first, last):
        machine.scheduler.add(run)
    machine.run(60)
    assert machine.finished[0] is first and machine.scheduler.num_preemptions > 0
    assert len(last.sequence.generated) == 6


def test_a_prompt_that_another_one_computes_waits_a_step_and_finds_it() -> None:
    machine = Machine(scheduler_of(max_step_tokens=100))
    twins = [run_of([*range(20), 100 + number]) for number in range(3)]
    for run in twins:
        machine.scheduler.add(run)
    assert [segment.run for segment in machine.step()] == twins[:1]
    assert [(segment.run, segment.start) for segment in machine.step()] == [(twins[1], 20), (twins[2], 20)]
    assert [run.sequence.num_cached for run in twins] == [0, 20, 20]


def test_who_does_not_fit_is_not_passed_by() -> None:
    machine = Machine(scheduler_of(num_blocks=8, block_tokens=4))
    small, large, tiny = run_of([1] * 12, 10, "a"), run_of([2] * 28, 1, "b"), run_of([3], 1, "c")
    for run in (small, large, tiny):
        machine.scheduler.add(run)
    machine.run(60)
    assert machine.finished == [small, large, tiny]


def table_of(blocks: Blocks, tokens: list[int]) -> BlockTable:
    table = BlockTable()
    blocks.grow(table, len(tokens))
    blocks.advance(table, tokens, len(tokens))
    return table


def test_blocks_are_found_by_content_until_they_are_needed() -> None:
    blocks = Blocks(4, 2)
    tokens = [1, 2, 3, 4, 5]
    table = table_of(blocks, tokens)
    again, other = BlockTable(), BlockTable()
    assert (blocks.adopt(again, tokens), blocks.num_held) == (4, 3)
    assert blocks.adopt(other, [9, 2, 3, 4, 5]) == 0  # equal blocks after unequal beginnings are not equal
    blocks.release(table)
    blocks.release(again)
    assert blocks.num_free == 4
    taker = BlockTable()
    blocks.grow(taker, 6)  # takes what was never used, then the end of what is remembered
    assert blocks.adopt(BlockTable(), tokens) == 2


def test_who_has_another_salt_finds_nothing() -> None:
    blocks, tokens = Blocks(8, 2), [1, 2, 3, 4, 5]
    table = BlockTable(salt=b"one")
    blocks.grow(table, 5)
    blocks.advance(table, tokens, 5)
    for other in (b"", b"another"):
        taker = BlockTable(salt=other)
        assert (blocks.num_adoptable(taker, tokens), blocks.adopt(taker, tokens)) == (0, 0)
    assert blocks.adopt(BlockTable(salt=b"one"), tokens) == 4


def test_the_last_token_is_never_found() -> None:
    blocks = Blocks(4, 2)
    table_of(blocks, [1, 2, 3, 4])
    assert blocks.adopt(BlockTable(), [1, 2, 3, 4]) == 2
    assert blocks.adopt(BlockTable(), [1, 2, 3, 4, 5]) == 4


def test_drafts_that_were_wrong_give_their_blocks_back() -> None:
    blocks = Blocks(4, 2)
    table = table_of(blocks, [1, 2, 3])
    blocks.grow(table, 8)
    blocks.advance(table, [1, 2, 3, 4], 4)
    blocks.trim(table)
    assert (len(table.blocks), blocks.num_free) == (2, 2)


def test_what_is_forgotten_is_not_found() -> None:
    blocks = Blocks(4, 2)
    table = table_of(blocks, [1, 2, 3, 4, 5])
    again = BlockTable()
    blocks.adopt(again, [1, 2, 9])
    assert blocks.forget(table) == table.blocks[1:]  # the first is another's, too
    assert blocks.adopt(BlockTable(), [1, 2, 3, 4, 5]) == 0


@pytest.mark.parametrize(
    ("num_decodes", "num_prompts", "expected"),
    [
        (0, 1, 256),  # nobody is made to wait
        (16, 1, 48 + 2 * 16),  # one that arrives among sixteen: their share is bounded
        (4, 6, 48 + 2 * 4 + 32 * 5),  # more wait than are answered: the batch is to fill
        (4, 60, 256 - 4),
        (300, 1, 48),  # a prompt never waits for all others to end
    ],
)
def test_prompts_get_more_of_a_step_the_more_of_them_wait(num_decodes: int, num_prompts: int, expected: int) -> None:
    assert Limits().prompt_budget(num_decodes, num_prompts) == expected
