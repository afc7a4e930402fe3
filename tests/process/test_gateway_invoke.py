"""Invocations through a real gateway and stand-in instances."""

from __future__ import annotations

import json
import os
import re
import select
import signal
import socket
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis as redis_sync

from samovar.spec import Limits
from samovar_storage import keys
from samovar_storage.objects import ObjectStore
from samovar_storage.records import BootFailure, dumps
from support.folders import short_folder
from support.gateway import Gateway, milliseconds, now_s, running_gateway
from support.stores import stores_for_a_test
from support.waiting import wait_until

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def gateway(valkey: Any, seaweed: Any) -> Iterator[Gateway]:
    """One gateway for this module; each test deploys a function of its own."""
    stores = stores_for_a_test(valkey, seaweed, 13)
    with redis_sync.Redis.from_url(stores.redis_url) as redis:
        redis.flushdb()
    with short_folder() as folder:
        store = ObjectStore.from_settings(stores.settings(folder))
        store.ensure_bucket()
        with running_gateway(stores, store, folder, max_body_bytes=100_000, body_timeout_s=0.5) as running:
            yield running
        store.close()


def problem(answer: httpx.Response, status: int, code: str) -> dict[str, Any]:
    """Check that `answer` is this problem document and return it."""
    assert answer.headers["content-type"] == "application/problem+json", answer.text
    document: dict[str, Any] = answer.json()
    assert (answer.status_code, document["code"]) == (status, code), document
    assert document["status"] == status
    assert document["type"] == f"urn:samovar:problem:{code}"
    assert document["detail"] and document["request_id"]
    return document


def test_an_answer_comes_back_untouched_with_its_receipt(gateway: Gateway) -> None:
    ref = gateway.deploy("sum").ref
    gateway.start_instance(ref)
    answer = gateway.invoke("sum", {"x": [1.5, 2.0]}, x_request_id="tea-1")
    assert (answer.status_code, answer.json()) == (200, {"sum": 3.5})
    assert answer.headers["samovar-version"] == "1"
    assert answer.headers["x-request-id"] == "tea-1"
    timing = milliseconds(answer.headers["server-timing"])
    assert timing["total"] >= timing["queue"] >= 0
    other = gateway.invoke("sum", {"x": [1]})
    assert len(other.headers["x-request-id"]) >= 12
    assert "load" not in milliseconds(other.headers["server-timing"])


def test_a_call_waits_for_a_cold_start_and_shows_its_phases(gateway: Gateway) -> None:
    ref = gateway.deploy("cold").ref
    with gateway.redis.pubsub() as wakes, ThreadPoolExecutor(1) as pool:  # type: ignore[no-untyped-call]
        wakes.subscribe(keys.CHANNEL_WAKE)
        answer = pool.submit(gateway.invoke, "cold", {"a": 1})
        woken = wait_until(lambda: (wakes.get_message(timeout=0.1) or {}).get("data") == ref.encode())
        assert woken
        demand = wait_until(
            lambda: [b for k in gateway.redis.keys(keys.demand("*")) if (b := gateway.redis.hget(k, ref))]
        )
        assert b'"queued":1' in demand[0]
        gateway.start_instance(ref)
        result = answer.result(60)
    assert result.json()["echo"] == {"a": 1}
    timing = milliseconds(result.headers["server-timing"])
    assert {"queue", "claim", "fetch", "import", "load", "warmup", "run", "total"} <= timing.keys()
    wait_until(lambda: not _demand(gateway, ref))


def test_unknown_function_names_its_neighbours(gateway: Gateway) -> None:
    gateway.deploy("embedder")
    document = problem(gateway.invoke("embeder"), 404, "function_not_found")
    assert "embedder" in document["near"]


