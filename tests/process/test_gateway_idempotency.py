"""Requests with an Idempotency-Key, by HTTP: done once by two gateways, whoever is killed meanwhile."""

from __future__ import annotations

import json
import os
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis as redis_sync

from samovar.spec import Limits
from samovar_storage import keys
from samovar_storage.embedded import EmbeddedValkey
from samovar_storage.objects import ObjectStore
from support.folders import short_folder
from support.gateway import ADMIN_KEY, Gateway, running_gateway
from support.hand_worker import HandWorker
from support.processes import running
from support.stores import Stores, stores_for_a_test
from support.waiting import wait_until

pytestmark = pytest.mark.process

ADMIN = ADMIN_KEY.split("_")[1]


class Pair:
    """Two gateways of one platform. store: their bucket."""

    def __init__(self, one: Gateway, other: Gateway, stores: Stores, store: ObjectStore) -> None:
        self.one = one
        self.other = other
        self.stores = stores
        self.store = store

    @contextmanager
    def third(self, gateway_id: str = "three") -> Iterator[Gateway]:
        """One more, to be killed."""
        with (
            short_folder() as folder,
            running_gateway(self.stores, self.store, folder, gateway_id=gateway_id) as gateway,
        ):
            yield gateway

    def post(
        self, path: str, key: str | bytes, body: Any, gateway: Gateway | None = None, **more: str
    ) -> httpx.Response:
        """Header names are written with underscores."""
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        named = key if isinstance(key, bytes) else key.encode()
        headers = [(b"idempotency-key", named), *((k.replace("_", "-").encode(), v.encode()) for k, v in more.items())]
        return (gateway or self.one).client.post(path, content=content, headers=headers)

    def invoke(
        self, name: str, key: str | bytes, body: Any, gateway: Gateway | None = None, **more: str
    ) -> httpx.Response:
        return self.post(f"/v1/functions/{name}/invoke", key, body, gateway, **more)

    def submit(
        self, name: str, key: str | bytes, body: Any, gateway: Gateway | None = None, **more: str
    ) -> httpx.Response:
        return self.post(f"/v1/functions/{name}/jobs", key, body, gateway, **more)

    def deploy(self, name: str, concurrency: int = 1, **more: Any) -> Any:
        """Deploy a function with one instance, which both gateways know; return the instance."""
        instance = self.one.start_instance(self.one.deploy(name, **more).ref, concurrency)
        for gateway in (self.one, self.other):
            assert gateway.invoke(name, {"warm": True}).status_code == 200
        return instance


@pytest.fixture(scope="module")
def pair(valkey: Any, seaweed: Any) -> Iterator[Pair]:
    stores = stores_for_a_test(valkey, seaweed, 10)
    with redis_sync.Redis.from_url(stores.redis_url) as redis:
        redis.flushdb()
    with short_folder() as folder, short_folder() as second:
        store = ObjectStore.from_settings(stores.settings(folder))
        store.ensure_bucket()
        with (
            running_gateway(stores, store, folder, gateway_id="one") as one,
            running_gateway(stores, store, second, gateway_id="two") as two,
        ):
            yield Pair(one, two, stores, store)
        store.close()


def code_of(answer: httpx.Response) -> tuple[int, str]:
    return answer.status_code, answer.json()["code"]


def num_calls(instance: Any) -> int:
    calls: int = instance.behave()["calls"]
    return calls


