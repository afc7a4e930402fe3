"""Which version stands in for another, and that the pool manager may start it."""

from __future__ import annotations

from typing import Any, Literal

import msgspec
import pytest

from samovar.policies import Fallback
from samovar.spec import Manifest, Route, Scaling, stand_in
from samovar_pool.versions import Catalogue
from samovar_storage.records import FunctionRecord
from support.gateway import manifest


def version(number: int, fallback: int | Literal["previous"] | None = None) -> Manifest:
    made = manifest("f", scaling=Scaling(min_instances=1))
    wanted = Fallback(version=fallback) if fallback is not None else None
    return msgspec.structs.replace(made, version=number, fallback=wanted)


def route(**more: Any) -> Route:
    return Route(name="f", shares={"3": 100}, latest=3, **more)


@pytest.mark.parametrize(
    ("wanted", "changes", "found"),
    [
        (None, {"previous": {"2": 100}}, None),
        ("previous", {"previous": {"2": 100}}, 2),
        ("previous", {"previous": {"1": 60, "2": 40}}, 1),
        ("previous", {"previous": {"1": 50, "2": 50}}, 2),
        ("previous", {}, None),
        ("previous", {"previous": {"3": 100}}, None),  # itself
        ("previous", {"previous": {"2": 100}, "rejected": [2]}, None),
        (1, {}, 1),
        (1, {"rejected": [1]}, None),
        (3, {}, None),
    ],
)
def test_who_stands_in(wanted: Any, changes: dict[str, Any], found: int | None) -> None:
    assert stand_in(route(**changes), version(3, wanted)) == found


def test_a_stand_in_may_be_started_but_has_no_floor() -> None:
    catalogue = Catalogue()
    manifests = {"1": version(1), "3": version(3, fallback=1)}
    catalogue.update("f", FunctionRecord(name="f", route=route(), manifests=manifests))
    assert catalogue.versions["f@3"].routed and catalogue.versions["f@1"].routed
    assert (catalogue.versions["f@3"].scaling.min_instances, catalogue.versions["f@1"].scaling.min_instances) == (1, 0)
    assert catalogue.floors == {"f@3"}
