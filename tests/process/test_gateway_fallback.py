"""Fallback chains and caches through a real gateway: whose answer comes, how it is marked, and who is called."""

from __future__ import annotations

import itertools
import json
import random
import re
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis as redis_sync

from samovar.policies import Breaker, Cache, Cached, Fallback
from samovar.spec import Limits
from samovar_storage import keys
from samovar_storage.embedded import EmbeddedValkey
from samovar_storage.objects import ObjectStore
from support.folders import short_folder
from support.gateway import FakeInstance, Gateway, running_gateway
from support.processes import running
from support.stores import stores_for_a_test
from support.waiting import wait_until

pytestmark = pytest.mark.process

_numbers = itertools.count()


@pytest.fixture(scope="module")
def gateway(valkey: Any, seaweed: Any) -> Iterator[Gateway]:
    """One gateway for this module; each test deploys functions of its own."""
    stores = stores_for_a_test(valkey, seaweed, 12)
    with redis_sync.Redis.from_url(stores.redis_url) as redis:
        redis.flushdb()
    with short_folder() as folder:
        store = ObjectStore.from_settings(stores.settings(folder))
        store.ensure_bucket()
        with running_gateway(stores, store, folder) as running:
            yield running
        store.close()


@pytest.fixture
def name() -> str:
    return f"f{next(_numbers)}"


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    """While this file exists, calls that name it in "fail_if" fail."""
    return tmp_path / "broken"


def served(gateway: Gateway, name: str, **policies: Any) -> FakeInstance:
    """Deploy a version and start an instance of it, connected when this returns."""
    ref = gateway.deploy(name, **policies).ref
    instance = gateway.start_instance(ref, 4)
    version = ref.rpartition("@")[2]
    wait_until(lambda: counted(gateway, "samovar_ready_instances", name, version=version) == 1)
    return instance


def counted(gateway: Gateway, metric: str, name: str, **labels: str) -> float:
    """Return the sum of a metric's samples of a function that carry these labels."""
    wanted = [f'function="{name}"', *(f'{label}="{value}"' for label, value in labels.items())]
    lines = gateway.client.get("/metrics").text.splitlines()
    found = [line for line in lines if line.startswith(metric + "{") and all(part in line for part in wanted)]
    return sum(float(line.rpartition(" ")[2]) for line in found)


def is_kept(gateway: Gateway, name: str, count: int = 1) -> None:
    wait_until(lambda: gateway.redis.zcard(keys.answers_of(name)) >= count, what="answer kept in Redis")


def problem(answer: httpx.Response, status: int, code: str) -> None:
    assert (answer.status_code, answer.json()["code"]) == (status, code), answer.text
    assert "samovar-fallback" not in answer.headers


# ---- kept answers ------------------------------------------------------------------------------------------------


def test_a_failure_is_answered_with_the_last_good_answer(gateway: Gateway, name: str, broken: Path) -> None:
    served(gateway, name, fallback=Fallback(cached=Cached()))
    body = {"fail_if": str(broken), "q": 1}
    good = gateway.invoke(name, body)
    assert good.status_code == 200, good.text
    assert "samovar-fallback" not in good.headers
    is_kept(gateway, name)
    broken.touch()
    same_input = b'{ "q": 1,  "fail_if": ' + json.dumps(str(broken)).encode() + b"}"
    stale = gateway.invoke(name, same_input)
    assert (stale.status_code, stale.json()) == (200, good.json())
    assert stale.headers["samovar-fallback"] == "cached"
    assert stale.headers["cache-status"] == "samovar; fwd=stale; fwd-status=500; detail=function_raised"
    assert 0 <= int(stale.headers["age"]) < 60
    assert stale.headers["samovar-version"] == "1"
    assert stale.headers["content-type"] == "application/json"
    problem(gateway.invoke(name, body | {"q": 2}), 500, "function_raised")
    assert counted(gateway, "samovar_fallbacks_total", name, by="cached") == 1
    assert counted(gateway, "samovar_fallbacks_total", name, by="none") == 1


