"""What a version wishes for beside its calls, and the pure parts that carry it out."""

from __future__ import annotations

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from samovar import errors
from samovar.policies import Cache, Cached, Fallback
from samovar_dispatch.answers import fallbacks
from samovar_dispatch.answers.fallbacks import falls_back, is_shared, recipe_of, reserve_s
from samovar_dispatch.answers.shelf import OVERHEAD_BYTES, Shelf
from samovar_dispatch.answers.single_flight import Flights
from samovar_storage.answers import Answer
from support.gateway import manifest


def test_most_versions_wish_for_nothing() -> None:
    assert recipe_of(manifest()) is None


def test_links_come_in_the_documented_order() -> None:
    recipe = recipe_of(
        manifest(fallback=Fallback(value={"a": 1}, function="small", version="previous", cached=Cached()))
    )
    assert recipe is not None
    assert recipe.links == ("cached", "version", "function", "value")
    assert (recipe.function, recipe.value) == ("small", b'{"a":1}')
    only_value = recipe_of(manifest(fallback=Fallback(value=0)))
    assert only_value is not None and only_value.links == ("value",)


def test_streams_are_never_kept() -> None:
    streaming = manifest(handler="generator", cache=Cache(ttl_s=1), fallback=Fallback(cached=Cached(), value=1))
    recipe = recipe_of(streaming)
    assert recipe is not None
    assert (recipe.fresh, recipe.stale, recipe.links) == (None, None, ("value",))
    assert recipe_of(manifest(handler="generator", cache=Cache(ttl_s=1))) is None


def test_a_fresh_answer_is_of_one_version_a_stale_one_of_any() -> None:
    made = manifest(cache=Cache(ttl_s=5.0), fallback=Fallback(cached=Cached(max_stale_s=9.0)))
    one, two = (recipe_of(msgspec.structs.replace(made, version=version)) for version in (1, 2))
    assert one is not None and two is not None and one.fresh and two.fresh and one.stale and two.stale
    assert one.fresh.prefix != two.fresh.prefix
    assert one.stale.prefix == two.stale.prefix
    assert (one.fresh.lifetime_s, one.stale.lifetime_s) == (5.0, 9.0)


def test_the_declared_key_is_part_of_whose_answer_it_is() -> None:
    a, b = (recipe_of(manifest(cache=Cache(ttl_s=1, key=key))) for key in ([], ["$.a"]))
    assert a is not None and b is not None and a.fresh is not None and b.fresh is not None
    assert a.fresh.prefix != b.fresh.prefix


@pytest.mark.parametrize("cls", errors._walk(errors.SamovarError))
def test_only_what_is_no_fault_of_the_caller_falls_back(cls: type[errors.SamovarError]) -> None:
    assert falls_back(cls("no")) == (cls.status >= 500 and cls is not errors.Draining)


@pytest.mark.parametrize(
    ("error", "whole", "by_path"),
    [
        (errors.FunctionRaised("no"), True, True),
        (errors.InstanceLost("no"), True, True),
        (errors.InvalidInput("no"), True, False),
        (errors.DeadlineExceeded("no"), False, False),
        (errors.QueueFull("no"), False, False),
        (errors.BreakerOpen("no"), False, False),
        (errors.RateLimited("no"), False, False),
    ],
)
def test_which_failure_is_everybodys(error: errors.SamovarError, whole: bool, by_path: bool) -> None:
    for key, expected in (([], whole), (["$.a"], by_path)):
        recipe = recipe_of(manifest(cache=Cache(ttl_s=1, key=key)))
        assert recipe is not None and recipe.fresh is not None
        assert is_shared(error, recipe.fresh) == expected