def test_keys_are_checked(gateway: Gateway) -> None:
    gateway.deploy("locked")

    def ask(header: dict[str, str]) -> httpx.Response:
        return httpx.post(f"{gateway.url}/v1/functions/locked/invoke", headers=header, content=b"{}")

    assert "Bearer" in ask({}).headers["www-authenticate"]
    problem(ask({}), 401, "unauthenticated")
    problem(ask({"authorization": "Bearer sv_0123456789ab_wrongwrongwrongwrongwrong"}), 401, "unauthenticated")
    for scopes, functions, status, code in (
        (["deploy"], [], 403, "forbidden"),
        (["deploy"], ["locked"], 403, "forbidden"),
        (["invoke"], ["other"], 404, "function_not_found"),
    ):
        _, token = gateway.registry.keys.create("k", scopes, functions)
        header = {"authorization": f"Bearer {token}"}
        wait_until(partial(_is_known, ask, header))
        problem(ask(header), status, code)
    record, token = gateway.registry.keys.create("k", ["invoke"], ["locked"])
    header = {"authorization": f"Bearer {token}", "samovar-timeout-ms": "50"}
    wait_until(lambda: ask(header).status_code == 504)
    gateway.registry.keys.revoke(record.key_id)
    wait_until(lambda: ask(header).status_code == 401)


def test_wrong_methods_paths_and_headers(gateway: Gateway) -> None:
    gateway.deploy("strict")
    problem(gateway.client.get("/v1/functions/strict/invoke"), 405, "method_not_allowed")
    problem(gateway.client.get("/v1/nowhere"), 404, "not_found")
    for bad in ("soon", "-1", "0", "nan", "inf"):
        problem(gateway.invoke("strict", {}, samovar_timeout_ms=bad), 400, "malformed")


def test_a_body_over_the_limit_is_refused_before_it_is_read(gateway: Gateway) -> None:
    gateway.deploy("small")
    problem(gateway.invoke("small", b"x" * 100_001), 413, "body_too_large")
    chunks = (b"y" * 50_000 for _ in range(4))
    answer = gateway.client.post("/v1/functions/small/invoke", content=chunks)
    problem(answer, 413, "body_too_large")
    with gateway.connect() as connection:
        connection.sendall(gateway.raw("small", b"", length=9_000_000_000))
        assert b" 413 " in connection.recv(4096)


def test_a_client_too_slow_to_send_gets_408(gateway: Gateway) -> None:
    gateway.deploy("slow-client")
    with gateway.connect() as connection:
        connection.sendall(gateway.raw("slow-client", b"123", length=10))
        assert b" 408 " in connection.recv(4096)


def test_a_client_that_never_ends_its_head_gets_408(gateway: Gateway) -> None:
    with gateway.connect() as connection, gateway.connect() as silent:
        connection.sendall(b"POST /v1/functions/x/invoke HTTP/1.1\r\nhost: ")
        assert b" 408 " in connection.recv(4096)
        assert b" 408 " in silent.recv(4096)


def test_the_deadline_names_the_phase_it_passed_in(gateway: Gateway) -> None:
    ref = gateway.deploy("late").ref
    document = problem(gateway.invoke("late", {}, samovar_timeout_ms="60"), 504, "deadline_exceeded")
    assert document["phase"] == "boot"
    gateway.start_instance(ref)
    gateway.invoke("late", {})
    document = problem(gateway.invoke("late", {"sleep_s": 5}, samovar_timeout_ms="300"), 504, "deadline_exceeded")
    assert document["phase"] == "run"
    wait_until(lambda: _running(gateway, "late") == 0)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(gateway.invoke, "late", {"sleep_s": 4.0})
        wait_until(lambda: _running(gateway, "late"))
        document = problem(gateway.invoke("late", {}, samovar_timeout_ms="100"), 504, "deadline_exceeded")
        assert document["phase"] == "queue" and not first.done()
        assert first.result(60).status_code == 200


def test_a_full_queue_sheds_with_retry_after(gateway: Gateway) -> None:
    gateway.deploy("narrow", Limits(timeout_s=60.0, max_queue=1))
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(gateway.invoke, "narrow")
        wait_until(lambda: _queued(gateway, "narrow"))
        answer = gateway.invoke("narrow")
        problem(answer, 503, "queue_full")
        assert int(answer.headers["retry-after"]) >= 1
        gateway.start_instance("narrow@1")
        assert waiting.result(60).status_code == 200


def test_a_raising_function_is_500_with_its_type(gateway: Gateway) -> None:
    gateway.start_instance(gateway.deploy("raises").ref)
    document = problem(gateway.invoke("raises", {"fail": "no tea"}), 500, "function_raised")
    assert (document["detail"], document["type"]) == ("no tea", "urn:samovar:problem:function_raised")


def test_a_busy_instance_is_asked_again(gateway: Gateway) -> None:
    gateway.start_instance(gateway.deploy("busy").ref)
    assert gateway.invoke("busy", {"busy": 3}).status_code == 200
    assert gateway.metric('samovar_redispatched_total{function="busy",version="1"}') == 3


