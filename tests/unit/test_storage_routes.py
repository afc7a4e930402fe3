"""What can be done to a route: a table of commands, and invariants over any sequence of them."""

from __future__ import annotations

from collections.abc import Callable

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from samovar.errors import Conflict, InvalidInput, SamovarError, VersionRejected
from samovar.spec import Route
from samovar_storage import routes
from samovar_storage.routes import Author, Trial

AUTHOR = Author("key-1", 100.0)
TEN = Trial(percent=10)


def route_of(num_versions: int, **fields: object) -> Route:
    """Return the route of a function deployed so many times."""
    route = None
    for version in range(1, num_versions + 1):
        route = routes.deployed(route, "f", version, AUTHOR)
    assert route is not None
    return msgspec.structs.replace(route, **fields)


def test_a_rollout_step_by_step() -> None:
    route = route_of(1)
    assert (route.shares, route.previous, route.latest) == ({"1": 100}, {}, 1)
    route = routes.deployed(route, "f", 2, AUTHOR, Trial(percent=10, auto=True, bake_s=60))
    assert route.shares == {"1": 100} and route.canary is not None
    assert (route.canary.version, route.canary.percent, route.canary.started_at_s) == (2, 10, 100.0)
    route = routes.canaried(route, None, Trial(percent=50), AUTHOR)
    assert route.canary is not None and (route.canary.version, route.canary.percent) == (2, 50)
    assert (route.canary.auto, route.canary.bake_s) == (True, 60), "another percent of a trial keeps its terms"
    route = routes.promoted(route, AUTHOR)
    assert (route.shares, route.previous, route.canary) == ({"2": 100}, {"1": 100}, None)
    assert route.moved_at_s == 100.0
    route = routes.rolled_back(route, AUTHOR)
    assert (route.shares, route.rejected) == ({"1": 100}, [2])
    assert route.previous == {"2": 100}, "what was just rejected serves until its successor is ready"
    assert [change.what for change in route.history] == ["rollback", "promote", "canary", "canary", "deploy"]
    assert {change.by for change in route.history} == {"key-1"}


def test_canary_rollback_new_canary_never_leaks_to_the_rejected_one() -> None:
    # kserve#2130
    route = routes.canaried(route_of(1), 2, TEN, AUTHOR)
    route = routes.rolled_back(route, AUTHOR)
    assert (route.shares, route.canary, route.rejected) == ({"1": 100}, None, [2])
    route = routes.deployed(msgspec.structs.replace(route, latest=2), "f", 3, AUTHOR, TEN)
    assert 2 not in route.receiving() and routes.targets(route) == {1, 3}
    for command in (
        lambda: routes.canaried(route, 2, TEN, AUTHOR),
        lambda: routes.pinned(route, 2, AUTHOR),
        lambda: routes.mirrored(route, 2, 5, AUTHOR),
        lambda: routes.rolled_back(route, AUTHOR, to=2),
        lambda: routes.check(msgspec.structs.replace(route, shares={"2": 100})),
    ):
        with pytest.raises(VersionRejected):
            command()


def test_a_version_that_never_came_up_is_not_what_was_before() -> None:
    route = route_of(1)
    route = routes.deployed(route, "f", 2, Author("k", 1.0, ready={1}))
    route = routes.deployed(route, "f", 3, Author("k", 2.0, ready={1}))
    assert route.previous == {"1": 100}, "1 still serves: 2 has nobody ready"
    assert routes.deployed(route, "f", 4, Author("k", 3.0, ready={1, 3})).previous == {"3": 100}
    assert routes.deployed(route, "f", 4, Author("k", 3.0)).previous == {"3": 100}, "nothing is ready: as routed"


def test_a_pin_keeps_the_traffic_where_it_is() -> None:
    route = routes.pinned(route_of(3), 2, AUTHOR)
    assert (route.shares, route.pinned) == ({"2": 100}, 2)
    later = routes.deployed(route, "f", 4, AUTHOR)
    assert (later.shares, later.latest) == ({"2": 100}, 4)
    with pytest.raises(Conflict, match="pinned"):
        routes.canaried(later, 4, TEN, AUTHOR)
    with pytest.raises(Conflict, match="pinned"):
        routes.deployed(later, "f", 5, AUTHOR, TEN)
    assert routes.rolled_back(later, AUTHOR, to=1).pinned is None, "what is rejected holds no traffic"
    free = routes.unpinned(later, AUTHOR)
    assert routes.deployed(free, "f", 5, AUTHOR).shares == {"5": 100}
    with pytest.raises(Conflict):
        routes.unpinned(free, AUTHOR)