def test_an_open_breaker_is_answered_without_a_call(gateway: Gateway, name: str, broken: Path) -> None:
    breaker = Breaker(min_calls=2, window_calls=2, open_s=60.0)
    served(gateway, name, fallback=Fallback(cached=Cached()), breaker=breaker)
    body = {"fail_if": str(broken)}
    good = gateway.invoke(name, body)
    is_kept(gateway, name)
    broken.touch()
    wait_until(lambda: "hit" in gateway.invoke(name, body).headers["cache-status"])
    num_calls = counted(gateway, "samovar_calls_total", name)
    stale = gateway.invoke(name, body)
    assert (stale.status_code, stale.content) == (200, good.content)
    assert re.fullmatch(r"samovar; hit; ttl=-?\d+; detail=breaker_open", stale.headers["cache-status"])
    assert counted(gateway, "samovar_calls_total", name) == num_calls


def test_answers_are_found_by_the_declared_key_alone(gateway: Gateway, name: str, broken: Path) -> None:
    served(gateway, name, fallback=Fallback(cached=Cached(key=["$.q"])))
    body = {"fail_if": str(broken), "q": 1, "who": "ann"}
    good = gateway.invoke(name, body)
    is_kept(gateway, name)
    broken.touch()
    assert gateway.invoke(name, body | {"who": "bob"}).content == good.content
    form = "application/x-www-form-urlencoded"  # what `curl -d` calls it; to a handler it is JSON all the same
    assert gateway.invoke(name, body | {"who": "eve"}, content_type=form).content == good.content
    problem(gateway.invoke(name, body | {"q": 2}), 500, "function_raised")


def test_an_answer_too_old_is_not_served(gateway: Gateway, name: str, broken: Path) -> None:
    served(gateway, name, fallback=Fallback(cached=Cached(max_stale_s=0.3)))
    body = {"fail_if": str(broken)}
    gateway.invoke(name, body)
    broken.touch()
    wait_until(lambda: gateway.invoke(name, body).status_code >= 500)


def test_no_store_keeps_nothing_and_gets_nothing_kept(gateway: Gateway, name: str, broken: Path) -> None:
    served(gateway, name, fallback=Fallback(cached=Cached()))
    secret, plain = ({"fail_if": str(broken), "q": q} for q in ("secret", "plain"))
    assert gateway.invoke(name, secret, cache_control="no-store").status_code == 200
    assert gateway.invoke(name, plain).status_code == 200
    is_kept(gateway, name)
    assert gateway.redis.zcard(keys.answers_of(name)) == 1
    broken.touch()
    problem(gateway.invoke(name, secret), 500, "function_raised")
    problem(gateway.invoke(name, plain, cache_control="no-store"), 500, "function_raised")
    assert gateway.invoke(name, plain).headers["samovar-fallback"] == "cached"


@pytest.mark.parametrize("shared", [False, True])
def test_one_keys_answers_reach_another_only_if_shared(gateway: Gateway, name: str, broken: Path, shared: bool) -> None:
    served(gateway, name, cache=Cache(ttl_s=60, shared=shared), fallback=Fallback(cached=Cached(shared=shared)))
    body = {"fail_if": str(broken)}
    mine = gateway.invoke(name, body)
    is_kept(gateway, name, 2)
    other = {"authorization": f"Bearer {gateway.registry.keys.create('other', ['invoke'])[1]}"}
    wait_until(lambda: gateway.invoke(name, {"x": [1]}, **other).status_code == 200)
    third = {"authorization": f"Bearer {gateway.registry.keys.create('third', ['invoke'])[1]}"}
    wait_until(lambda: gateway.invoke(name, {"x": [1]}, **third).status_code == 200)
    assert (gateway.invoke(name, body, **other).content == mine.content) == shared
    broken.touch()
    stale = gateway.invoke(name, body, **third, cache_control="no-cache")
    if shared:
        assert stale.content == mine.content
    else:
        problem(stale, 500, "function_raised")


def test_an_older_versions_answer_stands_in_for_a_newer_one(gateway: Gateway, name: str) -> None:
    old = served(gateway, name, fallback=Fallback(cached=Cached()))
    body = {"fail_on": f"{name}@2"}
    good = gateway.invoke(name, body)
    is_kept(gateway, name)
    served(gateway, name, fallback=Fallback(cached=Cached()))
    old.announce("gone")
    stale = wait_until(lambda: (got := gateway.invoke(name, body)).headers.get("samovar-fallback") and got)
    assert (stale.content, stale.headers["samovar-version"]) == (good.content, "1")