def test_poison_takes_only_itself_down(gateway: Gateway) -> None:
    ref = gateway.deploy("poison").ref
    instances = [gateway.start_instance(ref, concurrency=4) for _ in range(3)]
    with ThreadPoolExecutor(6) as pool:
        mates = [pool.submit(gateway.invoke, "poison", {"sleep_s": 1.5, "n": n}) for n in range(5)]
        wait_until(lambda: _running(gateway, "poison") == 5)
        bad = pool.submit(gateway.invoke, "poison", {"die": True})
        assert [mate.result(60).status_code for mate in mates] == [200] * 5
        problem(bad.result(60), 502, "instance_lost")
    wait_until(lambda: sum(instance.popen.poll() is None for instance in instances) == 1)


def test_without_retry_a_started_call_is_lost_and_a_waiting_one_is_not(gateway: Gateway) -> None:
    ref = gateway.deploy("once", retry_on_crash=False).ref
    victim = gateway.start_instance(ref)
    with ThreadPoolExecutor(2) as pool:
        running = pool.submit(gateway.invoke, "once", {"sleep_s": 20})
        wait_until(lambda: _running(gateway, "once") == 1)
        waiting = pool.submit(gateway.invoke, "once", {"n": 1})
        wait_until(lambda: _queued(gateway, "once") == 1)
        gateway.start_instance(ref)
        os.kill(victim.popen.pid, signal.SIGKILL)
        problem(running.result(60), 502, "instance_lost")
        assert waiting.result(60).status_code == 200


@pytest.mark.parametrize("is_told_first", [False, True])
def test_a_lost_call_says_what_the_manager_knows_of_its_instance(gateway: Gateway, is_told_first: bool) -> None:
    name = "told-first" if is_told_first else "lost-first"
    ref = gateway.deploy(name, retry_on_crash=False).ref
    victim = gateway.start_instance(ref)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(gateway.invoke, name, {"sleep_s": 20})
        wait_until(lambda: _running(gateway, name) == 1)
        if is_told_first:
            victim.announce("gone", "it ate too much")
            wait_until(lambda: gateway.client.get(f"/v1/functions/{name}/why").json()["ready"].get("1", 0) == 0)
            os.kill(victim.popen.pid, signal.SIGKILL)
        else:
            os.kill(victim.popen.pid, signal.SIGKILL)
            victim.announce("gone", "it ate too much")
        document = problem(running.result(60), 502, "instance_lost")
    assert document["detail"].endswith("was lost while running the call: it ate too much")
    (record,) = gateway.client.get(f"/v1/functions/{name}/requests", params={"status": 502}).json()["records"]
    assert (record["instance"], record["num_attempts"]) == (victim.record.instance_id, 1)


def test_a_malformed_instance_harms_only_its_own_calls(gateway: Gateway) -> None:
    ref = gateway.deploy("garbage", retry_on_crash=False).ref
    gateway.start_instance(ref)
    problem(gateway.invoke("garbage", {"garbage": True}), 502, "instance_lost")
    assert wait_until(lambda: gateway.invoke("garbage", {"n": 1})).status_code == 200


def test_a_stream_is_lines_and_a_failed_one_ends_abnormally(gateway: Gateway) -> None:
    gateway.start_instance(gateway.deploy("stream", handler="generator").ref)
    answer = gateway.invoke("stream", {"stream": 100})
    assert answer.headers["content-type"] == "application/x-ndjson"
    assert answer.text.splitlines() == [f'{{"n": {n}}}' for n in range(100)]
    seen: list[str] = []
    with (
        pytest.raises(httpx.RemoteProtocolError),
        gateway.client.stream("POST", "/v1/functions/stream/invoke", json={"stream": 5, "raise_at": 2}) as stream,
    ):
        seen.extend(stream.iter_lines())
    problem(gateway.invoke("stream", {"stream": 5, "raise_at": 0}), 500, "function_raised")
    assert gateway.invoke("stream", {"stream": 0}).text == ""