@pytest.mark.parametrize(
    ("links", "remaining_s", "reserved_s"),
    [((), 10.0, 0.0), (("version", "function"), 10.0, 0.0), (("value",), 10.0, 0.06), (("cached",), 0.1, 0.01)],
)
def test_time_is_reserved_for_links_that_answer_at_once(
    links: tuple[fallbacks.Link, ...], remaining_s: float, reserved_s: float
) -> None:
    assert reserve_s(links, remaining_s) == pytest.approx(reserved_s)


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (errors.FunctionRaised("no"), b"samovar; fwd=stale; fwd-status=500; detail=function_raised"),
        (errors.InstanceLost("no"), b"samovar; fwd=stale; detail=instance_lost"),
        (errors.DeadlineExceeded("no", phase="run"), b"samovar; fwd=stale; detail=deadline_exceeded"),
        (errors.DeadlineExceeded("no", phase="queue"), b"samovar; hit; ttl=-7; detail=deadline_exceeded"),
        (errors.BreakerOpen("no"), b"samovar; hit; ttl=-7; detail=breaker_open"),
        (errors.LoadFailed("no"), b"samovar; hit; ttl=-7; detail=load_failed"),
    ],
)
def test_cache_status_says_whether_the_call_went_out(error: errors.SamovarError, status: bytes) -> None:
    headers = dict(fallbacks.stale_headers("3", 7.9, error))
    assert headers[b"cache-status"] == status
    assert (headers[b"age"], headers[b"samovar-version"], headers[b"samovar-fallback"]) == (b"7", b"3", b"cached")


def test_a_fresh_hit_says_how_long_it_stays_so() -> None:
    assert dict(fallbacks.fresh_headers("3", 2.2, 10.0))[b"cache-status"] == b"samovar; hit; ttl=7"


# ---- single flight ---------------------------------------------------------------------------------------------


def test_one_leads_the_others_follow() -> None:
    flights: Flights[str] = Flights()
    assert flights.join("k", "a") and not flights.join("k", "b") and not flights.join("k", "c")
    assert flights.join("other", "x")
    flights.leave("k", "b")
    flights.leave("k", "b")
    assert flights.size("k") == 2
    assert flights.land("k") == ["c"]
    assert flights.size("k") == 0 and flights.join("k", "d")


def test_a_leader_that_is_out_hands_over_to_the_longest_waiting() -> None:
    flights: Flights[str] = Flights()
    for member in "abc":
        flights.join("k", member)
    assert flights.hand_over("k") == "b"
    assert flights.land("k") == ["c"]
    flights.join("k", "z")
    assert flights.hand_over("k") is None and flights.size("k") == 0


# ---- the shelf -------------------------------------------------------------------------------------------------


def answer(num_bytes: int = 0, version: str = "1") -> Answer:
    return Answer(b"x" * num_bytes, "application/json", version, 0.0)


def test_the_least_recently_used_leaves_first() -> None:
    shelf = Shelf(2, 1 << 20)
    shelf.put("f:a", answer())
    shelf.put("f:b", answer())
    assert shelf.get("f:a") is not None
    shelf.put("f:c", answer())
    assert [key for key in ("f:a", "f:b", "f:c") if shelf.get(key)] == ["f:a", "f:c"]


def test_a_function_is_dropped_alone() -> None:
    shelf = Shelf(10, 1 << 20)
    for key in ("f:a", "f:b", "ff:a"):
        shelf.put(key, answer(10))
    shelf.drop_function("f")
    assert (len(shelf), shelf.num_bytes) == (1, 10 + OVERHEAD_BYTES)


@given(st.lists(st.tuples(st.sampled_from("abcdefgh"), st.integers(0, 3000)), max_size=60))
def test_caps_hold_whatever_is_put(puts: list[tuple[str, int]]) -> None:
    shelf = Shelf(5, 6000)
    sizes: dict[str, int] = {}
    for key, num_bytes in puts:
        shelf.put(key, answer(num_bytes))
        sizes[key] = num_bytes + OVERHEAD_BYTES
        held = [key for key in sizes if shelf._answers.get(key)]
        assert len(shelf) == len(held) <= 5
        assert shelf.num_bytes == sum(sizes[key] for key in held) <= 6000