def test_the_first_answer_is_given_again_by_every_gateway(pair: Pair) -> None:
    pair.deploy("echo")
    first = pair.invoke("echo", "doc-42", {"n": 1}, x_request_id="one")
    again = [
        pair.invoke("echo", key, {"n": 1}, gateway)
        for key in ("doc-42", '"doc-42"')
        for gateway in (pair.one, pair.other)
    ]
    assert first.status_code == 200 and "idempotency-replayed" not in first.headers
    assert first.headers["x-request-id"] == "one" and "server-timing" in first.headers
    for answer in again:
        assert (answer.status_code, answer.content) == (200, first.content)
        assert answer.headers["idempotency-replayed"] == "true"
        assert answer.headers["samovar-version"] == "1" and "server-timing" not in answer.headers
        assert answer.headers["content-type"] == first.headers["content-type"]
        assert answer.headers["x-request-id"] != "one"
    assert pair.invoke("echo", "doc-43", {"n": 1}).content != first.content, "another key is another request"
    found = pair.one.client.get("/v1/functions/echo/requests").json()["records"]
    assert sum(bool(record["cached"]) for record in found) >= 2


def test_another_request_with_the_key_is_refused(pair: Pair) -> None:
    pair.deploy("reuse")
    pair.deploy("reuse-too")
    assert pair.invoke("reuse", "k", {"n": 1}).status_code == 200
    for body, more in (
        ({"n": 2}, {}),
        ({"n": 1}, {"content_type": "text/plain"}),
        ({"n": 1}, {"prefer": "respond-async"}),
    ):
        assert code_of(pair.invoke("reuse", "k", body, pair.other, **more)) == (422, "idempotency_reused")
    assert pair.invoke("reuse-too", "k", {"n": 2}).status_code == 200, "keys are a function's own"
    made = pair.one.client.post("/v1/keys", json={"name": "k", "scopes": ["invoke"]}).json()
    header = {"authorization": f"Bearer {made['key']}", "idempotency-key": "k"}
    other = wait_until(
        lambda: (
            (a := httpx.post(pair.one.url + "/v1/functions/reuse/invoke", json={"n": 3}, headers=header)).status_code
            != 401
            and a
        )
    )
    assert other.status_code == 200, "keys are an API key's own"


@pytest.mark.parametrize("key", [b"", b"x" * 256, b'"open', b'"a"b', "é".encode(), b'"a\\n"', b'""'])
def test_what_is_no_key_is_refused(pair: Pair, key: bytes) -> None:
    if not pair.one.redis.hexists(keys.FUNCTIONS, "no-key"):
        pair.one.deploy("no-key")
    assert code_of(pair.invoke("no-key", key, {})) == (400, "malformed")
    assert code_of(pair.submit("no-key", key, {"input": 1})) == (400, "malformed")


def test_a_generator_takes_no_key(pair: Pair) -> None:
    pair.one.start_instance(pair.one.deploy("stream", handler="generator").ref)
    assert code_of(pair.invoke("stream", "k", {"stream": 3})) == (400, "malformed")
    assert pair.one.invoke("stream", {"stream": 3}).status_code == 200


def test_fifty_equal_requests_at_once_are_one_run(pair: Pair) -> None:
    instance = pair.deploy("herd", concurrency=8)
    before = num_calls(instance)
    with ThreadPoolExecutor(50) as pool:
        asked = [
            pool.submit(pair.invoke, "herd", "one", {"sleep_s": 0.5}, (pair.one, pair.other)[n % 2]) for n in range(50)
        ]
        answers = [each.result(60) for each in asked]
    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.content for answer in answers}) == 1
    assert sum("idempotency-replayed" not in answer.headers for answer in answers) == 1
    assert num_calls(instance) == before + 1


def test_while_the_first_runs_the_others_wait_as_long_as_they_may(pair: Pair) -> None:
    instance = pair.deploy("slow", concurrency=8)
    before = num_calls(instance)
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(pair.invoke, "slow", "k", {"sleep_s": 4.0})
        wait_until(lambda: num_calls(instance) == before + 1)
        hasty = pair.invoke("slow", "k", {"sleep_s": 4.0}, pair.other, samovar_timeout_ms="100")
        assert code_of(hasty) == (409, "idempotency_running") and int(hasty.headers["retry-after"]) >= 1
        patient = pair.invoke("slow", "k", {"sleep_s": 4.0}, pair.other)
        assert patient.content == first.result(60).content
    assert num_calls(instance) == before + 1


