"""Scaling on queued jobs: what they ask of a version, on a virtual clock with bursts of calls, and who gives way."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samovar.lifecycle import State
from samovar.policies import Jobs
from samovar.spec import Canary, Resources, Route, Scaling
from samovar_pool.autoscaler import ScaleDecision, VersionScaler
from samovar_pool.job_load import JobLoad, by_function, cap_of, in_words, load_of, num_eligible, spread
from samovar_pool.model import (
    Action,
    DeviceView,
    DrainInstance,
    ForkBlank,
    InstanceView,
    Reject,
    Snapshot,
    Specialise,
    VersionView,
)
from samovar_pool.reconciler import reconcile
from samovar_storage.jobs.layout import QueueName

MIB, GIB = 1 << 20, 1 << 30
NOW_S = 1000.0
A, B, LOW = QueueName("f", "a"), QueueName("f", "b"), QueueName("f", "a", "low")


# ---- what jobs ask of a version ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("jobs", "expected"),
    [
        (Jobs(), 1115),
        (Jobs(low_scales=False), 115),
        (Jobs(max_running_per_key=10), 20),
        (Jobs(max_running_per_key=10, low_scales=False), 20),
        (Jobs(max_running_per_key=60), 75),
    ],
)
def test_only_jobs_that_could_be_run_are_counted(jobs: Jobs, expected: int) -> None:
    assert num_eligible({A: 100, B: 15, LOW: 1000}, jobs) == expected


def test_low_jobs_that_may_not_scale_start_nothing() -> None:
    assert num_eligible({LOW: 1000}, Jobs(low_scales=False)) == 0


@pytest.mark.parametrize(
    ("most", "jobs", "cap"),
    [(8, Jobs(), 4), (7, Jobs(), 4), (1, Jobs(), 1), (8, Jobs(max_instances=6), 6), (2, Jobs(max_instances=6), 2)],
)
def test_the_cap_is_half_of_what_the_version_may_have_unless_said(most: int, jobs: Jobs, cap: int) -> None:
    assert cap_of(jobs, Scaling(max_instances=most)) == cap


def test_caps_of_running_jobs_bound_the_demand() -> None:
    load = load_of(1000, 2.0, Jobs(max_running=3), Scaling(max_instances=20))
    assert (load.waiting, load.demand(1.0)) == (1, 3.0)
    assert load_of(1000, 9.0, Jobs(max_running=3), Scaling(max_instances=20)).waiting == 0


@given(st.floats(0, 1e4), st.integers(0, 10**6), st.integers(1, 100), st.floats(0.1, 64))
def test_demand_never_asks_for_more_than_the_cap(running: float, waiting: int, cap: int, target: float) -> None:
    demand = JobLoad(running, waiting, cap).demand(target)
    assert 0 <= demand <= min(running + waiting, cap * target)
    assert math.ceil(demand / target - 1e-6) <= cap


def test_jobs_are_spread_as_calls_are() -> None:
    route = Route(name="f", shares={"1": 75, "2": 25, "3": 0}, latest=4, canary=Canary(version=4, percent=20))
    assert spread(route) == pytest.approx({1: 0.6, 2: 0.2, 4: 0.2})
    assert by_function({A: 2, B: 0, QueueName("g", "a"): 1}) == {"f": {A: 2}, "g": {QueueName("g", "a"): 1}}


@pytest.mark.parametrize(
    ("target", "load", "words"),
    [
        (3, JobLoad(0, 1200, 4), "3 instances for 1,200 waiting jobs, capped at 4"),
        (4, JobLoad(4, 1196, 4), "4 instances for 4 running and 1,196 waiting jobs, capped at 4"),
        (1, JobLoad(0, 1, 4), "1 instance for 1 waiting job, capped at 4"),
        (1, JobLoad(1, 1, 4), "1 instance for 1 running and 1 waiting jobs, capped at 4"),
    ],
)
def test_decisions_say_so_in_words(target: int, load: JobLoad, words: str) -> None:
    assert in_words(target, load) == words


# ---- on a virtual clock --------------------------------------------------------------------------------------------


class Mill:
    """A version with a backlog, a worker that fills every free instance, and calls that come first."""

    def __init__(self, scaling: Scaling, jobs: Jobs | None = None, boot_s: float = 0.5, job_s: float = 1.0) -> None:
        self.scaling, self.jobs, self.boot_s, self.job_s = scaling, jobs or Jobs(), boot_s, job_s
        self.now_s = 100.0
        self.scaler = VersionScaler(self.now_s)
        self.waiting = 0
        self.running: list[float] = []  # when each job ends
        self.ready = 0
        self.starting: list[float] = []
        self.targets: list[int] = []
        self.starts = 0
        self.last: ScaleDecision | None = None

    def step(self, calls: float = 0.0, dt_s: float = 0.1) -> None:
        self.now_s += dt_s
        self.ready += sum(at_s <= self.now_s for at_s in self.starting)
        self.starting = [at_s for at_s in self.starting if at_s > self.now_s]
        self.running = [ends_s for ends_s in self.running if ends_s > self.now_s]
        while self.waiting and len(self.running) < self.ready - min(calls, self.ready):
            self.waiting -= 1
            self.running.append(self.now_s + self.job_s)
        load = load_of(self.waiting, float(len(self.running)), self.jobs, self.scaling)
        jobs = load.demand(1.0)
        self.scaler.observe(self.now_s, calls + jobs, jobs)
        decision = self.scaler.decide(self.now_s, self.scaling, 1.0, self.ready, len(self.starting), job_cap=load.cap)
        have = self.ready + len(self.starting)
        new = max(0, decision.target - have)
        self.starts += new
        self.starting += [self.now_s + self.boot_s] * new
        while self.ready + len(self.starting) > decision.target and (self.starting or self.ready > len(self.running)):
            if self.starting:
                self.starting.pop()
            else:
                self.ready -= 1
        self.last = decision
        self.targets.append(decision.target)

    def run(self, seconds: float, calls: float = 0.0) -> None:
        for _ in range(round(seconds / 0.1)):
            self.step(calls)


def test_one_job_starts_one_instance_and_after_the_window_there_is_none() -> None:
    mill = Mill(Scaling(scale_down_window_s=10.0))
    mill.waiting = 1
    mill.step()
    assert mill.targets == [1] and mill.last is not None and mill.last.for_jobs == 1
    mill.run(2.0)
    assert not mill.waiting and not mill.running
    mill.run(9.0)
    assert mill.ready == 1, "not a full quiet window yet"
    mill.run(2.0)
    assert mill.ready == 0 and mill.starts == 1


def test_a_backlog_drains_at_its_cap_without_flapping_and_then_to_zero() -> None:
    mill = Mill(Scaling(max_instances=8, scale_down_window_s=10.0))
    mill.waiting = 1000
    mill.run(300)
    assert not mill.waiting and max(mill.targets) == 4
    mill.run(30)
    assert mill.starts == 4, "each instance was started once"
    assert mill.ready == 0
    changes = sum(one != other for one, other in zip(mill.targets, mill.targets[1:], strict=False))
    assert changes <= 5, "up, and down after the window"


def test_long_jobs_keep_their_instances_until_they_end() -> None:
    mill = Mill(Scaling(max_instances=8, scale_down_window_s=1.0), job_s=120.0)
    mill.waiting = 4
    mill.run(100)
    assert (mill.ready, len(mill.running), mill.starts) == (4, 4, 4)
    mill.run(30)
    assert mill.ready == 0


def test_calls_that_come_during_a_backlog_get_instances_of_their_own() -> None:
    mill = Mill(Scaling(max_instances=8, scale_down_window_s=10.0), job_s=60.0)
    mill.waiting = 1000
    mill.run(10)
    assert (mill.ready, len(mill.running)) == (4, 4)
    mill.run(3, calls=3)
    assert mill.targets[-1] == 7 and mill.last is not None and mill.last.for_jobs == 4
    mill.run(120)
    assert mill.targets[-1] == 4, "the backlog does not keep what calls were given"


def test_a_backlog_holds_no_more_than_its_cap_after_calls_that_panicked() -> None:
    mill = Mill(Scaling(max_instances=20, scale_down_window_s=2.0), Jobs(max_instances=1), job_s=30.0)
    mill.waiting = 1000
    mill.run(5, calls=10)
    assert mill.targets[-1] >= 10
    mill.run(5)
    assert mill.targets[-1] == 1 and mill.last is not None and mill.last.rule == "jobs_cap"


def test_a_buffer_is_for_calls_only() -> None:
    mill = Mill(Scaling(max_instances=8, buffer_instances=2))
    mill.waiting = 1000
    mill.run(5)
    assert max(mill.targets) == 4


def test_floors_are_not_there_for_jobs() -> None:
    mill = Mill(Scaling(min_instances=2, max_instances=8))
    mill.waiting = 1000
    mill.run(5)
    assert mill.targets[-1] == 4 and mill.last is not None and mill.last.for_jobs == 2


@given(
    most=st.integers(1, 12),
    steps=st.lists(st.tuples(st.integers(0, 50), st.integers(0, 12), st.floats(0.1, 20)), max_size=25),
)
def test_jobs_never_take_more_than_the_cap_beside_calls(most: int, steps: list[tuple[int, int, float]]) -> None:
    mill = Mill(Scaling(max_instances=most, scale_down_window_s=5.0))
    cap, peak = cap_of(Jobs(), mill.scaling), 0
    for arriving, calls, seconds in steps:
        mill.waiting += arriving
        peak = max(peak, calls)
        mill.step(calls, seconds)
        assert mill.last is not None
        assert mill.last.for_jobs <= mill.last.target <= min(most, max(cap, peak + cap, peak))
        assert peak or mill.last.target <= cap


# ---- who gives way -------------------------------------------------------------------------------------------------


def ready(name: str, ref: str, in_flight: int = 0, age_s: float = 100.0, **more: Any) -> InstanceView:
    idle_since_s = None if in_flight else NOW_S - 50
    return InstanceView(
        name,
        State.READY,
        ref,
        in_flight=in_flight,
        ready_at_s=NOW_S - age_s,
        idle_since_s=idle_since_s,
        memory_bytes=100 * MIB,
        **more,
    )


def want(ref: str, desired: int, for_jobs: int = 0, **more: Any) -> VersionView:
    return VersionView(ref, desired, need_bytes=100 * MIB, for_jobs=for_jobs, **more)


def plan(*instances: InstanceView, versions: list[VersionView], budget_mib: int = 10_000, **more: Any) -> list[Action]:
    named = {version.ref: version for version in versions}
    snapshot = Snapshot(
        now_s=NOW_S, versions=named, instances=list(instances), memory_budget_bytes=budget_mib * MIB, **more
    )
    return reconcile(snapshot)


YIELDS = Reject("jobs@1", "jobs", "queued jobs wait: calls need the room first")


def blank(name: str, device: str = "cpu") -> InstanceView:
    return InstanceView(name, State.BLANK, devices=(device,), started_at_s=900.0)


def test_calls_get_the_last_blank_before_jobs_do() -> None:
    actions = plan(blank("b"), versions=[want("jobs@1", 2, for_jobs=2), want("calls@1", 1)])
    assert actions[0] == Specialise("b", "calls@1", ("cpu",), "missing")
    assert actions[1:] == [ForkBlank("", "cpu", "wanted")] * 2, "there is room for all"


def test_when_memory_is_full_what_runs_jobs_gives_way_to_calls() -> None:
    working = [ready(f"j{number}", "jobs@1", in_flight=1, age_s=1.0) for number in range(4)]
    versions = [want("jobs@1", 4, for_jobs=4), want("calls@1", 1)]
    assert plan(*working, versions=versions, budget_mib=400) == [
        DrainInstance("j0", "jobs@1", "evict", if_idle=False),
        YIELDS,
    ]


def test_what_calls_are_given_is_not_taken_by_jobs_meanwhile() -> None:
    leaving = InstanceView("j0", State.DRAINING, "jobs@1", memory_bytes=100 * MIB)
    others = [ready(f"j{number}", "jobs@1", in_flight=1) for number in range(1, 4)]
    versions = [want("jobs@1", 4, for_jobs=4), want("calls@1", 1)]
    assert plan(leaving, *others, versions=versions, budget_mib=400) == [YIELDS]


def test_a_backlog_evicts_others_for_its_first_instance_only() -> None:
    idle = ready("i", "calls@1")
    evict = DrainInstance("i", "calls@1", "evict")
    versions = [want("calls@1", 1), want("jobs@1", 4, for_jobs=4)]
    assert plan(idle, versions=versions, budget_mib=100) == [evict]
    actions = plan(idle, ready("j", "jobs@1", in_flight=1), versions=versions, budget_mib=200)
    assert [type(action) for action in actions] == [Reject]


def test_calls_of_a_version_are_served_although_its_jobs_wait() -> None:
    """Of four wanted, three are for jobs: the one for calls may evict, the others may not."""
    idle = [ready("i", "other@1"), ready("k", "other@1")]
    versions = [want("other@1", 0), want("f@1", 4, for_jobs=3)]
    actions = plan(*idle, versions=versions, budget_mib=200)
    assert {type(action) for action in actions} == {DrainInstance, Reject}


def test_a_surplus_that_jobs_keep_busy_finishes_what_it_has() -> None:
    working = [ready("a", "f@1", in_flight=3), ready("b", "f@1", in_flight=1), ready("c", "f@1")]
    drains = [DrainInstance("c", "f@1", "surplus"), DrainInstance("b", "f@1", "surplus", if_idle=False)]
    assert plan(*working, versions=[want("f@1", 1, for_jobs=1)]) == drains
    assert plan(*working, versions=[want("f@1", 1)]) == drains[:1], "calls keep theirs"


def device(number: int, holders: int = 0, free_gib: int = 80, exclusive: bool = False) -> DeviceView:
    return DeviceView(f"cuda:{number}", 80 * GIB, free_gib * GIB, holders=holders, exclusive=exclusive)


def test_a_device_held_for_jobs_comes_free_for_calls() -> None:
    whole = Resources(gpus=1)
    versions = [want("jobs@1", 2, for_jobs=2, resources=whole), want("calls@1", 1, resources=whole)]
    held = [ready("j0", "jobs@1", in_flight=1, devices=("cuda:0",)), ready("j1", "jobs@1", devices=("cuda:1",))]
    devices = [device(0, 1, exclusive=True), device(1, 1, exclusive=True)]
    assert plan(*held, versions=versions, devices=devices) == [DrainInstance("j1", "jobs@1", "evict"), YIELDS]
    calls_only = [want("jobs@1", 2, resources=whole), want("calls@1", 1, resources=whole)]
    assert [type(action) for action in plan(*held, versions=calls_only, devices=devices)] == [Reject]


@given(
    desired=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=1, max_size=4),
    have=st.lists(st.tuples(st.integers(0, 3), st.integers(0, 3)), max_size=8),
    budget=st.integers(1, 10),
)
def test_no_instance_with_a_caller_is_ever_stopped_for_want_of_room(
    desired: list[tuple[int, int]], have: list[tuple[int, int]], budget: int
) -> None:
    versions = [want(f"f{n}@1", total, min(total, jobs)) for n, (total, jobs) in enumerate(desired)]
    instances = [ready(f"i{n}", f"f{ref % len(desired)}@1", in_flight) for n, (ref, in_flight) in enumerate(have)]
    busy = {i.instance_id for i in instances if i.in_flight}
    of_calls = {version.ref for version in versions if not version.for_jobs}
    for action in plan(*instances, versions=versions, budget_mib=100 * budget):
        if isinstance(action, DrainInstance) and action.ref in of_calls:
            assert action.if_idle and action.instance_id not in busy
