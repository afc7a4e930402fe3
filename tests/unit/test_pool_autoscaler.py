"""The autoscaler on a virtual clock: cold start, panic, quiet windows, scale to zero, missing data, replay."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samovar.spec import Scaling
from samovar_pool.autoscaler import MAX_STEP, LoadSnapshot, StepWindow, VersionScaler, desired_instances


class World:
    """A version on a virtual clock whose instances take `boot_s` to start and stop at once."""

    def __init__(self, scaling: Scaling, boot_s: float = 0.1, target: float = 1.0) -> None:
        self.scaling, self.boot_s, self.target = scaling, boot_s, target
        self.now_s = 100.0
        self.scaler = VersionScaler(self.now_s)
        self.ready = 0
        self.starting: list[float] = []
        self.warm = 0
        self.history: list[int] = []
        self.rules: list[str] = []

    def step(self, demand: float | None, dt_s: float = 0.1) -> None:
        self.now_s += dt_s
        self.ready += sum(at_s <= self.now_s for at_s in self.starting)
        self.starting = [at_s for at_s in self.starting if at_s > self.now_s]
        self.scaler.observe(self.now_s, demand)
        decision = self.scaler.decide(self.now_s, self.scaling, self.target, self.ready, len(self.starting), self.warm)
        have = self.ready + len(self.starting)
        self.starting += [self.now_s + self.boot_s] * max(0, decision.target - have)
        while self.ready + len(self.starting) > decision.target:
            if self.starting:
                self.starting.pop()
            else:
                self.ready -= 1
        self.history.append(decision.target)
        self.rules.append(decision.rule)

    def run(self, demand: float | None, seconds: float, dt_s: float = 0.1) -> None:
        for _ in range(round(seconds / dt_s)):
            self.step(demand, dt_s)


def test_first_demand_starts_one_at_once() -> None:
    world = World(Scaling())
    world.step(0)
    world.step(1)
    assert (world.history[-1], world.rules[-1]) == (1, "cold")


def test_a_burst_from_zero_starts_what_it_needs_up_to_the_ceiling() -> None:
    world = World(Scaling(max_instances=4))
    world.step(200)
    assert (world.history[-1], world.rules[-1]) == (4, "ceiling")


def test_growth_is_capped_per_second() -> None:
    world = World(Scaling(max_instances=1000), boot_s=30)
    world.step(500)
    assert (world.history[-1], world.rules[-1]) == (MAX_STEP, "step")
    world.run(500, 0.8)
    assert world.history[-1] == MAX_STEP
    world.run(500, 3)
    assert MAX_STEP < world.history[-1] <= 16 * MAX_STEP


def test_starting_instances_count_at_full_capacity() -> None:
    """A boot slower than the panic window is not answered with more instances (knative/serving#13284)."""
    world = World(Scaling(max_instances=50), boot_s=20)
    world.run(3, 19)
    assert max(world.history) == 3


@pytest.mark.parametrize("window_s", [0.5, 2.0, 60.0, 300.0])
def test_scales_to_zero_only_after_a_full_quiet_window(window_s: float) -> None:
    world = World(Scaling(scale_down_window_s=window_s))
    world.run(1, 5)
    quiet_from_s = world.now_s
    while world.history[-1] > 0:
        world.step(0)
        assert world.now_s - quiet_from_s < window_s + 1
    assert world.now_s - quiet_from_s == pytest.approx(window_s, abs=0.11)
    assert world.rules[-1] == "idle"
    world.run(0, 600, 1.0)
    assert world.ready == 0


def test_a_single_late_call_restarts_the_quiet_window() -> None:
    world = World(Scaling(scale_down_window_s=10))
    world.run(1, 1)
    world.run(0, 9)
    world.step(1)
    world.run(0, 9.5)
    assert world.history[-1] == 1
    world.run(0, 1)
    assert world.history[-1] == 0


def test_a_slow_boot_is_not_reaped_when_its_caller_left() -> None:
    """kserve/kserve#1247: the idle clock starts at first ready; a starting instance is exempt."""
    world = World(Scaling(scale_down_window_s=2), boot_s=30)
    world.step(1)
    world.run(0, 29)
    assert world.history[-1] == 1 and world.rules[-1] == "boot"
    world.run(0, 2.5)
    assert world.history[-1] == 1, "it has just become ready: two quiet seconds first"
    world.run(0, 1)
    assert world.history[-1] == 0


def test_steady_load_keeps_a_steady_number() -> None:
    """knative/serving#15121: no shrinking under steady load, no jump afterwards."""
    world = World(Scaling(max_instances=100), target=4)
    world.run(40, 300, 0.5)
    assert set(world.history[200:]) == {10}


def test_shrinks_to_what_the_last_window_needed() -> None:
    world = World(Scaling(max_instances=20, scale_down_window_s=30))
    world.run(10, 30)
    world.run(2, 29)
    assert world.history[-1] == 10, "not a full quiet window yet"
    world.run(2, 130)
    assert world.history[-1] == 2


def test_panic_plan_is_not_undone_within_its_window() -> None:
    world = World(Scaling(max_instances=50, scale_down_window_s=5))
    world.run(1, 30)
    world.run(8, 1)
    assert world.history[-1] == 8
    world.run(1, 50)
    assert min(world.history[-490:]) == 8, "panic sets a floor for a minute"
    world.run(1, 90)
    assert world.history[-1] == 1


def test_floor_ceiling_warm_and_buffer() -> None:
    world = World(Scaling(min_instances=2, max_instances=5, buffer_instances=1, scale_down_window_s=1))
    world.step(0)
    assert world.history[-1] >= 2
    world.run(0, 100, 1.0)
    assert world.history[-1] == 2
    world.run(3, 10)
    assert world.history[-1] == 4, "one idle beyond the demand"
    world.run(30, 10)
    assert world.history[-1] == 5
    world.run(0, 200, 1.0)
    world.warm = 4
    world.step(0)
    assert (world.history[-1], world.rules[-1]) == (4, "warm")
    world.warm = 0
    world.step(0)
    assert world.history[-1] == 2


def test_missing_samples_never_shrink_nor_grow() -> None:
    world = World(Scaling(scale_down_window_s=5))
    world.run(3, 5)
    world.run(None, 500, 1.0)
    assert set(world.history[-400:]) == {3}
    idle = World(Scaling(scale_down_window_s=5))
    idle.run(1, 1)
    idle.run(0, 1)
    idle.run(None, 100, 1.0)
    assert idle.history[-1] == 1 and idle.rules[-1] == "no_data"
    idle.run(0, 1)
    assert idle.history[-1] == 0


def test_replay_of_a_day_with_bursts_never_strands_demand_nor_idles_for_long() -> None:
    """Synthetic arrivals: quiet nights, a busy day, bursts. Capacity follows within a second; nights are at zero."""
    world = World(Scaling(max_instances=30, scale_down_window_s=60), boot_s=0.5, target=2)
    starved_s = idle_s = 0.0
    for second in range(0, 4 * 3600):
        phase = second % 3600
        demand = 0.0 if phase < 1200 else 6 + 5 * math.sin(phase / 300)
        demand += 20 if 2000 <= phase < 2015 else 0
        world.step(demand, 1.0)
        starved_s += world.ready * 2 < demand - 2
        idle_s += world.ready > 0 and 200 < phase < 1200
    assert starved_s <= 4 * 6
    assert idle_s == 0
    assert max(world.history) <= 30


def test_decisions_name_their_inputs() -> None:
    load = LoadSnapshot(demand=3, stable_mean=1.5, panic_mean=2.5, ready=1, starting=0, quiet_s=0, step_base=1)
    decision = desired_instances(load, Scaling(), 1.0)
    assert decision.rule == "panic" and decision.target == 3
    assert decision.inputs["demand"] == 3 and decision.inputs["stable_mean"] == 1.5 and decision.inputs["ready"] == 1


scalings = st.builds(
    lambda low, more, buffer, window: Scaling(
        min_instances=low, max_instances=low + more, buffer_instances=buffer, scale_down_window_s=window
    ),
    st.integers(0, 5),
    st.integers(1, 40),
    st.integers(0, 3),
    st.floats(0, 120),
)


@given(scalings, st.floats(0.5, 16), st.lists(st.tuples(st.floats(0.01, 20), st.one_of(st.none(), st.floats(0, 100)))))
def test_any_history_stays_within_bounds_and_reaches_the_floor(
    scaling: Scaling, target: float, events: list[tuple[float, float | None]]
) -> None:
    world = World(scaling, boot_s=1.0, target=target)
    for dt_s, demand in events:
        world.step(demand, dt_s)
        assert scaling.min_instances <= world.history[-1] <= scaling.max_instances
        if demand and demand > 0:
            assert world.history[-1] >= 1
    world.run(0, 2 * 120 + 10, 1.0)
    assert world.history[-1] == scaling.min_instances


@given(st.lists(st.tuples(st.floats(0.1, 10), st.floats(0, 50)), min_size=1), st.floats(1, 60))
def test_window_mean_is_within_what_was_seen(steps: list[tuple[float, float]], window_s: float) -> None:
    window, now_s = StepWindow(60), 0.0
    for dt_s, value in steps:
        now_s += dt_s
        window.add(now_s, value)
    values = [value for _, value in steps]
    assert min(values) - 1e-6 <= window.mean(now_s, window_s) <= max(values) + 1e-6
    assert window.peak(now_s, window_s) <= max(values)
    assert window.mean(now_s + 1000, window_s) == pytest.approx(values[-1])