def test_a_caller_who_left_and_comes_again_gets_the_answer(pair: Pair) -> None:
    instance = pair.deploy("leaver", concurrency=8)
    before = num_calls(instance)
    body = b'{"sleep_s":1.0}'
    with pair.one.connect() as hasty:
        hasty.sendall(pair.one.raw("leaver", body, b"idempotency-key: k\r\n"))
        wait_until(lambda: num_calls(instance) == before + 1)
    again = pair.invoke("leaver", "k", body, pair.other)
    assert again.status_code == 200 and again.headers["idempotency-replayed"] == "true"
    assert num_calls(instance) == before + 1


@pytest.mark.parametrize(
    ("body", "status", "is_kept"),
    [
        ({"fail": "no tea"}, 500, True),
        ({"fail": "x", "code": "invalid_input", "status": 422}, 422, True),
        ({"fail": "x", "code": "unavailable", "status": 503}, 503, False),
        ({"fail": "x", "code": "rate_limited", "status": 429}, 429, False),
        ({"sleep_s": 5}, 504, False),
    ],
)
def test_errors_are_kept_if_a_repeat_could_not_end_otherwise(
    pair: Pair, body: dict[str, Any], status: int, is_kept: bool
) -> None:
    name = f"fails-{status}"
    instance = pair.deploy(name, concurrency=8)
    before = num_calls(instance)
    timeout_ms = "1500" if status == 504 else "10000"
    answers = [
        pair.invoke(name, "k", body, gateway, samovar_timeout_ms=timeout_ms) for gateway in (pair.one, pair.other)
    ]
    assert [answer.status_code for answer in answers] == [status] * 2
    assert num_calls(instance) == before + (1 if is_kept else 2)
    assert ("idempotency-replayed" in answers[1].headers) is is_kept
    if is_kept:
        assert answers[0].content == answers[1].content
        assert answers[1].headers["content-type"] == "application/problem+json"


def test_a_large_answer_lies_in_object_storage(pair: Pair) -> None:
    pair.deploy("large")
    body = {"text": "x" * 400_000}
    first, again = pair.invoke("large", "k", body), pair.invoke("large", "k", body, pair.other)
    assert first.status_code == 200 and len(first.content) > 400_000
    assert again.content == first.content and again.headers["idempotency-replayed"] == "true"
    assert [info for info in pair.store.list("idempotency/") if info.size_bytes == len(first.content)]
    kept = [key for key in pair.one.redis.keys(keys.idempotency("*")) if b":large:" in key]
    assert 0 < (pair.one.redis.memory_usage(kept[0]) or 0) < 2000


def test_an_answer_outlives_its_gateway(pair: Pair) -> None:
    pair.deploy("outlives")
    with pair.third() as third:
        wait_until(lambda: third.invoke("outlives").status_code == 200)
        first = pair.invoke("outlives", "k", {"n": 1}, third)
        third.process.kill()
    again = pair.invoke("outlives", "k", {"n": 1})
    assert again.content == first.content and again.headers["idempotency-replayed"] == "true"


def test_a_gateway_that_is_killed_meanwhile_allows_one_more_run(pair: Pair) -> None:
    instance = pair.deploy("killed", concurrency=8)
    with pair.third() as third, ThreadPoolExecutor(10) as pool:
        wait_until(lambda: third.invoke("killed").status_code == 200)
        before = num_calls(instance)
        lost = pool.submit(pair.invoke, "killed", "k", {"sleep_s": 2.0}, third)
        wait_until(lambda: num_calls(instance) == before + 1)
        waiting = [
            pool.submit(pair.invoke, "killed", "k", {"sleep_s": 2.0}, (pair.one, pair.other)[n % 2]) for n in range(8)
        ]
        os.kill(third.process.pid, signal.SIGKILL)
        with pytest.raises(httpx.TransportError):
            lost.result(60)
        answers = [each.result(60) for each in waiting]
    assert {answer.status_code for answer in answers} == {200}
    assert len({answer.content for answer in answers}) == 1
    assert num_calls(instance) == before + 2


