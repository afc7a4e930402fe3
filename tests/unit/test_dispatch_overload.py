"""One version under too much load, in simulated time: who is served, who is refused, and how soon."""

from __future__ import annotations

import random
from functools import partial

import pytest

from samovar_dispatch.ask import BACKGROUND, HIGH, LOW, NORMAL
from samovar_dispatch.waiting.shedding import INTERVAL_TARGETS, MIN_TARGET_S
from support.queueing import Draw, Simulation, Tally

SERVICE_S = 0.02
CAPACITY = 2 / SERVICE_S
SECONDS = 10.0


def steady(dice: random.Random) -> float:
    return SERVICE_S * dice.uniform(0.9, 1.1)


def erratic(dice: random.Random) -> float:
    return dice.expovariate(1 / SERVICE_S)


def mixed(dice: random.Random) -> float:
    return 0.005 if dice.random() < 0.9 else 0.155


def under(load: float, work: Draw, timeout_s: float) -> Simulation:
    """Return a simulation that has run for SECONDS at `load` times the capacity, after some calls at ease."""
    simulation = Simulation(work)
    simulation.offer(CAPACITY / 2, 1.0, 60.0)
    simulation.run()
    simulation.tally = Tally()
    simulation.offer(load * CAPACITY, SECONDS, timeout_s)
    simulation.run()
    return simulation


@pytest.mark.parametrize("timeout_s", [0.1, 0.4, 60.0])
def test_goodput_stays_at_its_peak_and_nobody_who_was_let_in_is_late(timeout_s: float) -> None:
    tallies = {load: under(load, steady, timeout_s).tally for load in (0.5, 1.0, 2.0, 5.0, 10.0)}
    assert all(tally.late == 0 for tally in tallies.values())
    assert all(tally.codes["deadline_exceeded"] == 0 for tally in tallies.values())
    assert tallies[0.5].codes.total() == 0, "nobody is refused without need"
    assert tallies[1.0].codes.total() <= 0.02 * CAPACITY * SECONDS
    assert all(tallies[load].good >= 0.97 * CAPACITY * SECONDS for load in (2.0, 5.0, 10.0))
    if timeout_s < MIN_TARGET_S:
        assert {code for tally in tallies.values() for code in tally.codes} == {"would_be_late"}


@pytest.mark.parametrize(
    ("work", "load", "late_share"), [(erratic, 1.5, 0.01), (erratic, 5.0, 0.02), (mixed, 1.5, 0.01), (mixed, 5.0, 0.1)]
)
def test_erratic_work_costs_little(work: Draw, load: float, late_share: float) -> None:
    tally = under(load, work, 0.5).tally
    admitted = tally.good + tally.late + tally.codes["deadline_exceeded"]
    assert tally.good >= 0.93 * CAPACITY * SECONDS
    assert tally.late + tally.codes["deadline_exceeded"] <= late_share * admitted


def test_a_version_that_becomes_slower_is_noticed() -> None:
    pace = [SERVICE_S]
    simulation = Simulation(lambda dice: pace[0])
    simulation.offer(2 * CAPACITY, 5.0, 0.5)
    simulation.at(102.0, partial(pace.__setitem__, 0, 4 * SERVICE_S))
    tally = simulation.run()
    assert tally.late + tally.codes["deadline_exceeded"] <= 0.7 * CAPACITY, "little more than those let in before"


def test_a_hiccup_is_got_over() -> None:
    pace = [SERVICE_S]
    simulation = Simulation(lambda dice: pace[0])
    simulation.offer(0.9 * CAPACITY, 5.0, 0.3)
    simulation.at(101.0, partial(pace.__setitem__, 0, 1.0))
    simulation.at(101.5, partial(pace.__setitem__, 0, SERVICE_S))
    simulation.run(103.0)
    before = simulation.tally.good
    simulation.run()
    assert simulation.tally.good - before >= 0.98 * 2 * 0.9 * CAPACITY


def test_a_burst_that_drains_is_served_in_its_order_and_loses_nobody() -> None:
    simulation = Simulation(steady)
    simulation.offer(CAPACITY / 2, 1.0, 60.0)
    simulation.run()
    calls = [simulation.arrive(60.0) for _ in range(900)]
    tally = simulation.run()
    assert tally.codes.total() == 0 and None not in calls
    assert tally.waits_s[-900:] == sorted(tally.waits_s[-900:])
    assert tally.waits_s[-1] > INTERVAL_TARGETS * MIN_TARGET_S, "it was long enough to be mistaken"


def test_a_queue_that_stays_late_serves_the_newest_and_sheds_the_oldest() -> None:
    simulation = Simulation(steady)
    simulation.offer(3 * CAPACITY, 20.0, 60.0)
    tally = simulation.run(120.0)
    assert simulation.version.backup.is_backed_up
    assert tally.good >= 0.98 * 20 * CAPACITY
    fresh = sorted(tally.waits_s[-500:])
    assert fresh[250] < 0.05, "half of those served have hardly waited"
    assert fresh[-1] <= MIN_TARGET_S + 2 * SERVICE_S
    assert tally.codes["queue_late"] >= 10 * CAPACITY
    simulation.run()
    for _ in range(3):
        simulation.arrive(60.0)
    assert not simulation.version.backup.is_backed_up


def test_low_is_shed_first_and_normal_is_not_starved_by_high() -> None:
    simulation = Simulation(steady)
    for priority in (HIGH, NORMAL, LOW, BACKGROUND):
        simulation.offer(CAPACITY, 5.0, 0.5, priority)
    served = {HIGH: 0, NORMAL: 0, LOW: 0, BACKGROUND: 0}
    shed = simulation.version.stats.sheds
    simulation.run()
    for (_, priority), count in shed.items():
        served[priority] -= count
    offered = int(5 * CAPACITY)
    shares = {priority: (offered + count) / offered for priority, count in served.items()}
    assert shares[HIGH] >= 0.7
    assert shares[NORMAL] >= 0.15
    assert shares[LOW] <= 0.1 and shares[BACKGROUND] <= 0.1


def test_a_full_queue_makes_room_for_who_matters_more() -> None:
    simulation = Simulation(steady, max_queue=3)
    for priority in (NORMAL, NORMAL, LOW, LOW, NORMAL):  # two of them run
        simulation.arrive(60.0, priority)
    assert simulation.arrive(60.0, LOW) is None
    assert simulation.tally.codes == {"queue_full": 1}
    assert simulation.arrive(60.0, HIGH) is not None
    assert simulation.arrive(60.0, NORMAL) is not None
    assert simulation.tally.codes == {"queue_full": 1, "low_priority": 2}
    assert simulation.arrive(60.0, NORMAL) is None
    assert [call.priority for call in simulation.version.queue] == [HIGH, NORMAL, NORMAL]
