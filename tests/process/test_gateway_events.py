"""Invocations answered by server-sent events: a real gateway, stand-in instances, a real HTTP client."""

from __future__ import annotations

import json
import signal
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis as redis_sync

from samovar.policies import Cache, Fallback
from samovar.spec import Limits
from samovar.wire import STREAM_WINDOW
from samovar_storage.objects import ObjectStore
from support.folders import short_folder
from support.gateway import Gateway, running_gateway
from support.stores import stores_for_a_test
from support.waiting import wait_until

pytestmark = pytest.mark.process

EVENTS = {"accept": "text/event-stream"}
NewGateway = Callable[[], Any]


@pytest.fixture(scope="module")
def new_gateway(valkey: Any, seaweed: Any) -> Iterator[NewGateway]:
    """Starts gateways over one set of stores."""
    stores = stores_for_a_test(valkey, seaweed, 13)
    with redis_sync.Redis.from_url(stores.redis_url) as redis:
        redis.flushdb()
    with short_folder() as folder:
        store = ObjectStore.from_settings(stores.settings(folder))
        store.ensure_bucket()

        @contextmanager
        def start() -> Iterator[Gateway]:
            with short_folder() as run, running_gateway(stores, store, Path(run)) as running:
                yield running

        yield start
        store.close()


@pytest.fixture(scope="module")
def gateway(new_gateway: NewGateway) -> Iterator[Gateway]:
    """One gateway for this module; each test deploys a function of its own."""
    with new_gateway() as running:
        yield running


def parsed(text: str) -> list[tuple[int, str, Any]]:
    """Return id, kind and data of each event; comments are skipped."""
    found = []
    for block in text.split("\n\n"):
        lines = [line.partition(": ") for line in block.splitlines() if line and not line.startswith(":")]
        if lines:
            fields = {name: value for name, _, value in lines if name != "data"}
            data = json.loads("\n".join(value for name, _, value in lines if name == "data"))
            found.append((int(fields["id"]), fields["event"], data))
    return found


def kinds(text: str) -> list[str]:
    return [kind for _, kind, _ in parsed(text)]


@contextmanager
def opened(gateway: Gateway, name: str, body: Any, **more: str) -> Iterator[httpx.Response]:
    path = f"/v1/functions/{name}/invoke"
    with gateway.client.stream("POST", path, json=body, headers=EVENTS | more) as answer:
        yield answer


def read(answer: httpx.Response) -> tuple[str, bool]:
    """Return what came, and whether it was the whole response."""
    text = ""
    try:
        for piece in answer.iter_text():
            text += piece
    except httpx.RemoteProtocolError:
        return text, False
    return text, True


def test_a_stream_is_told_by_events_and_ends_with_its_receipt(gateway: Gateway) -> None:
    gateway.start_instance(gateway.deploy("tells", handler="generator").ref)
    answer = gateway.invoke("tells", {"stream": 50}, **EVENTS)
    assert answer.headers["content-type"] == "text/event-stream; charset=utf-8"
    assert answer.headers["samovar-version"] == "1" and answer.headers["x-request-id"]
    events = parsed(answer.text)
    assert [number for number, _, _ in events] == list(range(1, 52))
    assert events[:-1] == [(n + 1, "output", {"n": n}) for n in range(50)]
    _, kind, receipt = events[-1]
    assert kind == "done" and receipt["num_outputs"] == 50 and receipt["headers"]["samovar-version"] == "1"
    assert set(receipt["timing_ms"]) >= {"queue", "run", "total"}
    assert kinds(gateway.invoke("tells", {"stream": 0}, **EVENTS).text) == ["done"]


def test_lines_remain_the_answer_of_those_who_do_not_ask(gateway: Gateway) -> None:
    gateway.start_instance(gateway.deploy("lines", handler="generator").ref)
    for accept in ("*/*", "text/*", "application/x-ndjson", "application/x-ndjson, text/event-stream;q=0.5"):
        answer = gateway.invoke("lines", {"stream": 2, "say": "unheard"}, accept=accept)
        assert answer.headers["content-type"] == "application/x-ndjson"
        assert answer.text == '{"n": 0}\n{"n": 1}\n'


def test_a_function_with_one_value_tells_one_output(gateway: Gateway) -> None:
    gateway.start_instance(gateway.deploy("value").ref)
    answer = gateway.invoke("value", {"x": [1, 2]}, **EVENTS)
    events = parsed(answer.text)
    assert events[0] == (1, "output", {"sum": 3}) and events[1][1] == "done" and len(events) == 2
    assert gateway.invoke("value", {"x": [1, 2]}, accept="application/json, text/event-stream;q=0.1").json()["sum"] == 3