def test_a_gateway_that_was_stopped_for_long_gives_the_answer_that_counts(pair: Pair) -> None:
    instance = pair.deploy("stopped", concurrency=8)
    with pair.third() as third, ThreadPoolExecutor(1) as pool:
        wait_until(lambda: third.invoke("stopped").status_code == 200)
        before = num_calls(instance)
        late = pool.submit(pair.invoke, "stopped", "k", {"sleep_s": 1.0}, third)
        wait_until(lambda: num_calls(instance) == before + 1)
        os.kill(third.process.pid, signal.SIGSTOP)
        other = pair.invoke("stopped", "k", {"sleep_s": 1.0})
        os.kill(third.process.pid, signal.SIGCONT)
        assert other.status_code == 200
        assert late.result(60).content == other.content


# ---- submissions -------------------------------------------------------------------------------------------------


def jobs_of(pair: Pair, name: str) -> list[str]:
    answer = pair.one.client.get("/v1/jobs", params={"function": name, "limit": 1000})
    return [job["id"] for job in answer.json()["jobs"]]


def test_a_submission_is_one_job(pair: Pair) -> None:
    pair.one.deploy("submit")
    with ThreadPoolExecutor(20) as pool:
        asked = [
            pool.submit(pair.submit, "submit", "k", {"input": 1}, (pair.one, pair.other)[n % 2]) for n in range(20)
        ]
        answers = [each.result(60) for each in asked]
    assert {answer.status_code for answer in answers} == {202}, answers[0].text
    assert len({answer.content for answer in answers}) == 1
    (job_id,) = jobs_of(pair, "submit")
    assert {answer.headers["location"] for answer in answers} == {f"/v1/jobs/{job_id}"}
    assert sum("idempotency-replayed" not in answer.headers for answer in answers) == 1
    assert code_of(pair.submit("submit", "k", {"input": 2}, pair.other)) == (422, "idempotency_reused")
    assert code_of(pair.submit("submit", "bad", {"input": 1, "retries": -1})) == (422, "invalid_input")


def test_a_submission_of_many_is_one_group(pair: Pair) -> None:
    pair.one.deploy("group")
    body = {"inputs": [1, 2, 3], "reduce": {}}
    first, again = pair.submit("group", "k", body), pair.submit("group", "k", body, pair.other)
    assert first.status_code == 202 and again.content == first.content
    assert len(jobs_of(pair, "group")) == 4


def test_a_submission_whose_gateway_died_is_the_same_job(pair: Pair) -> None:
    pair.one.deploy("died")
    first = pair.submit("died", "k", {"input": 1})
    name = next(key for key in pair.one.redis.keys(keys.idempotency(f"{ADMIN}:jobs:died:*")))
    pair.one.redis.hdel(name, "answer")  # as if it had been killed between submitting and keeping
    pair.one.redis.hset(name, "owner", "dead:1")
    began_s = time.monotonic()
    again = pair.submit("died", "k", {"input": 1}, pair.other)
    assert time.monotonic() - began_s > 2.5, "the dead are given time"
    assert again.status_code == 202 and again.json()["id"] == first.json()["id"]
    assert jobs_of(pair, "died") == [first.json()["id"]]


