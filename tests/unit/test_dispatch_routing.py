"""Which version answers: shares and canaries as asked, callers who stick, and nobody sent to what is not ready."""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samovar.spec import Canary, Route
from samovar_dispatch.routing import Plan, choose, cumulative, pick, place, plan_of, settled
from samovar_storage.routes import HOLD_S

MOST = dict.fromkeys(range(1, 10), 8)
PLACES = [(n + 0.5) / 1000 for n in range(1000)]


def plan(shares: dict[str, int], previous: dict[str, int] | None = None, canary: tuple[int, int] | None = None) -> Plan:
    """Return the plan of a route that moved at second 1000. canary: version, percent."""
    trial = Canary(version=canary[0], percent=canary[1]) if canary else None
    route = Route(name="f", shares=shares, latest=9, previous=previous or {}, canary=trial, moved_at_s=1000.0)
    found = plan_of(route, MOST.keys(), MOST)
    assert found is not None
    return found


def spread(plan: Plan, ready: dict[int, int], now_s: float = 1001.0) -> dict[int, int]:
    """Return version → calls, of a thousand spread evenly."""
    return dict(Counter(choose(plan, lambda version: ready.get(version, 0), u, now_s) for u in PLACES))


@given(st.dictionaries(st.integers(1, 9).map(str), st.integers(0, 100), min_size=1).filter(lambda s: any(s.values())))
def test_traffic_follows_the_shares(shares: dict[str, int]) -> None:
    bounds = cumulative(shares)
    total = sum(shares.values())
    seen = Counter(pick(bounds, (n + 0.5) / total) for n in range(total))
    assert seen == {int(version): share for version, share in shares.items() if share}


@pytest.mark.parametrize(
    ("ready", "now_s", "expected"),
    [
        ({1: 4}, 1001.0, {1: 1000}),  # nobody ready of the new one: the old one serves, for as long as it takes
        ({1: 4}, 1e9, {1: 1000}),
        ({1: 4, 2: 1}, 1001.0, {1: 750, 2: 250}),
        ({1: 4, 2: 4}, 1001.0, {2: 1000}),
        ({1: 4, 2: 1}, 1000.0 + HOLD_S, {2: 1000}),  # it had its time to come up as wide
        ({1: 99, 2: 8}, 1001.0, {2: 1000}),  # wider than it may be is not asked for
        ({2: 1}, 1001.0, {2: 1000}),
        ({}, 1001.0, {2: 1000}),  # nobody is ready at all: the new one starts cold
    ],
)
def test_a_successor_takes_over_as_it_comes_up(ready: dict[int, int], now_s: float, expected: dict[int, int]) -> None:
    assert spread(plan({"2": 100}, {"1": 100}), ready, now_s) == expected


def test_a_canary_gets_its_percent_once_it_is_ready() -> None:
    trial = plan({"1": 100}, canary=(2, 10))
    assert spread(trial, {1: 3}) == {1: 1000}
    assert spread(trial, {1: 3, 2: 1}) == {1: 900, 2: 100}
    assert trial.only == 0 and plan({"1": 100}).only == 1


def test_stable_shares_keep_their_proportion_beside_a_canary() -> None:
    seen = spread(plan({"1": 50, "3": 50}, canary=(4, 20)), {1: 1, 3: 1, 4: 1})
    assert seen[4] == 200 and abs(seen[1] - seen[3]) < 100


def test_what_was_before_is_forgotten_only_when_the_successor_serves_all() -> None:
    moving = plan({"2": 100}, {"1": 100})
    for ready in ({1: 1}, {1: 4, 2: 1}, {}):
        assert settled(moving, lambda v, r=ready: r.get(v, 0), 1001.0) is moving  # type: ignore[misc]
    done = settled(moving, lambda v: {1: 4, 2: 4}[v], 1001.0)
    assert done.only == 2 and spread(done, {1: 4}) == {2: 1000}


def test_an_unknown_version_gets_nothing() -> None:
    route = Route(name="f", shares={"1": 50, "2": 50}, latest=2, canary=Canary(version=3, percent=50))
    found = plan_of(route, {1}, MOST)
    assert found is not None and (found.only, found.canary) == (1, 0)
    assert plan_of(route, {7}, MOST) is None


@given(st.text(max_size=20), st.integers(1, 98), st.integers(1, 98), st.integers(0, 4))
def test_a_caller_moves_to_the_new_version_once(caller: str, first: int, second: int, num_new: int) -> None:
    u = place("f@2", caller)
    ready = {1: 4, 2: max(1, num_new)}
    low, high = sorted((first, second))
    on_low = choose(plan({"1": 100}, canary=(2, low)), ready.__getitem__, u, 1001.0)
    on_high = choose(plan({"1": 100}, canary=(2, high)), ready.__getitem__, u, 1001.0)
    assert (on_low, on_high) != (2, 1)
    promoted = choose(plan({"2": 100}, {"1": 100}), {1: 4, 2: 4}.__getitem__, u, 1001.0)
    assert promoted == 2


def test_callers_are_spread_evenly_and_the_same_everywhere() -> None:
    places = [place("f@2", f"caller-{n}") for n in range(4000)]
    assert place("f@2", "caller-7") == places[7] and place("f@3", "caller-7") != places[7]
    assert all(0.0 <= u < 1.0 for u in places)
    assert 300 < sum(u < 0.1 for u in places) < 500
    route = plan({"1": 50, "3": 50}, canary=(2, 10))
    seen = Counter(choose(route, lambda _: 1, u, 1001.0) for u in places)
    assert 300 < seen[2] < 500 and abs(seen[1] - seen[3]) < 400