def test_a_large_answer_is_not_kept(gateway: Gateway, name: str, broken: Path) -> None:
    served(gateway, name, fallback=Fallback(cached=Cached()))
    large, small = {"fail_if": str(broken), "pad": "x" * 300_000}, {"fail_if": str(broken)}
    assert gateway.invoke(name, large).status_code == gateway.invoke(name, small).status_code == 200
    is_kept(gateway, name)
    broken.touch()
    problem(gateway.invoke(name, large), 500, "function_raised")
    assert gateway.invoke(name, small).status_code == 200


def test_a_deleted_functions_answers_go_with_it(gateway: Gateway, name: str, broken: Path) -> None:
    served(gateway, name, fallback=Fallback(cached=Cached()))
    body = {"fail_if": str(broken)}
    gateway.invoke(name, body)
    is_kept(gateway, name)
    assert gateway.client.delete(f"/v1/functions/{name}").status_code < 300
    wait_until(lambda: not gateway.redis.exists(keys.answers_of(name)))
    broken.touch()
    served(gateway, name, fallback=Fallback(cached=Cached()))
    problem(gateway.invoke(name, body), 500, "function_raised")


# ---- the other links ---------------------------------------------------------------------------------------------


def test_the_previous_version_answers(gateway: Gateway, name: str) -> None:
    served(gateway, name)
    served(gateway, name, fallback=Fallback(version="previous"))
    body = {"fail_on": f"{name}@2"}
    answer = wait_until(lambda: (got := gateway.invoke(name, body)).headers.get("samovar-fallback") and got)
    assert (answer.status_code, answer.headers["samovar-fallback"]) == (200, "version")
    assert answer.headers["samovar-version"] == "1"
    assert "total" in answer.headers["server-timing"]
    assert "cache-status" not in answer.headers


def test_a_version_that_gets_no_calls_answers(gateway: Gateway, name: str) -> None:
    """Version 1 is two deploys ago: the route names it no more, the fallback does."""
    first = served(gateway, name)
    served(gateway, name)
    served(gateway, name, fallback=Fallback(version=1))
    first.announce()
    body = {"fail_on": f"{name}@3"}
    answer = wait_until(lambda: (got := gateway.invoke(name, body)).headers.get("samovar-fallback") and got)
    assert (answer.status_code, answer.headers["samovar-version"]) == (200, "1")


def test_the_links_are_tried_in_order(gateway: Gateway, name: str) -> None:
    served(gateway, f"{name}-small")
    served(gateway, name, fallback=Fallback(cached=Cached(), function=f"{name}-small", value={"stars": 0}))
    only_here = gateway.invoke(name, {"fail_on": f"{name}@1"})
    assert (only_here.status_code, only_here.headers["samovar-fallback"]) == (200, "function")
    assert only_here.headers["samovar-function"] == f"{name}-small"
    everywhere = gateway.invoke(name, {"fail": "tea spilt"})
    assert (everywhere.status_code, everywhere.json()) == (200, {"stars": 0})
    assert everywhere.headers["samovar-fallback"] == "value"
    assert everywhere.headers["samovar-version"] == "1"
    assert everywhere.headers["content-type"] == "application/json"
    assert "server-timing" not in everywhere.headers
    assert counted(gateway, "samovar_calls_total", f"{name}-small", code="function_raised") == 1
    counts = [counted(gateway, "samovar_fallbacks_total", name, by=by) for by in ("cached", "function", "value")]
    assert counts == [0, 1, 1]


def test_functions_that_name_each_other_end_after_one_step(gateway: Gateway, name: str) -> None:
    for one, other in ((f"{name}-a", f"{name}-b"), (f"{name}-b", f"{name}-a")):
        served(gateway, one, fallback=Fallback(function=other))
    answer = gateway.invoke(f"{name}-a", {"fail": "tea spilt"})
    problem(answer, 500, "function_raised")
    assert answer.json()["detail"] == "tea spilt"
    assert [counted(gateway, "samovar_calls_total", f"{name}-{x}", code="function_raised") for x in "ab"] == [1, 1]


