"""Who is let in, who is refused and who is told to wait in vain, through a real gateway and stand-in instances."""

from __future__ import annotations

import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx
import msgspec
import pytest
import redis as redis_sync

from samovar.lifecycle import State
from samovar.spec import Limits
from samovar_storage import keys
from samovar_storage.objects import ObjectStore
from samovar_storage.records import InstanceRecord, dumps
from support.folders import short_folder
from support.gateway import Gateway, running_gateway
from support.stores import stores_for_a_test
from support.waiting import wait_until

pytestmark = pytest.mark.process

MAX_TIMEOUT_S = 20.0


@pytest.fixture(scope="module")
def gateway(valkey: Any, seaweed: Any) -> Iterator[Gateway]:
    """One gateway for this module; each test deploys a function of its own."""
    stores = stores_for_a_test(valkey, seaweed, 14)
    with redis_sync.Redis.from_url(stores.redis_url) as redis:
        redis.flushdb()
    with short_folder() as folder:
        store = ObjectStore.from_settings(stores.settings(folder))
        store.ensure_bucket()
        bounds = {"max_waiting_bytes": 150_000, "max_timeout_s": MAX_TIMEOUT_S}
        with running_gateway(stores, store, folder, **bounds) as running:
            yield running
        store.close()


@pytest.fixture(scope="module")
def crowd() -> Iterator[ThreadPoolExecutor]:
    with ThreadPoolExecutor(40) as pool:
        yield pool


def gauge(gateway: Gateway, name: str, function: str) -> float:
    return gateway.metric(f'samovar_{name}{{function="{function}",version="1"}}')


def ended(gateway: Gateway, function: str, code: str) -> float:
    return gateway.metric(f'samovar_calls_total{{code="{code}",function="{function}",version="1"}}')


def refused(answer: httpx.Response, code: str) -> dict[str, Any]:
    """Check that `answer` is this refusal, with a time to come back; return the problem."""
    document: dict[str, Any] = answer.json()
    assert (answer.status_code, document["code"]) == (503, code), document
    assert 1 <= int(answer.headers["retry-after"]) <= 60
    return document


def deploy(gateway: Gateway, name: str, call_s: float = 0.0, **more: Any) -> str:
    """Deploy a function and start one instance of it, which has learned that calls take `call_s`; return its ref."""
    ref = gateway.deploy(name, **more).ref
    gateway.start_instance(ref)
    for _ in range(5 if call_s else 1):
        assert gateway.invoke(name, {"sleep_s": call_s}).status_code == 200
    return ref


@contextmanager
def occupied(
    gateway: Gateway, crowd: ThreadPoolExecutor, name: str, num_waiting: int = 0, for_s: float = 1.5
) -> Iterator[None]:
    """Keep the only slot taken `for_s`, and `num_waiting` calls of low priority waiting, until the body is left."""
    with httpx.Client(base_url=gateway.url, headers=gateway.client.headers, timeout=60) as client:
        url = f"/v1/functions/{name}/invoke"
        low = {"samovar-priority": "low"}
        calls: list[Future[httpx.Response]] = [crowd.submit(client.post, url, json={"sleep_s": for_s})]
        wait_until(lambda: gauge(gateway, "running", name) == 1)
        for _ in range(num_waiting):
            calls.append(crowd.submit(client.post, url, json={"n": 1}, headers=low))
        wait_until(lambda: gauge(gateway, "queued", name) == num_waiting)
        yield
        for call in calls:
            call.result()


def test_what_cannot_meet_its_deadline_is_refused_at_once(gateway: Gateway, crowd: ThreadPoolExecutor) -> None:
    deploy(gateway, "punctual", 0.2)
    calls = [crowd.submit(gateway.invoke, "punctual", {"sleep_s": 0.2, "n": n}) for n in range(20)]
    wait_until(lambda: gauge(gateway, "queued", "punctual") >= 15)
    document = refused(gateway.invoke("punctual", {"sleep_s": 0.2}, samovar_timeout_ms="500"), "would_be_late")
    assert gauge(gateway, "queued", "punctual") > 0, "before its turn"
    assert document["predicted_wait_s"] > 0.3
    assert gauge(gateway, "predicted_wait_seconds", "punctual") > 0.3
    assert gauge(gateway, "queue_age_seconds", "punctual") > 0.0
    assert [call.result().status_code for call in calls] == [200] * 20, "those who have time wait"
    label = '{code="would_be_late",function="punctual",priority="normal",version="1"}'
    assert gateway.metric(f"samovar_sheds_total{label}") == 1


def test_what_takes_longer_than_the_caller_has_is_not_begun(gateway: Gateway) -> None:
    deploy(gateway, "lengthy", 0.2)
    refused(gateway.invoke("lengthy", {"sleep_s": 0.2}, samovar_timeout_ms="50"), "would_be_late")
    assert gauge(gateway, "running", "lengthy") == 0


