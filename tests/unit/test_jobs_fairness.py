"""Whose job goes next: nobody waits for another's backlog, whatever it costs, and no place is left empty."""

from __future__ import annotations

import heapq
from collections import Counter, defaultdict, deque

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samovar_jobs.fairness import Rota, Round, room_for
from samovar_storage.jobs.layout import QueueName


class Simulation:
    """One worker with `slots` places. Jobs are seconds of service; `ended` is (queue, when) in order."""

    def __init__(self, slots: int) -> None:
        self.rota = Rota()
        self.now_s = 0.0
        self.ended: list[tuple[QueueName, float]] = []
        self.used_s: defaultdict[QueueName, float] = defaultdict(float)
        self._free = slots
        self._waiting: dict[QueueName, deque[float]] = {}
        self._running: list[tuple[float, int, QueueName, float, float]] = []
        self._number = 0

    def submit(self, queue: QueueName, *jobs_s: float) -> None:
        self._waiting.setdefault(queue, deque()).extend(jobs_s)
        self.rota.add(queue)

    def run(self, until_s: float = float("inf")) -> None:
        """Go on until nothing is left to do, or an instant."""
        while self.now_s < until_s:
            self._fill()
            if not self._running:
                return
            self.now_s, _, queue, charged_s, run_s = heapq.heappop(self._running)
            self._free += 1
            self.ended.append((queue, self.now_s))
            self.used_s[queue] += run_s
            self.rota.ended(queue, charged_s, run_s)

    def _fill(self) -> None:
        while self._free and (queue := self.rota.next()) is not None:
            run_s = self._waiting[queue].popleft()
            charged_s = self.rota.took(queue, 1)
            if not self._waiting[queue]:
                self.rota.drop(queue)
            self._free -= 1
            self._number += 1
            heapq.heappush(self._running, (self.now_s + run_s, self._number, queue, charged_s, run_s))


BIG, SMALL = QueueName("embed", "big"), QueueName("embed", "small")


def test_a_hundred_thousand_jobs_of_one_key_do_not_delay_ten_of_another() -> None:
    simulation = Simulation(slots=4)
    simulation.submit(BIG, *[0.1] * 100_000)
    simulation.run(until_s=5.0)
    simulation.submit(SMALL, *[0.1] * 10)
    began_s = simulation.now_s
    simulation.run(until_s=began_s + 2.0)
    last_s = max(at_s for queue, at_s in simulation.ended if queue == SMALL)
    assert sum(queue == SMALL for queue, _ in simulation.ended) == 10
    alone_s = 10 * 0.1 / 4
    assert last_s - began_s <= 3 * alone_s


def test_keys_share_by_time_not_by_number_of_jobs() -> None:
    simulation = Simulation(slots=2)
    simulation.submit(BIG, *[1.0] * 1000)
    simulation.submit(SMALL, *[0.1] * 10_000)
    simulation.run(until_s=200.0)
    assert simulation.used_s[BIG] == pytest.approx(simulation.used_s[SMALL], rel=0.1)


def test_functions_share_by_time_however_many_keys_they_have() -> None:
    simulation = Simulation(slots=2)
    for number in range(50):
        simulation.submit(QueueName("many", f"k{number}"), *[0.1] * 200)
    simulation.submit(QueueName("one", "k"), *[0.1] * 10_000)
    simulation.run(until_s=100.0)
    many_s = sum(used_s for queue, used_s in simulation.used_s.items() if queue.function == "many")
    assert many_s == pytest.approx(simulation.used_s[QueueName("one", "k")], rel=0.1)


def test_who_was_away_does_not_come_back_with_saved_turns() -> None:
    simulation = Simulation(slots=1)
    simulation.submit(SMALL, 0.1)
    simulation.submit(BIG, *[0.1] * 2000)
    simulation.run(until_s=100.0)
    simulation.submit(SMALL, *[0.1] * 1000)
    began_s, used_s = simulation.now_s, simulation.used_s[SMALL]
    simulation.run(until_s=began_s + 10.0)
    assert simulation.used_s[SMALL] - used_s == pytest.approx(5.0, abs=0.5)


