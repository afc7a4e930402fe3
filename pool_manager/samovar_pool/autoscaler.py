"""How many instances a version should have: stable and panic windows over demand, after Knative's KPA.

What differs from KPA, and why: the newest sample counts towards panic, because demand here is exact and pushed, not
scraped; short of panic, growth follows the 6 s mean and only shrinking the 60 s one; instances that are starting count
at full capacity, so a slow boot is not answered with more of them; shrinking waits for a full quiet window; growth per
second is capped; a missing sample repeats the last one and never shrinks.
This module does not know Redis, processes or the clock: `now_s` is passed in.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass, field, replace

from samovar.spec import Scaling

STABLE_WINDOW_S = 60.0
PANIC_WINDOW_S = 6.0
PANIC_THRESHOLD = 2.0  # panic when the need is this many times the capacity
STEP_S = 1.0
MAX_STEP = 10  # instances a second that growth may always add; beyond it, capacity at most doubles
_EPSILON = 1e-6
_COALESCE_S = 0.05


class StepWindow:
    """A quantity over time as a step function: each value holds until the next. Keeps `keep_s` seconds."""

    def __init__(self, keep_s: float) -> None:
        self._keep_s = keep_s
        self._steps: deque[tuple[float, float]] = deque()

    def add(self, now_s: float, value: float) -> None:
        """Record that the quantity is `value` from `now_s` on. Times never go back."""
        steps = self._steps
        if steps and steps[-1][1] == value:
            self._prune(now_s)
            return
        if steps and now_s - steps[-1][0] < _COALESCE_S and value >= steps[-1][1]:
            steps[-1] = (steps[-1][0], value)
        else:
            steps.append((now_s, value))
        self._prune(now_s)

    def last(self) -> float:
        """Return the newest value, 0 before the first."""
        return self._steps[-1][1] if self._steps else 0.0

    def mean(self, now_s: float, window_s: float) -> float:
        """Return the time-weighted mean over the last `window_s` seconds, or over what is known if that is less."""
        area, right, start = 0.0, now_s, now_s - window_s
        for at_s, value in reversed(self._steps):
            left = max(at_s, start)
            area += value * (right - left)
            right = left
            if at_s <= start:
                break
        covered = now_s - right
        return area / covered if covered > _EPSILON else self.last()

    def peak(self, now_s: float, window_s: float) -> float:
        """Return the largest value held at any moment of the last `window_s` seconds."""
        largest, start = 0.0, now_s - window_s
        for at_s, value in reversed(self._steps):
            largest = max(largest, value)
            if at_s <= start:
                break
        return largest

    def _prune(self, now_s: float) -> None:
        while len(self._steps) > 1 and self._steps[1][0] <= now_s - self._keep_s:
            self._steps.popleft()


@dataclass(frozen=True, slots=True)
class LoadSnapshot:
    """What the rules look at.

    demand: queued + running now, >= 0. stable_mean, panic_mean: its means over 60 s and 6 s. known: False when demand
    is only the last known value. ready, starting: instances. quiet_s: seconds since the last demand or since the first
    instance was ready, whichever came later. wanted_peak: most instances wanted within the scale-down window.
    panic_floor: instances that the running panic asked for, 0 when calm. step_base: capacity when this second
    began. warm: instances a warm request asks for.
    """

    demand: float
    stable_mean: float
    panic_mean: float
    ready: int
    starting: int
    quiet_s: float
    known: bool = True
    wanted_peak: int = 0
    panic_floor: int = 0
    step_base: int = 0
    warm: int = 0


@dataclass(frozen=True, slots=True)
class ScaleDecision:
    """target: instances. rule: what decided. inputs: the numbers it saw.

    wanted: the need before quiet window and bounds. panic: whether the need is at or beyond the panic threshold.
    for_jobs: how many of the target are there for queued jobs alone.
    """

    target: int
    rule: str
    wanted: int
    panic: bool
    inputs: dict[str, float] = field(default_factory=dict)
    for_jobs: int = 0


def desired_instances(load: LoadSnapshot, scaling: Scaling, target_concurrency: float) -> ScaleDecision:
    """Return how many instances the version should have now, and why.

    Args:
        load: demand, its means, instances by state.
        scaling: bounds and windows.
        target_concurrency: invocations per instance aimed at, > 0.
    Returns: a target within [min_instances, max_instances], the rule that decided, and its inputs for the log.
    Source: Knative KPA, stable and panic windows.
    """
    capacity = load.ready + load.starting
    urgent = _instances_for(max(load.panic_mean, load.demand), target_concurrency)
    steady = _instances_for(load.stable_mean, target_concurrency)
    panic = urgent >= 1 and urgent >= PANIC_THRESHOLD * capacity
    if panic or load.panic_floor:
        wanted, rule = max(urgent, steady, load.panic_floor), "panic" if capacity else "cold"
    else:
        recent = _instances_for(load.panic_mean, target_concurrency)
        wanted, rule = max(steady, recent, 1 if load.demand > 0 else 0), "stable"
    if load.demand == 0:
        wanted = min(wanted, capacity)  # means remember; only somebody who waits now is a reason to start more
    target, rule = _grow_or_shrink(load, scaling, capacity, wanted, rule)
    target, rule = _bound(load, scaling, target, rule)
    inputs = {
        "demand": load.demand,
        "stable_mean": round(load.stable_mean, 3),
        "panic_mean": round(load.panic_mean, 3),
        "target_concurrency": target_concurrency,
        "ready": load.ready,
        "starting": load.starting,
        "quiet_s": round(min(load.quiet_s, 1e6), 1),
    }
    return ScaleDecision(target, rule, wanted, panic, inputs)


def _instances_for(demand: float, target_concurrency: float) -> int:
    return math.ceil(demand / target_concurrency - _EPSILON)


def _grow_or_shrink(load: LoadSnapshot, scaling: Scaling, capacity: int, wanted: int, rule: str) -> tuple[int, str]:
    """Return the target before bounds: growth step-capped, shrinking only after a full quiet window."""
    if wanted > capacity:
        cap = max(2 * load.step_base, load.step_base + MAX_STEP)
        return (cap, "step") if wanted > cap else (wanted, rule)
    if not load.known:
        return capacity, "no_data"
    if load.demand == 0 and load.ready == 0 and load.starting:
        return capacity, "boot"
    if load.demand == 0 and load.quiet_s >= scaling.scale_down_window_s:
        return 0, "idle"
    held = min(max(wanted, load.wanted_peak, 1 if capacity else 0), capacity)
    return held, "hold" if held > wanted else rule


def _bound(load: LoadSnapshot, scaling: Scaling, target: int, rule: str) -> tuple[int, str]:
    """Add the buffer while there is any demand, then apply floor and ceiling."""
    if scaling.buffer_instances and (load.demand > 0 or load.quiet_s < scaling.scale_down_window_s):
        wanted = load.wanted_peak if rule == "hold" else target
        target, rule = max(target, wanted + scaling.buffer_instances), "buffer"
    floor = min(max(scaling.min_instances, load.warm), scaling.max_instances)
    if target < floor:
        return floor, "warm" if load.warm >= floor > scaling.min_instances else "floor"
    if target > scaling.max_instances:
        return scaling.max_instances, "ceiling"
    return target, rule


class VersionScaler:
    """The memory of one version between decisions: its windows, its panic, its growth step. No I/O."""

    def __init__(self, now_s: float) -> None:
        self._demand = StepWindow(STABLE_WINDOW_S)
        self._wanted = StepWindow(3600.0)
        self._calls = StepWindow(3600.0)
        self._jobs = StepWindow(3600.0)
        self._last_demand_at_s = now_s
        self._first_ready_at_s: float | None = None
        self._panic_until_s = -math.inf
        self._panic_floor = 0
        self._step = (now_s - STEP_S, 0)
        self._known = True

    def observe(self, now_s: float, demand: float | None, jobs: float = 0.0) -> None:
        """Record the demand at `now_s` (>= 0), or None when it could not be learned: then the last one holds.

        jobs: how much of it is that of queued jobs.
        """
        self._known = demand is not None
        value = self._demand.last() if demand is None else demand
        if demand is not None:
            self._calls.add(now_s, demand - jobs)
            self._jobs.add(now_s, jobs)
        if value > 0:
            self._last_demand_at_s = now_s
        self._demand.add(now_s, value)

    def demand(self) -> float:
        """Return the newest known demand."""
        return self._demand.last()

    def mean_demand(self, now_s: float) -> float:
        """Return the mean demand over the stable window."""
        return self._demand.mean(now_s, STABLE_WINDOW_S)

    def is_quiet(self, now_s: float) -> bool:
        """Return whether nothing has been wanted for so long that this memory may be dropped."""
        return self._demand.last() == 0 and now_s - self._last_demand_at_s > STABLE_WINDOW_S + PANIC_WINDOW_S

    def decide(
        self,
        now_s: float,
        scaling: Scaling,
        target_concurrency: float,
        ready: int,
        starting: int,
        warm: int = 0,
        following: int = 0,
        job_cap: int = 1,
    ) -> ScaleDecision:
        """Return the decision at `now_s` and remember what later ones need (panic floor, wanted, growth step).

        following: instances needed for other versions' sake; they count as wanted, so that the calls which come over
        find them for a full quiet window. job_cap: instances that queued jobs alone may have, >= 1.
        """
        load = self._load(now_s, scaling, ready, starting, max(warm, following))
        decision = desired_instances(load, scaling, target_concurrency)
        if decision.rule == "warm" and following > warm:
            decision = replace(decision, rule="rollout")
        floor = min(max(scaling.min_instances, warm, following), scaling.max_instances)
        decision = self._told_apart(decision, now_s, scaling, target_concurrency, floor, job_cap)
        self._wanted.add(now_s, max(decision.wanted, min(following, scaling.max_instances)))
        if decision.panic:
            self._panic_until_s = now_s + STABLE_WINDOW_S
            self._panic_floor = max(self._panic_floor, min(decision.wanted, scaling.max_instances))
        return decision

    def _told_apart(
        self,
        decision: ScaleDecision,
        now_s: float,
        scaling: Scaling,
        target_concurrency: float,
        floor: int,
        job_cap: int,
    ) -> ScaleDecision:
        """Say how many instances are there for jobs alone, and, without calls for a full window, cap these.

        What calls need is their peak within the window, as long as instances are held for them.
        """
        window_s = scaling.scale_down_window_s
        if not self._jobs.peak(now_s, window_s):
            return decision
        called = _instances_for(self._calls.peak(now_s, window_s), target_concurrency)
        if called:
            called += scaling.buffer_instances
        elif decision.target > max(job_cap, floor):
            decision = replace(decision, target=max(job_cap, floor), rule="jobs_cap")
        return replace(decision, for_jobs=max(0, decision.target - max(called, floor)))

    def _load(self, now_s: float, scaling: Scaling, ready: int, starting: int, warm: int) -> LoadSnapshot:
        quiet_s = self._quiet_s(now_s, ready)
        demand = self._demand.last()
        if now_s >= self._panic_until_s or (demand == 0 and quiet_s >= scaling.scale_down_window_s):
            self._panic_floor = 0
        if now_s - self._step[0] >= STEP_S:
            self._step = (now_s, ready + starting)
        return LoadSnapshot(
            demand=demand,
            stable_mean=self._demand.mean(now_s, STABLE_WINDOW_S),
            panic_mean=self._demand.mean(now_s, PANIC_WINDOW_S),
            ready=ready,
            starting=starting,
            quiet_s=quiet_s,
            known=self._known,
            wanted_peak=int(self._wanted.peak(now_s, scaling.scale_down_window_s)),
            panic_floor=self._panic_floor,
            step_base=self._step[1],
            warm=warm,
        )

    def _quiet_s(self, now_s: float, ready: int) -> float:
        """Seconds of quiet; the idle clock starts at first ready, so that a slow boot is not reaped on arrival."""
        if ready == 0:
            self._first_ready_at_s = None
            return now_s - self._last_demand_at_s
        if self._first_ready_at_s is None:
            self._first_ready_at_s = now_s
        return now_s - max(self._last_demand_at_s, self._first_ready_at_s)