def test_a_boot_that_takes_too_long_is_foretold_and_begun_all_the_same(gateway: Gateway) -> None:
    ref = gateway.deploy("sleepy").ref
    instance = gateway.start_instance(ref, announce=False)
    instance.record = msgspec.structs.replace(instance.record, boot_ms={"load": 5000.0})
    instance.announce()
    assert gateway.invoke("sleepy").status_code == 200
    instance.announce(State.GONE)
    instance.popen.kill()
    wait_until(lambda: gauge(gateway, "ready_instances", "sleepy") == 0)
    wait_until(lambda: not any(gateway.redis.hexists(key, ref) for key in gateway.redis.keys(keys.demand("*"))))
    with gateway.redis.pubsub() as wakes:  # type: ignore[no-untyped-call]
        wakes.subscribe(keys.CHANNEL_WAKE)
        document = refused(gateway.invoke("sleepy", samovar_timeout_ms="1000"), "would_be_late")
        assert document["predicted_wait_s"] == 5.0
        wait_until(lambda: (wakes.get_message(timeout=0.1) or {}).get("data") == ref.encode())
    starting = InstanceRecord(instance_id="coming", state=State.LOADING, ref=ref)
    gateway.redis.publish(keys.CHANNEL_INSTANCES, dumps(starting))
    wait_until(lambda: gauge(gateway, "predicted_wait_seconds", "sleepy") < 4.5, what="the boot under way counts")


def test_low_priority_makes_room(gateway: Gateway, crowd: ThreadPoolExecutor) -> None:
    deploy(gateway, "classes", limits=Limits(timeout_s=10.0, max_queue=1))
    url = f"{gateway.url}/v1/functions/classes/invoke"
    running = crowd.submit(gateway.invoke, "classes", {"sleep_s": 4.0})
    wait_until(lambda: gauge(gateway, "running", "classes") == 1)
    low = crowd.submit(gateway.invoke, "classes", {"n": 1}, samovar_priority="low")
    wait_until(lambda: gauge(gateway, "queued", "classes") == 1)
    high = crowd.submit(gateway.invoke, "classes", {"n": 2}, samovar_priority="high")
    refused(low.result(), "low_priority")
    refused(gateway.invoke("classes", {"n": 3}), "queue_full")
    assert (high.result().status_code, running.result().status_code) == (200, 200)
    assert httpx.post(url, headers={**gateway.client.headers, "samovar-priority": "vip"}).status_code == 400


def test_a_queue_that_stays_late_sheds_the_oldest(gateway: Gateway, crowd: ThreadPoolExecutor) -> None:
    deploy(gateway, "swamped", 0.05)
    until_s = time.monotonic() + 4.5

    def insist(number: int) -> list[httpx.Response]:
        answers = []
        while time.monotonic() < until_s:
            answers.append(gateway.invoke("swamped", {"sleep_s": 0.05, "n": number}))
        return answers

    answers = [answer for some in crowd.map(insist, range(30)) for answer in some]
    late = [answer for answer in answers if answer.status_code != 200]
    assert late and len(late) < len(answers)
    for answer in late:
        refused(answer, "queue_late")


def test_an_async_instance_that_gains_nothing_from_company_is_given_less(
    gateway: Gateway, crowd: ThreadPoolExecutor
) -> None:
    ref = gateway.deploy("guessed", handler="async").ref
    gateway.start_instance(ref, concurrency=8)
    for _ in range(3):
        gateway.invoke("guessed", {"sleep_s": 0.01})
    for _ in range(3):
        together = [crowd.submit(gateway.invoke, "guessed", {"sleep_s": 0.1}) for _ in range(16)]
        assert {call.result().status_code for call in together} == {200}
    calls = [crowd.submit(gateway.invoke, "guessed", {"sleep_s": 0.4}) for _ in range(24)]
    wait_until(lambda: gauge(gateway, "queued", "guessed") > 12)
    assert gauge(gateway, "running", "guessed") < 8
    refused(gateway.invoke("guessed", {"sleep_s": 0.2}, samovar_timeout_ms="250"), "concurrency_limited")
    assert {call.result().status_code for call in calls} == {200}


def test_bodies_that_wait_are_bounded_and_others_are_refused_unread(
    gateway: Gateway, crowd: ThreadPoolExecutor
) -> None:
    gateway.deploy("heavy")
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(gateway.invoke, "heavy", b'"' + b"x" * 100_000 + b'"')
        wait_until(lambda: gateway.metric("samovar_waiting_bytes") == 100_002)
        with gateway.connect() as connection:
            connection.sendall(gateway.raw("heavy", b"", length=100_000))
            answer = b"".join(iter(lambda: connection.recv(65536), b""))
            assert b" 503 " in answer and b"queue_full" in answer and b"connection: close" in answer
        with gateway.connect() as connection:
            chunk = b"ff00\r\n" + b"x" * 0xFF00 + b"\r\n"
            head = gateway.raw("heavy", b"", b"transfer-encoding: chunked\r\n").replace(b"content-length: 0\r\n", b"")
            connection.sendall(head + chunk)
            assert b" 503 " in connection.recv(65536), "nor may it come without saying how much it is"
        gateway.start_instance("heavy@1")
        assert waiting.result().status_code == 200
    wait_until(lambda: gateway.metric("samovar_waiting_bytes") == 0)