def test_what_stands_in_for_an_answer_is_told_as_one(gateway: Gateway) -> None:
    gateway.start_instance(gateway.deploy("kept", cache=Cache(ttl_s=30.0)).ref)
    receipts = []
    for _ in range(2):
        events = parsed(gateway.invoke("kept", {"x": [1, 2]}, **EVENTS).text)
        assert [(kind, data) for _, kind, data in events[:-1]] == [("output", {"sum": 3})]
        receipts.append(events[-1][2])
    assert [set(receipt) for receipt in receipts] == [
        {"num_outputs", "timing_ms", "headers"},
        {"num_outputs", "headers"},
    ]
    assert "hit" in receipts[1]["headers"]["cache-status"] and receipts[1]["headers"]["samovar-version"] == "1"
    fallback = Fallback(value={"sum": 0})
    gateway.start_instance(gateway.deploy("stood-in-for", fallback=fallback).ref)
    events = parsed(gateway.invoke("stood-in-for", {"fail": "x"}, **EVENTS).text)
    assert events[0][1:] == ("output", {"sum": 0}) and events[1][2]["headers"]["samovar-fallback"] == "value"


def test_a_job_and_a_repeatable_answer_are_no_streams(gateway: Gateway) -> None:
    gateway.start_instance(gateway.deploy("deferred").ref)
    assert gateway.invoke("deferred", {"x": [1]}, prefer="respond-async", **EVENTS).status_code == 202


def test_what_the_handler_says_comes_in_its_place(gateway: Gateway) -> None:
    gateway.start_instance(gateway.deploy("says", handler="generator").ref)
    events = parsed(gateway.invoke("says", {"stream": 3, "say": "tea"}, **EVENTS).text)
    assert [kind for _, kind, _ in events] == ["log", *["output", "log", "progress"] * 3, "done"]
    assert [data["line"] for _, kind, data in events if kind == "log"] == ["tea", "tea 0", "tea 1", "tea 2"]
    assert [data["fraction"] for _, kind, data in events if kind == "progress"] == [1 / 3, 2 / 3, 1.0]
    with opened(gateway, "says", {"sleep_s": 30, "say": "at once"}, **{"samovar-timeout-ms": "20000"}) as answer:
        assert kinds(next(answer.iter_text())) == ["log"], "what is said is told while the handler computes"


def test_failures_before_anything_was_sent_keep_their_status(gateway: Gateway) -> None:
    gateway.start_instance(gateway.deploy("fails", handler="generator").ref)
    for body, status, code in (({"stream": 5, "raise_at": 0}, 500, "function_raised"), ({"fail": "x"}, 500, None)):
        answer = gateway.invoke("fails", body, **EVENTS)
        assert answer.status_code == status and answer.headers["content-type"] == "application/problem+json"
        assert answer.json()["code"] == (code or "function_raised")
    assert gateway.invoke("nobody", {}, **EVENTS).status_code == 404
    assert gateway.invoke("fails", {"sleep_s": 5}, samovar_timeout_ms="100", **EVENTS).status_code == 504
    again = gateway.invoke("fails", {"stream": 5}, last_event_id="3", **EVENTS)
    assert again.status_code == 400 and "resumed" in again.json()["detail"]


def test_a_failure_in_mid_stream_is_an_event_and_an_abnormal_end(gateway: Gateway) -> None:
    gateway.start_instance(gateway.deploy("spills", handler="generator").ref)
    with opened(gateway, "spills", {"stream": 5, "raise_at": 2}) as answer:
        text, is_whole = read(answer)
    assert not is_whole and kinds(text) == ["output", "output", "error"]
    problem = parsed(text)[-1][2]
    assert problem["code"] == "function_raised" and problem["status"] == 500
    assert problem["request_id"] == answer.headers["x-request-id"]
    with opened(gateway, "spills", {"stream": 500, "pause_s": 0.05}, **{"samovar-timeout-ms": "2500"}) as answer:
        text, is_whole = read(answer)
    assert not is_whole and parsed(text)[-1][1:2] == ("error",)
    assert parsed(text)[-1][2]["code"] == "deadline_exceeded"


def test_an_instance_that_dies_in_mid_stream_is_an_error_event(gateway: Gateway) -> None:
    instance = gateway.start_instance(gateway.deploy("dies", handler="generator").ref)
    with opened(gateway, "dies", {"stream": 500, "pause_s": 0.05}) as answer:
        pieces = answer.iter_text()
        assert kinds(next(pieces))[0] == "output"
        instance.popen.send_signal(signal.SIGKILL)
        text = ""
        with pytest.raises(httpx.RemoteProtocolError):
            for piece in pieces:
                text += piece
    assert parsed(text)[-1][2]["code"] == "instance_lost"


