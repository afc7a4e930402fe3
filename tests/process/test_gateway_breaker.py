"""Circuit breakers, retries and hedges through real gateways and stand-in instances that fail on command."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from samovar.policies import Breaker
from samovar.spec import Limits
from samovar_dispatch.health.breaker import SIDE_BY_SIDE_S
from samovar_dispatch.retries.hedging import MIN_SAMPLES
from samovar_storage import keys
from samovar_storage.embedded import EmbeddedValkey
from samovar_storage.objects import ObjectStore
from samovar_storage.records import BootFailure, dumps
from support.folders import short_folder
from support.gateway import FakeInstance, Gateway, now_s, running_gateway
from support.processes import running
from support.stores import Stores, stores_for_a_test
from support.waiting import wait_until

pytestmark = pytest.mark.process

QUICK = Breaker(min_calls=4, window_calls=8, open_s=0.3, max_open_s=2.0, probes=2)
LASTING = Breaker(
    min_calls=4, window_calls=8, open_s=3.0, max_open_s=9.0, probes=2
)  # open for as long as a test looks at it


@pytest.fixture(scope="module")
def stores(valkey: Any, seaweed: Any) -> Stores:
    return stores_for_a_test(valkey, seaweed, 12)


@contextmanager
def a_gateway(stores: Stores) -> Iterator[Gateway]:
    with short_folder() as folder:
        store = ObjectStore.from_settings(stores.settings(folder))
        store.ensure_bucket()
        with running_gateway(stores, store, folder) as running:
            yield running
        store.close()


@pytest.fixture(scope="module")
def gateway(stores: Stores) -> Iterator[Gateway]:
    """One gateway for this module; each test deploys a function of its own."""
    with a_gateway(stores) as running:
        running.redis.flushdb()
        yield running


def state(gateway: Gateway, name: str) -> dict[str, Any]:
    """Return how the gateway shows the breaker of version 1."""
    view: dict[str, Any] = gateway.client.get(f"/v1/functions/{name}").json()["breakers"][f"{name}@1"]
    return view


def break_it(gateway: Gateway, name: str, instance: FakeInstance) -> None:
    """Make the instance fail until the breaker of its version is open."""
    instance.behave(fail="boom")
    for _ in range(QUICK.min_calls):
        if state(gateway, name)["state"] == "closed":
            assert gateway.invoke(name).status_code == 500
    assert state(gateway, name)["state"] == "open"


def test_it_opens_refuses_lets_probes_through_and_closes(gateway: Gateway) -> None:
    instance = gateway.start_instance(gateway.deploy("breaks", breaker=LASTING).ref)
    assert gateway.invoke("breaks").status_code == 200
    break_it(gateway, "breaks", instance)
    refused = gateway.invoke("breaks")
    assert (refused.status_code, refused.json()["code"]) == (503, "breaker_open")
    assert 1 <= int(refused.headers["retry-after"]) <= 3
    assert refused.json()["reason"] == "error_rate"
    told = gateway.client.get("/v1/functions/breaks/why").json()["breakers"]["breaks@1"]
    assert (told["state"], told["reason"]) == ("open", "error_rate")
    seen = instance.behave()["calls"]
    wait_until(lambda: gateway.invoke("breaks").status_code == 200, what="a probe went through")
    wait_until(lambda: gateway.invoke("breaks").status_code == 200)
    assert state(gateway, "breaks")["state"] == "closed"
    assert instance.behave()["calls"] <= seen + QUICK.probes + 1, "only what was answered reached it"
    assert gateway.metric("samovar_breaker_transitions_total") >= 3


def test_a_probe_that_fails_opens_it_for_longer(gateway: Gateway) -> None:
    instance = gateway.start_instance(gateway.deploy("stays-broken", breaker=LASTING).ref)
    break_it(gateway, "stays-broken", instance)
    wait_until(lambda: gateway.invoke("stays-broken").status_code == 500, what="a probe")
    view = state(gateway, "stays-broken")
    assert (view["state"], view["reason"], view["num_openings"]) == ("open", "probe_failed", 2)
    assert 3.0 < view["retry_after_s"] <= 6.0


def test_what_the_caller_got_wrong_does_not_open_it(gateway: Gateway) -> None:
    instance = gateway.start_instance(gateway.deploy("picky", breaker=QUICK).ref)
    instance.behave(fail="$.x: expected a number", code="invalid_input", status=422)
    assert {gateway.invoke("picky").status_code for _ in range(3 * QUICK.min_calls)} == {422}
    assert state(gateway, "picky")["state"] == "closed"


def test_an_impatient_caller_does_not_open_it_and_a_hang_does(gateway: Gateway) -> None:
    gateway.start_instance(gateway.deploy("sleepy", Limits(timeout_s=1.5), breaker=QUICK).ref, concurrency=8)
    for _ in range(3):
        assert gateway.invoke("sleepy", {"sleep_s": 0.1}).status_code == 200
    for _ in range(2 * QUICK.min_calls):
        assert gateway.invoke("sleepy", {"sleep_s": 0.1}, samovar_timeout_ms="20").status_code in (503, 504)
    assert state(gateway, "sleepy")["state"] == "closed"
    with ThreadPoolExecutor(8) as pool:
        codes = [*pool.map(lambda _: gateway.invoke("sleepy", {"sleep_s": 9}).status_code, range(8))]
    assert set(codes) == {504}
    assert state(gateway, "sleepy")["reason"] == "error_rate"


def test_slow_calls_open_it(gateway: Gateway) -> None:
    slow = Breaker(min_calls=4, slow_call_s=0.05, slow_rate=0.5, open_s=5.0)
    gateway.start_instance(gateway.deploy("crawls", breaker=slow).ref, concurrency=4)
    with ThreadPoolExecutor(4) as pool:
        codes = [*pool.map(lambda _: gateway.invoke("crawls", {"sleep_s": 0.1}).status_code, range(4))]
    assert codes == [200] * 4
    assert state(gateway, "crawls")["reason"] == "slow_calls"


def test_a_crash_loop_opens_it_at_once(gateway: Gateway) -> None:
    ref = gateway.deploy("crashes", retry_on_crash=False).ref  # min_calls is 20: the rates alone would not
    for _ in range(3):
        gateway.start_instance(ref)
        wait_until(lambda: gateway.client.get("/v1/functions/crashes/why").json()["ready"]["1"] == 1)
        assert gateway.invoke("crashes", {"die": True}).status_code == 502
        apart_s = time.monotonic() + SIDE_BY_SIDE_S
        wait_until(lambda: time.monotonic() > apart_s, what="the next crash counts apart")  # noqa: B023
    view = state(gateway, "crashes")
    assert (view["state"], view["reason"]) == ("open", "crash_loop")
    assert gateway.invoke("crashes").json()["code"] == "breaker_open"


def test_a_failed_load_shows_as_open_and_callers_get_the_real_error(gateway: Gateway) -> None:
    ref = gateway.deploy("unloadable", breaker=QUICK).ref
    failure = BootFailure(
        ref=ref, code="load_failed", status=500, detail="no such file", phase="load", retry_at_s=now_s() + 60
    )
    gateway.redis.set(keys.boot(ref), dumps(failure))
    gateway.redis.publish(keys.CHANNEL_BOOT, dumps(failure))
    wait_until(lambda: state(gateway, "unloadable")["state"] == "open")
    refused = gateway.invoke("unloadable")
    assert (refused.status_code, refused.json()["code"]) == (500, "load_failed")
    assert 50 < int(refused.headers["retry-after"]) <= 60
    gateway.redis.delete(keys.boot(ref))
    gateway.start_instance(ref)
    wait_until(lambda: gateway.invoke("unloadable").status_code == 200, what="it came up")
    assert state(gateway, "unloadable")["state"] == "closed"


def test_two_gateways_share_what_they_find(gateway: Gateway, stores: Stores) -> None:
    ref = gateway.deploy("shared", breaker=Breaker(min_calls=4, open_s=1.5, probes=1)).ref
    instance = gateway.start_instance(ref)
    with a_gateway(stores) as other:
        wait_until(lambda: other.invoke("shared").status_code == 200)
        instance.behave(fail="boom")
        for _ in range(4):
            assert gateway.invoke("shared").status_code == 500
        wait_until(lambda: state(other, "shared")["state"] == "open", what="the other heard it")
        assert state(other, "shared")["reason"] == "error_rate"
        instance.behave()
        wait_until(lambda: gateway.invoke("shared").status_code == 200, what="one of them found that it works")
        wait_until(lambda: state(other, "shared")["state"] == "closed", what="the other was told")
        assert other.invoke("shared").status_code == 200


def test_a_gateway_that_comes_later_hears_what_was_found(gateway: Gateway, stores: Stores) -> None:
    ref = gateway.deploy("long-shut", breaker=Breaker(min_calls=4, open_s=60.0, max_open_s=60.0)).ref
    gateway.start_instance(ref).behave(fail="boom")
    for _ in range(4):
        assert gateway.invoke("long-shut").status_code == 500
    with a_gateway(stores) as late:
        wait_until(lambda: "long-shut@1" in late.client.get("/v1/functions/long-shut").json()["breakers"])
        wait_until(lambda: state(late, "long-shut")["state"] == "open", what="it heard it at its start")


def test_without_redis_each_gateway_decides_alone(stores: Stores, tmp_path: Path) -> None:
    own = EmbeddedValkey(tmp_path)
    with running(own.command(), tmp_path / "valkey.log", own.environment(), own.stop_grace_s) as valkey:
        own.wait_ready(20)
        with a_gateway(replace(stores, redis_url=own.redis_url)) as gateway:
            instance = gateway.start_instance(gateway.deploy("alone", breaker=LASTING).ref)
            assert gateway.invoke("alone").status_code == 200
            valkey.kill()
            valkey.wait(60)
            instance.behave(fail="boom")
            codes = [gateway.invoke("alone").status_code for _ in range(QUICK.min_calls)]
            assert codes == [500] * 3 + [503], "one of the four in its window went well"
            instance.behave()
            wait_until(lambda: gateway.invoke("alone").status_code == 200, what="it closes by itself")


def test_crashes_are_retried_within_the_budget(gateway: Gateway) -> None:
    ref = gateway.deploy("fragile", Limits(timeout_s=60.0)).ref
    first = gateway.start_instance(ref, concurrency=40)
    first.behave(sleep_s=60)
    with ThreadPoolExecutor(40) as pool:
        answers = [pool.submit(gateway.invoke, "fragile") for _ in range(40)]
        wait_until(lambda: gateway.metric("samovar_running") == 40)
        first.popen.kill()  # before there is another, which would be given some of its calls for nothing
        gateway.start_instance(ref)
        codes = Counter(answer.result().status_code for answer in answers)
    assert codes == {200: 30, 502: 10}, "forty calls pay for eight retries, and the floor is thirty"
    assert gateway.metric("samovar_retries_refused_total") == 10
    assert gateway.metric("samovar_retried_total") == 30


def test_a_hedge_answers_for_a_slow_instance(gateway: Gateway) -> None:
    ref = gateway.deploy("hedges", hedge_after="1000ms").ref
    instances = {one.popen.pid: one for one in (gateway.start_instance(ref), gateway.start_instance(ref))}
    wait_until(lambda: gateway.client.get("/v1/functions/hedges/why").json()["ready"]["1"] == 2)
    for _ in range(75):  # two per cent of which are one copy
        answer = gateway.invoke("hedges")
        assert answer.status_code == 200
    favourite = answer.json()["pid"]
    instances[favourite].behave(sleep_s=9)
    answer = gateway.invoke("hedges")
    assert answer.status_code == 200
    assert answer.json()["pid"] in instances.keys() - {favourite}
    assert gateway.metric("samovar_hedges_won_total") == gateway.metric("samovar_hedges_total") == 1
    wait_until(lambda: gateway.metric("samovar_running") == 0, what="the loser was cancelled")
    assert gateway.invoke("hedges", samovar_timeout_ms="2500").status_code == 504, "no budget for another copy"
    assert gateway.metric("samovar_hedges_total") == 1


def test_a_percentile_is_learned_from_the_calls(gateway: Gateway) -> None:
    ref = gateway.deploy("learns", hedge_after="p95").ref
    instances = {one.popen.pid: one for one in (gateway.start_instance(ref), gateway.start_instance(ref))}
    wait_until(lambda: gateway.client.get("/v1/functions/learns/why").json()["ready"]["1"] == 2)
    sent = gateway.metric("samovar_hedges_total")
    for _ in range(MIN_SAMPLES - 1):
        answer = gateway.invoke("learns")
        assert answer.status_code == 200
    favourite = instances[answer.json()["pid"]]
    favourite.behave(sleep_s=0.5)
    assert gateway.invoke("learns").json()["pid"] == favourite.popen.pid, "too few are known: no copy"
    assert gateway.metric("samovar_hedges_total") == sent
    favourite.behave(sleep_s=9)
    assert gateway.invoke("learns").json()["pid"] != favourite.popen.pid
    assert gateway.metric("samovar_hedges_total") == sent + 1