def test_an_invocation_that_became_a_job_is_one_job(pair: Pair) -> None:
    pair.one.deploy("deferred")
    first = pair.invoke("deferred", "k", {"n": 1}, prefer="respond-async")
    again = pair.invoke("deferred", "k", {"n": 1}, pair.other, prefer="respond-async, wait=1")
    assert (first.status_code, again.status_code) == (202, 202)
    assert again.headers["location"] == first.headers["location"]
    assert len(jobs_of(pair, "deferred")) == 1
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(pair.invoke, "deferred", "w", {"n": 2}, prefer="respond-async, wait=20")
        wait_until(lambda: len(jobs_of(pair, "deferred")) == 2)
        with closing(HandWorker(pair.stores.redis_url, pair.store)) as hands:
            wait_until(lambda: hands.finish_all("deferred", ADMIN))
        answer = waiting.result(60)
    assert (answer.status_code, answer.json()) == (200, {"n": 2})
    assert pair.invoke("deferred", "w", {"n": 2}, pair.other, prefer="respond-async, wait=1").content == answer.content


# ---- Redis -------------------------------------------------------------------------------------------------------


def test_room_of_an_api_key_is_bounded(pair: Pair) -> None:
    pair.deploy("bounded", limits=Limits(timeout_s=10.0))
    pair.one.redis.hset(keys.idempotency_bytes(ADMIN), str(int(time.time() // 3600)), 64 << 20)
    try:
        refused = pair.invoke("bounded", "k", {"n": 1})
        assert code_of(refused) == (503, "store_full") and int(refused.headers["retry-after"]) > 1
        assert pair.one.invoke("bounded", {"n": 1}).status_code == 200
    finally:
        pair.one.redis.delete(keys.idempotency_bytes(ADMIN))


def test_a_redis_that_is_away_is_never_pretended(pair: Pair, tmp_path: Path) -> None:
    server = EmbeddedValkey(tmp_path)
    command, log = server.command(), tmp_path / "valkey.log"
    stores = replace(pair.stores, redis_url=server.redis_url)
    with short_folder() as folder, ThreadPoolExecutor(1) as pool:
        with running(command, log, server.environment()) as redis:
            server.wait_ready(20)
            with running_gateway(stores, pair.store, folder) as alone:
                instance = alone.start_instance(alone.deploy("away").ref, concurrency=4)
                assert alone.invoke("away").status_code == 200
                seen = num_calls(instance)
                first = pool.submit(pair.invoke, "away", "k", {"sleep_s": 1.5}, alone)
                wait_until(lambda: num_calls(instance) == seen + 1)
                redis.kill()
                redis.wait(60)
                given = first.result(60)
                assert given.status_code == 200, "the work was done"
                assert code_of(pair.invoke("away", "other", {}, alone)) == (503, "store_unavailable")
                assert code_of(pair.submit("away", "other", {"input": 1}, alone)) == (503, "store_unavailable")
                assert alone.invoke("away", {"n": 1}).status_code == 200
                with running(command, log, server.environment()):
                    server.wait_ready(20)
                    again = wait_until(lambda: replayed(pair.invoke("away", "k", {"sleep_s": 1.5}, alone)))
                    assert again.content == given.content and num_calls(instance) == seen + 2


def test_a_redis_that_is_killed_forgets_no_answer_that_was_given(pair: Pair, tmp_path: Path) -> None:
    server = EmbeddedValkey(tmp_path)
    command, log = server.command(), tmp_path / "valkey.log"
    stores = replace(pair.stores, redis_url=server.redis_url)
    with short_folder() as folder:
        with running(command, log, server.environment()) as redis:
            server.wait_ready(20)
            with running_gateway(stores, pair.store, folder) as alone:
                alone.start_instance(alone.deploy("sudden").ref, concurrency=4)
                given = [pair.invoke("sudden", f"k{n}", {"n": n}, alone) for n in range(20)]
                redis.kill()
                redis.wait(60)
                with running(command, log, server.environment()):
                    server.wait_ready(20)
                    wait_until(lambda: pair.invoke("sudden", "new", {}, alone).status_code == 200)
                    again = [pair.invoke("sudden", f"k{n}", {"n": n}, alone) for n in range(20)]
                assert [answer.content for answer in again] == [answer.content for answer in given]


def replayed(answer: httpx.Response) -> httpx.Response | None:
    return answer if answer.headers.get("idempotency-replayed") == "true" else None