def test_a_client_that_cannot_be_served_yet_is_not_read_from(gateway: Gateway) -> None:
    deploy(gateway, "piped")
    with gateway.connect() as connection:
        connection.sendall(gateway.raw("piped", b'{"sleep_s": 60}'))
        wait_until(lambda: gauge(gateway, "running", "piped") == 1)
        connection.settimeout(1.0)
        with pytest.raises(TimeoutError):
            connection.sendall(gateway.raw("piped", b'"' + b"x" * 10_000 + b'"') * 3000)
        assert gateway.metric("samovar_waiting_bytes") == 0
        assert gauge(gateway, "queued", "piped") == 0


def test_every_deadline_is_capped(gateway: Gateway) -> None:
    deploy(gateway, "patient", limits=Limits(timeout_s=3600.0))
    for headers in ({}, {"samovar_timeout_ms": "9e9"}):
        had_ms = gateway.invoke("patient", {"n": 1}, **headers).json()["timeout_ms"]
        assert (MAX_TIMEOUT_S - 5) * 1000 < had_ms <= MAX_TIMEOUT_S * 1000


def test_an_instance_that_is_ready_but_does_not_answer_is_phase_connect(gateway: Gateway) -> None:
    ref = gateway.deploy("deaf").ref
    record = InstanceRecord(instance_id="deaf-1", state=State.READY, ref=ref, address="unix:/nowhere/deaf.sock")
    gateway.redis.publish(keys.CHANNEL_INSTANCES, dumps(record))
    document = gateway.invoke("deaf", samovar_timeout_ms="1500").json()
    assert (document["code"], document["phase"]) == ("deadline_exceeded", "connect")
    gateway.redis.publish(keys.CHANNEL_INSTANCES, dumps(msgspec.structs.replace(record, state=State.GONE)))
    document = gateway.invoke("deaf", samovar_timeout_ms="2000").json()
    assert document["phase"] == "boot"


@pytest.mark.parametrize("pieces", [1, 2], ids=["fast path", "asgi"])
def test_a_caller_that_leaves_the_queue_is_not_run(gateway: Gateway, crowd: ThreadPoolExecutor, pieces: int) -> None:
    name = f"impatient-{pieces}"
    deploy(gateway, name)
    with occupied(gateway, crowd, name, for_s=5.0):  # a slow machine takes a while to see that somebody left
        with gateway.connect() as connection:
            send(connection, gateway.raw(name, b'{"n": 7}'), pieces)
            wait_until(lambda: gauge(gateway, "queued", name) == 1)
        wait_until(lambda: gauge(gateway, "queued", name) == 0)
        wait_until(lambda: ended(gateway, name, "cancelled") == 1)
        assert gauge(gateway, "running", name) == 1


@pytest.mark.parametrize("pieces", [1, 2], ids=["fast path", "asgi"])
def test_a_caller_that_leaves_a_running_call_frees_its_slot(gateway: Gateway, pieces: int) -> None:
    name = f"leaver-{pieces}"
    deploy(gateway, name)
    with gateway.connect() as connection:
        send(connection, gateway.raw(name, b'{"sleep_s": 60}'), pieces)
        wait_until(lambda: gauge(gateway, "running", name) == 1)
    wait_until(lambda: gauge(gateway, "running", name) == 0)
    wait_until(lambda: ended(gateway, name, "cancelled") == 1)


def test_a_caller_that_leaves_a_stream_ends_it(gateway: Gateway) -> None:
    deploy(gateway, "flowing", handler="generator")
    with gateway.connect() as connection:
        connection.sendall(gateway.raw("flowing", b'{"stream": 100000000}'))
        assert b" 200 " in connection.recv(4096)
        assert gauge(gateway, "running", "flowing") == 1
    wait_until(lambda: gauge(gateway, "running", "flowing") == 0)
    wait_until(lambda: ended(gateway, "flowing", "cancelled") == 1)


def send(connection: Any, request: bytes, pieces: int) -> None:
    """Send a request in one piece, or its body apart from its head."""
    cut = len(request) if pieces == 1 else request.index(b"\r\n\r\n") + 4
    connection.sendall(request[:cut])
    time.sleep(0.05 * (pieces - 1))
    connection.sendall(request[cut:])
