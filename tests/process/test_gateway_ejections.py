"""Instances that fail where their peers do not, through a real gateway: left alone, checked, taken back or reported."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from samovar.policies import Breaker
from samovar_dispatch.health.outliers import INTERVAL_S, MAX_FAILED_CHECKS, MAX_IN_A_ROW, MIN_CALLS, MIN_PEERS
from samovar_storage import keys
from samovar_storage.objects import ObjectStore
from support.folders import short_folder
from support.gateway import FakeInstance, Gateway, running_gateway
from support.stores import stores_for_a_test
from support.waiting import wait_until

pytestmark = pytest.mark.process

PATIENT = Breaker(min_calls=200)  # what is at stake here is the instance, not the version


@pytest.fixture(scope="module")
def gateway(valkey: Any, seaweed: Any) -> Iterator[Gateway]:
    stores = stores_for_a_test(valkey, seaweed, 11)
    with short_folder() as folder:
        store = ObjectStore.from_settings(stores.settings(folder))
        store.ensure_bucket()
        with running_gateway(stores, store, folder, ejection_s=0.5) as running:
            running.redis.flushdb()
            yield running
        store.close()


def pair(gateway: Gateway, name: str) -> tuple[FakeInstance, FakeInstance]:
    """Return two instances of a new function: the one that is called first while both are idle, and the other."""
    ref = gateway.deploy(name, breaker=PATIENT).ref
    both = {one.popen.pid: one for one in (gateway.start_instance(ref), gateway.start_instance(ref))}
    wait_until(lambda: gateway.client.get(f"/v1/functions/{name}/why").json()["ready"]["1"] == 2)
    favourite = both.pop(gateway.invoke(name).json()["pid"])
    return favourite, both.popitem()[1]


def test_an_instance_that_fails_alone_is_left_alone_and_returns_when_its_check_goes_well(gateway: Gateway) -> None:
    bad, good = pair(gateway, "one-bad")
    bad.behave(fail="boom", unwell=True)  # its checks fail while we look, however long that takes
    codes = [gateway.invoke("one-bad").status_code for _ in range(MAX_IN_A_ROW + 20)]
    assert codes == [500] * MAX_IN_A_ROW + [200] * 20, "after five in a row the other gets every call"
    assert gateway.metric("samovar_ejected_instances") == 1
    checks = bad.behave()["checks"]
    wait_until(lambda: gateway.metric("samovar_ejected_instances") == 0, what="it was checked and taken back")
    seen_there = bad.behave()
    assert (seen_there["calls"], seen_there["checks"]) == (1 + MAX_IN_A_ROW, checks + 1)
    seen = bad.behave()["calls"] + good.behave()["calls"]
    good.behave(sleep_s=0.2)
    assert gateway.invoke("one-bad").status_code == 200
    assert bad.behave()["calls"] + good.behave()["calls"] == seen + 1


def test_one_that_stays_unwell_is_asked_to_be_replaced(gateway: Gateway) -> None:
    bad, good = pair(gateway, "stays-bad")
    with gateway.redis.pubsub() as heard:  # type: ignore[no-untyped-call]
        heard.subscribe(keys.CHANNEL_UNWELL)
        bad.behave(fail="boom", unwell=True)
        for _ in range(MAX_IN_A_ROW):
            assert gateway.invoke("stays-bad").status_code == 500
        news = wait_until(lambda: heard.get_message(ignore_subscribe_messages=True), what="news of it")
    told = json.loads(news["data"])
    assert (told["instance_id"], told["ref"]) == (bad.record.instance_id, "stays-bad@1")
    assert "the samovar leaks" in told["fault"]
    assert bad.behave(unwell=True)["checks"] == MAX_FAILED_CHECKS
    assert gateway.invoke("stays-bad").json()["pid"] == good.popen.pid


def test_one_that_hangs_gets_no_more_calls_and_is_asked_to_be_replaced(gateway: Gateway) -> None:
    ref = gateway.deploy("silent", breaker=PATIENT).ref
    bad = gateway.start_instance(ref, concurrency=8)
    assert gateway.invoke("silent").status_code == 200
    with gateway.redis.pubsub() as heard:  # type: ignore[no-untyped-call]
        heard.subscribe(keys.CHANNEL_UNWELL)
        bad.popen.send_signal(signal.SIGSTOP)
        late = gateway.invoke("silent", samovar_timeout_ms="300")
        assert (late.status_code, late.json()["phase"]) == (504, "run")
        news = wait_until(lambda: heard.get_message(ignore_subscribe_messages=True), what="news of it")
    told = json.loads(news["data"])
    assert (told["instance_id"], told["fault"]) == (bad.record.instance_id, "it says nothing")
    late = gateway.invoke("silent", samovar_timeout_ms="300")
    assert (late.status_code, late.json()["phase"]) == (504, "queue"), "though seven slots are free there"
    bad.popen.send_signal(signal.SIGCONT)
    wait_until(lambda: gateway.invoke("silent", samovar_timeout_ms="1000").status_code == 200, what="it is back")


def test_one_that_fails_more_often_than_its_peers_is_left_alone(gateway: Gateway) -> None:
    ref = gateway.deploy("moody", breaker=PATIENT).ref
    instances = [gateway.start_instance(ref) for _ in range(MIN_PEERS)]
    wait_until(lambda: gateway.client.get("/v1/functions/moody/why").json()["ready"]["1"] == MIN_PEERS)
    before = gateway.metric("samovar_ejections_total")
    moody = instances[2]
    moody.behave(fail_every=3, unwell=True)  # never twice in a row, and never taken back while we look

    def call_until_somebody_is_left_alone(_: int) -> None:
        give_up_s = time.monotonic() + 12 * INTERVAL_S
        while gateway.metric("samovar_ejections_total") == before and time.monotonic() < give_up_s:
            for _ in range(20):
                assert gateway.invoke("moody", {"sleep_s": 0.02}).status_code in (200, 500)

    with ThreadPoolExecutor(MIN_PEERS) as crowd:
        list(crowd.map(call_until_somebody_is_left_alone, range(MIN_PEERS)))
    assert gateway.metric("samovar_ejections_total") == before + 1
    assert moody.behave(fail_every=3, unwell=True)["calls"] >= MIN_CALLS
    with ThreadPoolExecutor(MIN_PEERS) as crowd:
        answers = [*crowd.map(lambda _: gateway.invoke("moody", {"sleep_s": 0.02}), range(50))]
    assert {answer.status_code for answer in answers} == {200}
    assert moody.popen.pid not in {answer.json()["pid"] for answer in answers}


def test_when_all_fail_nobody_but_half_is_left_alone(gateway: Gateway) -> None:
    before = gateway.metric("samovar_ejected_instances")
    instances = pair(gateway, "all-bad")
    for one in instances:
        one.behave(fail="boom", unwell=True)
    assert {gateway.invoke("all-bad").status_code for _ in range(5 * MAX_IN_A_ROW)} == {500}
    assert gateway.metric("samovar_ejected_instances") <= before + 1, "one of the pair"
