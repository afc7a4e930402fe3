"""How many instances versions have for each other's sake, and when those before may go."""

from __future__ import annotations

import msgspec
import pytest

from samovar.spec import BlobRef, Canary, Manifest, Mirror, Route, Scaling
from samovar_pool.autoscaler import VersionScaler
from samovar_pool.succession import Company, floors, has_come_up
from samovar_pool.versions import Catalogue
from samovar_storage.records import FunctionRecord
from samovar_storage.routes import HOLD_S

MOVED_S = 1000.0


def route(**fields: object) -> Route:
    """Return a route that has moved from version 1 to 2, changed by `fields`."""
    moved = Route(name="f", shares={"2": 100}, latest=2, previous={"1": 100}, moved_at_s=MOVED_S)
    return msgspec.structs.replace(moved, **fields)


@pytest.mark.parametrize(
    ("ready", "age_s", "come_up"),
    [
        ({1: 3, 2: 0}, 1.0, False),
        ({1: 3, 2: 2}, 1.0, False),
        ({1: 3, 2: 3}, 1.0, True),
        ({1: 9, 2: 4}, 1.0, True),  # it may have four
        ({1: 3, 2: 1}, HOLD_S, True),  # it had its time
        ({1: 3, 2: 0}, HOLD_S, False),  # one that does not come up replaces nobody
        ({1: 0, 2: 0}, 1.0, False),
    ],
)
def test_when_those_before_may_go(ready: dict[int, int], age_s: float, come_up: bool) -> None:
    assert has_come_up(route(), Company(ready, {1: 4, 2: 4}), MOVED_S + age_s) == come_up


@pytest.mark.parametrize(
    ("fields", "ready", "is_settled", "expected"),
    [
        ({}, {1: 3}, False, {2: 3}),
        ({}, {1: 9}, False, {2: 4}),
        ({}, {1: 3, 2: 3}, True, {}),
        ({}, {}, False, {}),  # an idle function stays at zero
        ({"canary": Canary(version=3, percent=10)}, {2: 4}, True, {3: 1}),
        ({"canary": Canary(version=3, percent=60)}, {2: 4}, True, {3: 3}),
        ({"canary": Canary(version=3, percent=10)}, {}, True, {}),
        ({"mirror": Mirror(version=3, percent=5)}, {2: 4}, True, {3: 1}),
        ({"mirror": Mirror(version=3, percent=5)}, {3: 1}, True, {}),  # copies keep nothing up
        ({"canary": Canary(version=3, percent=10)}, {1: 4}, False, {2: 4, 3: 1}),
    ],
)
def test_what_is_brought_up_for_others(
    fields: dict[str, object], ready: dict[int, int], is_settled: bool, expected: dict[int, int]
) -> None:
    assert floors(route(**fields), Company(ready, dict.fromkeys((1, 2, 3), 4)), is_settled) == expected


def test_what_serves_keeps_its_least_until_it_is_succeeded() -> None:
    company = Company({1: 2}, {1: 4, 2: 4}, least={1: 2, 2: 2})
    assert floors(route(), company, is_settled=False) == {1: 2, 2: 2}
    assert floors(route(), company, is_settled=True) == {}


def record(route: Route) -> FunctionRecord:
    code, scaling = BlobRef(sha256="0" * 64, size_bytes=1), Scaling(min_instances=2)
    facts = {"name": "f", "entry": "app:f", "kind": "function", "handler": "sync", "code": code, "scaling": scaling}
    manifests = {str(v): msgspec.convert({**facts, "version": v}, Manifest) for v in route.receiving()}
    return FunctionRecord(name="f", route=route, manifests=manifests)


def test_the_catalogue_keeps_those_before_until_their_successor_is_up() -> None:
    catalogue = Catalogue()
    catalogue.update("f", record(Route(name="f", shares={"1": 100}, latest=1)))
    assert catalogue.rolling == {}
    assert [v.ref for v in catalogue.update("f", record(route()))] == ["f@2"]
    assert catalogue.floors == {"f@1", "f@2"} and catalogue.rolling.keys() == {"f"}
    catalogue.settle("f")
    assert catalogue.floors == {"f@2"} and catalogue.rolling == {} and not catalogue.versions["f@1"].routed
    with_canary = route(canary=Canary(version=3, percent=10))
    assert [v.ref for v in catalogue.update("f", record(with_canary))] == ["f@3"]
    assert catalogue.floors == {"f@2"}, "a canary has no floor of its own, and what was settled stays settled"
    again = route(moved_at_s=MOVED_S + 1, previous={"2": 100}, shares={"1": 100})
    catalogue.update("f", record(again))
    assert catalogue.floors == {"f@1", "f@2"}, "another move is another matter"
    catalogue.update("f", None)
    assert catalogue.rolling == {} and catalogue.is_deleted("f@1")


def test_what_is_brought_up_for_others_waits_a_quiet_window_for_its_calls() -> None:
    scaler, scaling = VersionScaler(100.0), Scaling(max_instances=3, scale_down_window_s=5.0)
    scaler.observe(100.0, 0.0)
    first = scaler.decide(100.0, scaling, 1.0, ready=0, starting=0, following=4)
    assert (first.target, first.rule) == (3, "rollout")
    scaler.observe(101.0, 0.0)
    assert scaler.decide(101.0, scaling, 1.0, ready=3, starting=0).target == 3, "its forerunner has just been left"
    scaler.observe(104.0, 0.0)
    assert scaler.decide(104.0, scaling, 1.0, ready=3, starting=0).target == 3
    scaler.observe(107.0, 0.0)
    assert scaler.decide(107.0, scaling, 1.0, ready=3, starting=0).target == 0, "nobody came"
    assert scaler.decide(107.0, scaling, 1.0, ready=0, starting=0, warm=2, following=1).rule == "warm"


def test_a_new_manager_does_not_bring_up_what_was_before() -> None:
    catalogue = Catalogue()
    assert [v.ref for v in catalogue.update("f", record(route()))] == ["f@2"]
    assert catalogue.floors == {"f@2"} and not catalogue.versions["f@1"].routed, "known, should it still run"