def test_a_mirror_ends_when_its_version_has_all_traffic() -> None:
    mirrors = routes.deployed(route_of(1), "f", 2, AUTHOR, mirror=5)
    tried = routes.canaried(mirrors, 2, TEN, AUTHOR)
    assert tried.mirror is not None, "most calls are answered by version 1"
    for ended in (routes.promoted(tried, AUTHOR), routes.pinned(mirrors, 2, AUTHOR)):
        assert (ended.shares, ended.mirror) == ({"2": 100}, None)
        assert routes.undone(ended, AUTHOR).mirror == mirrors.mirror


def test_what_cannot_be_done_says_why() -> None:
    fresh = route_of(1)
    cases: list[tuple[type[SamovarError], Callable[[], Route]]] = [
        (Conflict, lambda: routes.promoted(fresh, AUTHOR)),
        (Conflict, lambda: routes.rolled_back(fresh, AUTHOR)),
        (Conflict, lambda: routes.rolled_back(fresh, AUTHOR, to=1)),
        (Conflict, lambda: routes.undone(fresh, AUTHOR)),
        (Conflict, lambda: routes.canaried(fresh, 1, TEN, AUTHOR)),
        (Conflict, lambda: routes.mirrored(fresh, None, 0, AUTHOR)),
        (Conflict, lambda: routes.mirrored(fresh, 1, 5, AUTHOR)),
        (InvalidInput, lambda: routes.canaried(fresh, 2, Trial(percent=100), AUTHOR)),
        (InvalidInput, lambda: routes.canaried(fresh, 2, Trial(percent=5, bake_s=0), AUTHOR)),
        (InvalidInput, lambda: routes.canaried(fresh, 2, Trial(percent=5, sticky="cookie"), AUTHOR)),
        (InvalidInput, lambda: routes.mirrored(fresh, 2, 101, AUTHOR)),
    ]
    for error, command in cases:
        with pytest.raises(error):
            command()


def test_a_judgement_on_another_canary_changes_nothing() -> None:
    judged = routes.canaried(route_of(1), 2, TEN, AUTHOR)
    moved = routes.canaried(judged, 3, TEN, Author("k", 200.0))
    commands: list[Callable[[Route], Route]] = [
        lambda route: routes.promoted(route, AUTHOR, expected=judged.canary),
        lambda route: routes.rolled_back(route, AUTHOR, expected=judged.canary),
    ]
    for command in commands:
        with pytest.raises(Conflict, match="meanwhile"):
            command(moved)
        assert command(judged).canary is None


def test_a_late_deploy_takes_nothing_from_a_newer_one() -> None:
    newer = routes.deployed(route_of(1), "f", 3, AUTHOR)
    assert routes.deployed(newer, "f", 2, AUTHOR) == newer


COMMANDS: list[Callable[[Route, int, Author], Route]] = [
    lambda route, n, author: routes.deployed(route, "f", route.latest + 1, author),
    lambda route, n, author: routes.deployed(route, "f", route.latest + 1, author, Trial(percent=1 + n * 9)),
    lambda route, n, author: routes.deployed(route, "f", route.latest + 1, author, None, 5 * n),
    lambda route, n, author: routes.canaried(
        route, n % route.latest + 1, Trial(percent=1 + n * 9, sticky="key"), author
    ),
    lambda route, n, author: routes.promoted(route, author),
    lambda route, n, author: routes.rolled_back(route, author, None if n < 5 else n % route.latest + 1),
    lambda route, n, author: routes.pinned(route, n % route.latest + 1, author),
    lambda route, n, author: routes.unpinned(route, author),
    lambda route, n, author: routes.mirrored(route, n % route.latest + 1, 10 * n, author),
    lambda route, n, author: routes.undone(route, author),
]
RESTORED = ("shares", "mirror", "pinned", "rejected", "sticky")


@given(
    st.lists(st.tuples(st.integers(0, len(COMMANDS) - 1), st.integers(0, 10), st.sets(st.integers(1, 6))), max_size=40)
)
def test_any_sequence_of_commands_keeps_the_rules(steps: list[tuple[int, int, set[int]]]) -> None:
    route = route_of(1)
    for at, (number, n, ready) in enumerate(steps):
        before = route
        author = Author("k", 101.0 + at, ready)
        try:
            route = COMMANDS[number](route, n, author)
        except (Conflict, InvalidInput):
            continue
        routes.check(route)
        assert sum(route.shares.values()) == 100
        assert not routes.targets(route) & set(route.rejected)
        assert sum(route.previous.values()) <= 100 and route.previous.keys() != route.shares.keys()
        assert len(route.history) <= routes.MAX_HISTORY
        if route.history and before.history != route.history and route.history[0].shares:
            undone = routes.undone(route, Author("k", 102.0 + at))
            assert [getattr(undone, name) for name in RESTORED] == [getattr(before, name) for name in RESTORED]
            assert (undone.canary and undone.canary.version) == (before.canary and before.canary.version)
            again = routes.undone(undone, Author("k", 103.0 + at))
            assert [getattr(again, name) for name in RESTORED] == [getattr(route, name) for name in RESTORED]