def test_a_client_that_leaves_cancels_its_call(gateway: Gateway) -> None:
    gateway.start_instance(gateway.deploy("leaver").ref)
    whole = gateway.raw("leaver", b'{"sleep_s": 30}')
    with gateway.connect() as connection:
        connection.sendall(whole[:40])
        connection.sendall(whole[40:])
        wait_until(lambda: _running(gateway, "leaver") == 1)
    wait_until(lambda: gateway.metric('samovar_calls_total{code="cancelled",function="leaver",version="1"}') == 1)
    assert gateway.invoke("leaver", {"n": 1}, samovar_timeout_ms="2000").status_code == 200


def test_requests_in_one_piece_in_pieces_and_in_a_row_are_answered_alike(gateway: Gateway) -> None:
    gateway.start_instance(gateway.deploy("pieces").ref)
    whole = gateway.raw("pieces", b'{"x": [1, 2]}', b"x-request-id: r1\r\n")
    with gateway.connect() as connection:
        one = answers_to(connection, [whole], 1)
        split = answers_to(connection, [whole[:40], whole[40:-3], whole[-3:]], 1)
        row = answers_to(connection, [whole * 3], 3)
    heads = [re.sub(rb"(date|server-timing): .*\r\n", b"", head) for head, _ in one + split + row]
    assert {body for _, body in one + split + row} == {b'{"sum":3}'}
    assert len(set(heads)) == 1 and b"x-request-id: r1\r\n" in heads[0]


def test_errors_of_requests_in_one_piece(gateway: Gateway) -> None:
    gateway.start_instance(gateway.deploy("errors").ref)
    with gateway.connect() as connection:
        for name, body, head, status in (
            ("errors", b'{"fail": "no tea"}', b"", b"500"),
            ("nobody", b"{}", b"", b"404"),
            ("errors", b"{}", b"samovar-timeout-ms: x\r\n", b"400"),
            ("errors", b'{"stream": 50}', b"", b"502"),
            ("errors", b'{"sleep_s": 9}', b"samovar-timeout-ms: 50\r\n", b"504"),
        ):
            [(answer, document)] = answers_to(connection, [gateway.raw(name, body, head)], 1)
            assert answer.split()[1] == status and b"application/problem+json" in answer
            assert document.startswith(b"{")
        connection.sendall(gateway.raw("errors", b'{"n": 1}', b"connection: close\r\n"))
        assert b" 200 OK" in b"".join(iter(lambda: connection.recv(4096), b"")), "and then it is closed"


@pytest.mark.parametrize("num_items", [0, 3, 50])
def test_who_does_not_stream_may_not_stream_whichever_way_the_request_came(gateway: Gateway, num_items: int) -> None:
    gateway.start_instance(gateway.deploy(name := f"undeclared-{num_items}").ref)
    whole = gateway.raw(name, b'{"stream": %d}' % num_items, b"x-request-id: r1\r\n")
    cut = whole.index(b"\r\n\r\n") + 4
    with gateway.connect() as connection:
        answers = [*answers_to(connection, [whole], 1), *answers_to(connection, [whole[:cut], whole[cut:]], 1)]
    assert all(b" 502 " in head for head, _ in answers)
    documents = [json.loads(document) for _, document in answers]
    assert documents[0] == documents[1] and documents[0]["code"] == "protocol_error"
    told = gateway.invoke(name, {"stream": num_items}, accept="text/event-stream")
    problem(told, 502, "protocol_error")
    wait_until(lambda: _running(gateway, name) == 0)
    assert gateway.invoke(name, {"x": [1]}).json() == {"sum": 1}


def test_a_caller_of_the_fast_path_who_leaves_cancels_its_call(gateway: Gateway) -> None:
    gateway.start_instance(gateway.deploy("quitter").ref)
    with gateway.connect() as connection:
        connection.sendall(gateway.raw("quitter", b'{"sleep_s": 30}'))
        wait_until(lambda: _running(gateway, "quitter") == 1)
    wait_until(lambda: gateway.metric('samovar_calls_total{code="cancelled",function="quitter",version="1"}') == 1)
    wait_until(lambda: _running(gateway, "quitter") == 0)