def test_a_missing_function_is_passed_over(gateway: Gateway, name: str) -> None:
    served(gateway, name, fallback=Fallback(function="nobody", value=[]))
    assert gateway.invoke(name, {"fail": "no"}).json() == []


@pytest.mark.parametrize(
    ("status", "code"), [(422, "invalid_input"), (404, "not_found"), (413, "body_too_large"), (429, "rate_limited")]
)
def test_what_is_the_callers_own_does_not_fall_back(gateway: Gateway, name: str, status: int, code: str) -> None:
    served(gateway, name, fallback=Fallback(value=1))
    problem(gateway.invoke(name, {"fail": "no", "status": status, "code": code}), status, code)


def test_a_deadline_is_answered_in_time(gateway: Gateway, name: str) -> None:
    served(gateway, name, fallback=Fallback(value="later"))
    answer = gateway.invoke(name, {"sleep_s": 30}, samovar_timeout_ms="400")
    assert (answer.status_code, answer.json()) == (200, "later")
    assert counted(gateway, "samovar_calls_total", name, code="deadline_exceeded") == 1


def test_a_lost_instance_and_a_full_queue_fall_back(gateway: Gateway, name: str) -> None:
    limits = Limits(timeout_s=10.0, max_queue=0)
    instance = served(gateway, name, fallback=Fallback(value="tea"), retry_on_crash=False, limits=limits)
    assert gateway.invoke(name, {"die": True}).json() == "tea"
    instance.announce("gone")
    wait_until(lambda: counted(gateway, "samovar_ready_instances", name) == 0)
    assert gateway.invoke(name, {"a": 1}).json() == "tea"
    assert counted(gateway, "samovar_fallbacks_total", name, by="value") == 2


def test_a_stream_falls_back_before_its_first_item_only(gateway: Gateway, name: str) -> None:
    served(gateway, name, handler="generator", fallback=Fallback(value="tea"))
    assert gateway.invoke(name, {"fail": "at once"}).json() == "tea"
    lines = lines_of(gateway, name, {"stream": 3, "raise_at": 1})
    assert json.loads(lines[0]) == {"n": 0}
    assert json.loads(lines[1])["error"]["code"] == "function_raised"
    assert gateway.invoke(name, {"stream": 2}).text.splitlines() == ['{"n": 0}', '{"n": 1}']


def lines_of(gateway: Gateway, name: str, body: Any) -> list[str]:
    """Return the lines of a stream that may break off."""
    lines: list[str] = []
    with gateway.client.stream("POST", f"/v1/functions/{name}/invoke", content=json.dumps(body)) as answer:
        try:
            lines.extend(answer.iter_lines())
        except httpx.RemoteProtocolError:
            assert lines, "broken off after its first item"
    return lines


def test_a_stream_cannot_stand_in_for_a_value(gateway: Gateway, name: str) -> None:
    served(gateway, f"{name}-s", handler="generator")
    served(gateway, name, fallback=Fallback(function=f"{name}-s", value="tea"))
    assert gateway.invoke(name, {"fail_on": f"{name}@1", "stream": 3}).json() == "tea"
    assert gateway.invoke(name, {"x": [1]}).json() == {"sum": 1}


def test_who_leaves_takes_the_fallback_along(gateway: Gateway, name: str) -> None:
    served(gateway, f"{name}-slow")
    served(gateway, name, fallback=Fallback(function=f"{name}-slow"))
    with gateway.connect() as connection:
        connection.sendall(gateway.raw(name, json.dumps({"fail_on": f"{name}@1", "sleep_s": 3.0}).encode()))
        wait_until(lambda: counted(gateway, "samovar_running", f"{name}-slow") == 1)
    wait_until(lambda: counted(gateway, "samovar_calls_total", f"{name}-slow", code="cancelled") == 1)


# ---- the fresh cache ---------------------------------------------------------------------------------------------