def test_the_low_lane_of_a_function_waits_for_its_normal_one_alone() -> None:
    rota = Rota()
    low, normal, other = QueueName("f", "a", "low"), QueueName("f", "b"), QueueName("g", "a", "low")
    rota.add(low)
    assert rota.next() == low
    rota.add(normal)
    assert rota.next() == normal
    rota.park(normal, 10.0)
    assert rota.next() == low  # nobody of the normal lane may go
    rota.add(other)
    rota.took(low, 5)
    assert rota.next() == other


def test_what_is_parked_goes_when_its_time_has_come_or_it_is_woken() -> None:
    rota = Rota()
    rota.add(BIG)
    rota.park("embed", 5.0)
    rota.add(SMALL)
    assert rota.next() is None
    assert rota.next_due_s() == 5.0
    rota.wake_due(4.9)
    assert rota.next() is None
    rota.wake_due(5.0)
    assert rota.next() == BIG
    rota.park(BIG, 8.0)
    assert rota.next() == SMALL
    rota.park(SMALL, 7.0)
    rota.wake(BIG)
    assert rota.next() == BIG
    assert rota.next_due_s() == 7.0


def test_parking_again_lasts_until_the_last_instant_named() -> None:
    rota = Rota()
    rota.add(BIG)
    rota.park(BIG, 1.0)
    rota.park(BIG, 3.0)
    rota.wake_due(1.0)
    assert rota.next() is None
    rota.wake_due(3.0)
    assert rota.next() == BIG


def test_jobs_that_never_ran_cost_nothing() -> None:
    rota = Rota()
    rota.add(BIG)
    rota.add(SMALL)
    for _ in range(5):
        charged_s = rota.took(BIG, 1)
        rota.ended(BIG, charged_s, None)
    rota.took(SMALL, 1)
    assert rota.next() == BIG


def test_forgetting_those_who_left_changes_nobodys_turn() -> None:
    rounds: Round[int] = Round()
    rounds.enter(-1)
    for number in range(5000):
        rounds.enter(number)
        rounds.leave(number)
    assert len(rounds._used_s) < 2000
    assert rounds.first() == -1


@given(st.integers(0, 200), st.integers(0, 200))
def test_room_is_never_more_than_is_free_and_leaves_something(held: int, free: int) -> None:
    room = room_for(held, free)
    assert 0 <= room <= free
    if held == 0 and free > 0:
        assert room >= 1
    if room > 1:
        assert free - room >= 1  # for whoever comes next


@given(st.integers(2, 8), st.integers(8, 256))
def test_those_who_take_in_turn_get_about_the_same(num_functions: int, places: int) -> None:
    held = [0] * num_functions
    for _ in range(200):
        for who in range(num_functions):
            held[who] += min(1, room_for(held[who], places - sum(held)))
    assert max(held) - min(held) <= 1 + places // 8
    assert sum(held) <= places


@given(
    st.lists(
        st.tuples(st.sampled_from("fg"), st.sampled_from("abc"), st.sampled_from(["", "low"]), st.floats(0.01, 2.0)),
        max_size=60,
    ),
    st.integers(1, 4),
)
def test_every_job_is_run_and_no_place_is_idle_while_one_waits(
    jobs: list[tuple[str, str, str, float]], slots: int
) -> None:
    simulation = Simulation(slots)
    for function, key, lane, run_s in jobs:
        simulation.submit(QueueName(function, key, lane), run_s)
    simulation.run()
    assert Counter(queue for queue, _ in simulation.ended) == Counter(QueueName(f, k, lane) for f, k, lane, _ in jobs)
    total_s = sum(run_s for *_, run_s in jobs)
    longest_s = max((run_s for *_, run_s in jobs), default=0.0)
    assert simulation.now_s <= total_s / slots + longest_s + 1e-6