def test_a_failed_boot_reaches_those_who_wait_and_then_those_who_come(gateway: Gateway) -> None:
    ref = gateway.deploy("broken").ref
    failure = BootFailure(
        ref=ref,
        code="load_failed",
        status=500,
        detail="load raised OSError: no weights",
        phase="load",
        log_tail=["line 1"],
        retry_at_s=now_s() + 1.0,
    )
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(gateway.invoke, "broken")
        wait_until(lambda: _queued(gateway, "broken") == 1)
        gateway.redis.set(keys.boot(ref), dumps(failure), ex=6)
        gateway.redis.publish(keys.CHANNEL_BOOT, dumps(failure))
        document = problem(waiting.result(60), 500, "load_failed")
    assert document["log_tail"] == ["line 1"]
    answer = gateway.invoke("broken")
    problem(answer, 500, "load_failed")
    assert int(answer.headers["retry-after"]) >= 1
    gateway.start_instance(ref)
    wait_until(lambda: gateway.invoke("broken").status_code == 200)


def test_a_call_given_ahead_is_taken_back_from_a_busy_instance(gateway: Gateway) -> None:
    ref = gateway.deploy("uneven").ref
    gateway.start_instance(ref)
    for _ in range(3):
        gateway.invoke("uneven", {"x": [1]})
    with ThreadPoolExecutor(2) as pool:
        slow = pool.submit(gateway.invoke, "uneven", {"sleep_s": 3.0})
        wait_until(lambda: _running(gateway, "uneven") == 1)
        quick = pool.submit(gateway.invoke, "uneven", {"n": 1})
        wait_until(lambda: _queued(gateway, "uneven") == 1)
        gateway.start_instance(ref)
        assert quick.result(60).json()["echo"] == {"n": 1}
        assert not slow.done()
        assert slow.result(60).status_code == 200


def test_a_drained_instance_gets_no_more_calls(gateway: Gateway) -> None:
    ref = gateway.deploy("drained").ref
    first, second = gateway.start_instance(ref), gateway.start_instance(ref)

    def pids() -> set[int]:
        with ThreadPoolExecutor(2) as pool:
            answers = pool.map(lambda n: gateway.invoke("drained", {"sleep_s": 0.1, "n": n}), range(2))
            return {answer.json()["pid"] for answer in answers}

    wait_until(lambda: len(pids()) == 2)
    first.announce("draining")
    wait_until(lambda: pids() == {second.popen.pid})


def test_metrics_count_by_function_and_outcome(gateway: Gateway) -> None:
    gateway.start_instance(gateway.deploy("counted").ref)
    for _ in range(3):
        gateway.invoke("counted", {"n": 1})
    text = gateway.client.get("/metrics").text
    assert 'samovar_calls_total{code="ok",function="counted",protocol="native",version="1"} 3.0' in text
    assert re.search(r'samovar_call_seconds_bucket\{function="counted",le="\+Inf",version="1"\} 3.0', text)
    assert 'samovar_instances{function="counted",state="ready",version="1"} 1.0' in text
    assert "process_cpu_seconds_total" in text
    page = (Path(__file__).parents[2] / "docs" / "dispatch.md").read_text()
    families = re.findall(r"^# TYPE (samovar_\w+) ", text, re.MULTILINE)
    assert [name for name in families if f"`{name}`" not in page] == []


def answers_to(connection: socket.socket, pieces: list[bytes], count: int) -> list[tuple[bytes, bytes]]:
    """Send the pieces one by one; return the heads and bodies of `count` answers."""
    connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
    for piece in pieces:
        connection.sendall(piece)
        select.select([connection], [], [], 0.02)
    data = b""
    answers: list[tuple[bytes, bytes]] = []
    while len(answers) < count:
        head, end, rest = data.partition(b"\r\n\r\n")
        length = re.search(rb"content-length: (\d+)", head)
        if end and length and len(rest) >= int(length[1]):
            answers.append((head + end, rest[: int(length[1])]))
            data = rest[int(length[1]) :]
        else:
            received = connection.recv(65536)
            assert received, data
            data += received
    return answers


def _is_known(ask: Callable[[dict[str, str]], httpx.Response], header: dict[str, str]) -> bool:
    return ask(header).status_code != 401


def _demand(gateway: Gateway, ref: str) -> bytes:
    written = [gateway.redis.hget(key, ref) for key in gateway.redis.scan_iter(keys.demand("*"))]
    return b"".join(demand for demand in written if isinstance(demand, bytes))


def _running(gateway: Gateway, name: str) -> float:
    return gateway.metric(f'samovar_running{{function="{name}",version="1"}}')


def _queued(gateway: Gateway, name: str) -> float:
    return gateway.metric(f'samovar_queued{{function="{name}",version="1"}}')