def test_a_fresh_answer_is_served_without_a_call(gateway: Gateway, name: str) -> None:
    served(gateway, name, cache=Cache(ttl_s=60))
    first = gateway.invoke(name, {"a": 1, "b": 2})
    assert first.headers["cache-status"] == "samovar; fwd=miss; stored"
    hit = gateway.invoke(name, b'{"b":2,"a":1}')
    assert hit.content == first.content
    assert re.fullmatch(r"samovar; hit; ttl=(5\d|60)", hit.headers["cache-status"])
    assert 0 <= int(hit.headers["age"]) < 10
    assert hit.headers["samovar-version"] == "1"
    assert "samovar-fallback" not in hit.headers
    anew = gateway.invoke(name, {"a": 1, "b": 2}, cache_control="no-cache")
    assert anew.content != first.content and anew.headers["cache-status"] == "samovar; fwd=request; stored"
    assert gateway.invoke(name, {"a": 1, "b": 2}).content == anew.content
    unseen = gateway.invoke(name, {"a": 1, "b": 2}, cache_control="no-store")
    assert unseen.headers["cache-status"] == "samovar; fwd=request"
    assert gateway.invoke(name, {"a": 1, "b": 2}).content == anew.content
    assert counted(gateway, "samovar_calls_total", name, code="ok") == 3
    assert [counted(gateway, "samovar_cache_total", name, result=r) for r in ("miss", "hit", "bypass")] == [1, 3, 2]


def test_a_new_version_answers_for_itself(gateway: Gateway, name: str) -> None:
    old = served(gateway, name, cache=Cache(ttl_s=600))
    first = gateway.invoke(name, {"a": 1})
    served(gateway, name, cache=Cache(ttl_s=600))
    old.announce("gone")
    second = wait_until(lambda: (got := gateway.invoke(name, {"a": 1})).headers["samovar-version"] == "2" and got)
    assert second.content != first.content


def test_errors_are_not_cached(gateway: Gateway, name: str, broken: Path) -> None:
    served(gateway, name, cache=Cache(ttl_s=60))
    broken.touch()
    body = {"fail_if": str(broken)}
    problem(gateway.invoke(name, body), 500, "function_raised")
    broken.unlink()
    assert gateway.invoke(name, body).headers["cache-status"] == "samovar; fwd=miss; stored"


def test_identical_calls_in_flight_are_computed_once(gateway: Gateway, name: str) -> None:
    served(gateway, name, cache=Cache(ttl_s=60))
    with ThreadPoolExecutor(8) as pool:
        answers = [*pool.map(lambda _: gateway.invoke(name, {"sleep_s": 0.5}), range(8))]
    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.content for answer in answers}) == 1
    assert counted(gateway, "samovar_calls_total", name) == 1
    assert sum("stored" in answer.headers["cache-status"] for answer in answers) == 1


def test_a_leader_that_leaves_hands_over(gateway: Gateway, name: str) -> None:
    served(gateway, name, cache=Cache(ttl_s=60))
    body = {"sleep_s": 3.0}
    with ThreadPoolExecutor(3) as pool:
        with gateway.connect() as leader:
            leader.sendall(gateway.raw(name, json.dumps(body).encode()))
            wait_until(lambda: counted(gateway, "samovar_running", name) == 1)
            problem(gateway.invoke(name, body, samovar_timeout_ms="50"), 504, "deadline_exceeded")
            followers = [pool.submit(gateway.invoke, name, body) for _ in range(3)]
        answers = [follower.result() for follower in followers]
    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.content for answer in answers}) == 1
    assert counted(gateway, "samovar_calls_total", name, code="ok") == 1
    assert counted(gateway, "samovar_calls_total", name, code="cancelled") == 1


def test_a_failure_is_everybodys_and_each_falls_back(gateway: Gateway, name: str) -> None:
    served(gateway, name, cache=Cache(ttl_s=60), fallback=Fallback(value="tea"))
    with ThreadPoolExecutor(4) as pool:
        answers = [*pool.map(lambda _: gateway.invoke(name, {"sleep_s": 2.0, "fail": "no"}), range(4))]
    assert [answer.json() for answer in answers] == ["tea"] * 4
    assert counted(gateway, "samovar_calls_total", name) == 1


# ---- stores ------------------------------------------------------------------------------------------------------