def test_who_waits_is_told_where_and_a_later_refusal_is_an_event(gateway: Gateway) -> None:
    gateway.start_instance(gateway.deploy("slow", limits=Limits(timeout_s=20.0)).ref)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(gateway.invoke, "slow", {"sleep_s": 8})
        wait_until(lambda: gateway.metric('samovar_running{function="slow",version="1"}') == 1)
        second = pool.submit(gateway.invoke, "slow", {"n": 1})
        wait_until(lambda: gateway.metric('samovar_queued{function="slow",version="1"}') == 1)
        with opened(gateway, "slow", {"n": 2}) as answer:
            assert answer.status_code == 200 and "samovar-version" not in answer.headers
            text, is_whole = read(answer)
        assert is_whole and text.startswith(": waiting, phase queue, 1 ahead\n\n")
        assert kinds(text) == ["output", "done"]
        assert first.result().status_code == second.result().status_code == 200
    gateway.deploy("cold", limits=Limits(timeout_s=7.0))
    with opened(gateway, "cold", {"n": 1}) as answer:
        text, is_whole = read(answer)
    assert not is_whole and text.startswith(": waiting, phase boot, 0 ahead\n\n: waiting, phase boot, 0 ahead\n\n")
    assert kinds(text) == ["error"] and parsed(text)[0][2]["code"] == "deadline_exceeded"


def test_a_slow_reader_holds_the_generator_back(gateway: Gateway) -> None:
    instance = gateway.start_instance(gateway.deploy("ahead", handler="generator").ref)
    body = json.dumps({"stream": 200_000}).encode()
    with gateway.connect() as connection:
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 4096)
        connection.sendall(gateway.raw("ahead", body, b"accept: text/event-stream\r\n"))
        seen = b""
        while b"event: output" not in seen:
            seen += connection.recv(4096)

        def settled() -> int:
            """Return how many items were sent, once that stays so while gateway and instance do other things."""
            counts = set()
            for _ in range(5):
                assert gateway.client.get("/readyz").status_code == 200
                counts.add(instance.behave()["chunks"])
            return counts.pop() if len(counts) == 1 else 0

        before = wait_until(settled, 120, "the generator waits for its reader")
        assert STREAM_WINDOW < before < 150_000
    wait_until(lambda: gateway.metric('samovar_running{function="ahead",version="1"}') == 0, what="it was cancelled")
    assert instance.behave()["chunks"] <= before + 3 * STREAM_WINDOW


def test_a_caller_who_leaves_ends_the_call_waiting_or_streaming(gateway: Gateway) -> None:
    instance = gateway.start_instance(gateway.deploy("leaves", handler="generator").ref)
    with opened(gateway, "leaves", {"stream": 1000, "pause_s": 0.05}) as answer:
        next(answer.iter_raw())
    cancelled = 'samovar_calls_total{code="cancelled",function="leaves",version="1"}'
    wait_until(lambda: gateway.metric(cancelled) == 1)
    assert instance.behave()["chunks"] < 500
    with gateway.connect() as connection:
        connection.sendall(gateway.raw("leaves", b'{"sleep_s": 30}', b"accept: text/event-stream\r\n"))
        wait_until(lambda: gateway.metric('samovar_running{function="leaves",version="1"}') == 1)
    wait_until(lambda: gateway.metric(cancelled) == 2)


def test_streams_to_clients_of_http_1_0_end_by_closing_the_connection(gateway: Gateway) -> None:
    gateway.start_instance(gateway.deploy("old", handler="generator").ref)

    def told(body: bytes, head: bytes = b"") -> str:
        request = gateway.raw("old", body, head).replace(b" HTTP/1.1\r\n", b" HTTP/1.0\r\n", 1)
        with gateway.connect() as connection, connection.makefile("rb") as file:
            connection.sendall(request)
            answer = file.read()
        head, _, content = answer.partition(b"\r\n\r\n")
        assert b"transfer-encoding" not in head.lower() and b"connection: close" in head.lower()
        return content.decode()

    assert [json.loads(line) for line in told(b'{"stream": 3}').splitlines()] == [{"n": n} for n in range(3)]
    assert kinds(told(b'{"stream": 3}', b"accept: text/event-stream\r\n")) == ["output", "output", "output", "done"]
    assert "error" in json.loads(told(b'{"stream": 3, "raise_at": 1}').splitlines()[-1])
    assert json.loads(told(b'{"stream": 3, "raise_at": 0}'))["code"] == "function_raised"


def test_metrics_have_the_time_that_streams_spent_in_handlers_whole_or_failed(gateway: Gateway) -> None:
    gateway.start_instance(gateway.deploy("timed", handler="generator").ref)
    seconds = 'samovar_run_seconds_total{function="timed",version="1"}'
    for body, total_s in (({"stream": 2}, 0.25), ({"stream": 2, "raise_at": 1}, 0.5)):
        with opened(gateway, "timed", body | {"run_us": 250_000}) as answer, suppress(httpx.RemoteProtocolError):
            answer.read()
        assert gateway.metric(seconds) == pytest.approx(total_s)


def test_a_gateway_that_leaves_lets_streams_finish(new_gateway: NewGateway) -> None:
    with new_gateway() as leaving:
        leaving.start_instance(leaving.deploy("parts", handler="generator").ref)
        with opened(leaving, "parts", {"stream": 40, "pause_s": 0.05}) as answer:
            pieces = answer.iter_text()
            text = next(pieces)
            leaving.process.send_signal(signal.SIGTERM)
            text += "".join(pieces)
        assert parsed(text)[-1][1] == "done" and parsed(text)[-1][2]["num_outputs"] == 40
        assert leaving.process.wait(60) == 0