def test_without_redis_the_chain_goes_on(seaweed: Any, tmp_path: Path, broken: Path) -> None:
    own = EmbeddedValkey(tmp_path)
    with short_folder() as folder, running(own.command(), tmp_path / "valkey.log", own.environment(), 5.0) as process:
        own.wait_ready(20)
        stores = stores_for_a_test(own, seaweed, 11)
        store = ObjectStore.from_settings(stores.settings(folder))
        store.ensure_bucket()
        with running_gateway(stores, store, folder) as gateway:
            served(gateway, "kept", cache=Cache(ttl_s=60), fallback=Fallback(cached=Cached(), value="tea"))
            body = {"fail_if": str(broken)}
            good = gateway.invoke("kept", body, cache_control="no-cache")
            is_kept(gateway, "kept", 2)
            process.kill()
            process.wait()
            assert gateway.invoke("kept", body).content == good.content
            assert gateway.invoke("kept", {"a": 1}).headers["cache-status"] == "samovar; fwd=miss; stored"
            broken.touch()
            stale = gateway.invoke("kept", body, cache_control="no-cache")
            assert (stale.content, stale.headers["samovar-fallback"]) == (good.content, "cached")
            assert gateway.invoke("kept", body | {"q": 1}).json() == "tea"
        store.close()


def test_every_ask_is_noted_once_with_what_became_of_it(gateway: Gateway, name: str, broken: Path) -> None:
    served(gateway, name, cache=Cache(ttl_s=60), fallback=Fallback(cached=Cached(), value="tea"))
    body = {"fail_if": str(broken)}
    gateway.invoke(name, body, x_request_id="good")
    gateway.invoke(name, body, x_request_id="hit")
    broken.touch()
    gateway.invoke(name, body, x_request_id="stale", cache_control="no-cache")
    gateway.invoke(name, body | {"q": 1}, x_request_id="value")
    gateway.invoke(name, body | {"q": 2, "status": 422, "code": "invalid_input"}, x_request_id="wrong")
    records = gateway.client.get(f"/v1/functions/{name}/requests").json()["records"]
    ours = [record for record in records if record["status"] != 405]  # those are of the deploy
    assert [
        (r["request_id"], r["status"], r["cached"], r["fallback"], r["version"], r["answered_by"]) for r in ours
    ] == [
        ("good", 200, False, False, 1, ""),
        ("hit", 200, True, False, 1, f"{name}@1"),
        ("stale", 200, True, True, 1, f"{name}@1"),
        ("value", 200, False, True, 1, "value"),
        ("wrong", 422, False, False, 1, ""),
    ]


def test_in_a_storm_every_ask_is_answered_once_and_noted_once(gateway: Gateway, name: str) -> None:
    """Identical and other asks, good ones and bad ones, short deadlines and callers who leave, all at once."""
    served(gateway, name, cache=Cache(ttl_s=0.05), fallback=Fallback(cached=Cached(max_stale_s=0.2), value="tea"))
    bodies = [{"sleep_s": 0.02}, {"sleep_s": 0.05}, {"fail": "no"}, {"x": [1]}, {"fail": "no", "status": 422}]
    draw = random.Random(7)  # a fixed order of the same calls
    plan = [
        (number, draw.choice(bodies), draw.choice(["20", "60", "5000"]), draw.random() < 0.1) for number in range(400)
    ]

    def ask(call: tuple[int, dict[str, Any], str, bool]) -> int:
        number, body, timeout_ms, leaves = call
        if leaves:
            with gateway.connect() as connection:
                head = b"x-request-id: s%d\r\nsamovar-timeout-ms: %s\r\n" % (number, timeout_ms.encode())
                connection.sendall(gateway.raw(name, json.dumps(body).encode(), head))
            return 0
        return gateway.invoke(name, body, x_request_id=f"s{number}", samovar_timeout_ms=timeout_ms).status_code

    with ThreadPoolExecutor(24) as pool:
        answered = [*pool.map(ask, plan)]
    assert {status for status in answered if status} <= {200, 422}, "whatever failed, the value stood in"

    def noted() -> list[str]:
        query = {"limit": 1000}
        records = gateway.client.get(f"/v1/functions/{name}/requests", params=query).json()["records"]
        return sorted(record["request_id"] for record in records if record["request_id"].startswith("s"))

    expected = sorted(f"s{number}" for number, *_ in plan)
    wait_until(lambda: len(noted()) >= len(expected))
    assert noted() == expected
    wait_until(lambda: counted(gateway, "samovar_running", name) == counted(gateway, "samovar_queued", name) == 0)
