"""Jobs by HTTP: submitted, looked at, stopped, run again, forgotten, and what each key may see of them."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis as redis_sync

from samovar.jobs import JobState
from samovar.policies import Jobs
from samovar_storage.objects import ObjectStore
from support.folders import short_folder
from support.gateway import ADMIN_KEY, Gateway, running_gateway
from support.hand_worker import HandWorker
from support.stores import stores_for_a_test

pytestmark = pytest.mark.process

ADMIN = ADMIN_KEY.split("_")[1]


@pytest.fixture(scope="module")
def gateway(valkey: Any, seaweed: Any) -> Iterator[Gateway]:
    stores = stores_for_a_test(valkey, seaweed, 9)
    with redis_sync.Redis.from_url(stores.redis_url) as redis:
        redis.flushdb()
    with short_folder() as folder:
        store = ObjectStore.from_settings(stores.settings(folder))
        store.ensure_bucket()
        with running_gateway(stores, store, folder) as running:
            running.deploy("echo")
            running.deploy("other", jobs=Jobs(retries=3, deadline_s=100.0))
            running.hands = HandWorker(stores.redis_url, store)  # type: ignore[attr-defined]
            running.objects = store  # type: ignore[attr-defined]
            running.folder = folder  # type: ignore[attr-defined]
            yield running
        store.close()


@pytest.fixture
def hands(gateway: Gateway) -> Iterator[HandWorker]:
    """A worker moved by hand; nothing waits for it in queues when the test begins."""
    hands: HandWorker = gateway.hands  # type: ignore[attr-defined]
    for name in [*gateway.redis.scan_iter("rq:*"), *gateway.redis.scan_iter("sv:jobs:*")]:
        gateway.redis.delete(name)
    yield hands


def submit(gateway: Gateway, body: Any, name: str = "echo", client: httpx.Client | None = None) -> httpx.Response:
    return (client or gateway.client).post(f"/v1/functions/{name}/jobs", json=body)


def accepted(answer: httpx.Response) -> Any:
    assert answer.status_code == 202, answer.text
    return answer.json()


def client_of(gateway: Gateway, *scopes: str, functions: list[str] | None = None, **terms: Any) -> httpx.Client:
    """Return a client with a key of its own."""
    asked = {"name": "k", "scopes": scopes, "functions": functions or [], **terms}
    made = gateway.client.post("/v1/keys", json=asked)
    assert made.status_code == 201, made.text
    client = httpx.Client(base_url=gateway.url, headers={"authorization": f"Bearer {made.json()['key']}"}, timeout=30)
    client.key_id = made.json()["key_id"]  # type: ignore[attr-defined]
    return client


def test_a_job_from_submission_to_result(gateway: Gateway, hands: HandWorker) -> None:
    answer = submit(gateway, {"input": {"n": 1}, "tags": {"a": "b"}})
    job = accepted(answer)
    assert answer.headers["location"] == f"/v1/jobs/{job['id']}" and answer.headers["retry-after"] == "1"
    assert (job["state"], job["function"], job["key_id"], job["tags"]) == ("queued", "echo", ADMIN, {"a": "b"})
    seen = gateway.client.get(answer.headers["location"]).json()
    assert (seen["state"], seen["position"], seen["wait_reason"]) == ("queued", 0, "no_worker")
    early = gateway.client.get(f"/v1/jobs/{job['id']}/result")
    assert (early.status_code, early.json()["code"], early.json()["state"]) == (409, "conflict", "queued")
    (taken,) = hands.take("echo", ADMIN)
    assert taken.input == b'{"n":1}' and taken.spec.content_type == "application/json"
    assert gateway.client.get(f"/v1/jobs/{job['id']}").json()["state"] == "started"
    hands.settle(taken, state=JobState.FINISHED, result=b'{"sum": 2}', result_type="application/json", version=1)
    done = gateway.client.get(f"/v1/jobs/{job['id']}").json()
    assert (done["state"], done["result"], done["attempt"], done["version"]) == ("finished", {"sum": 2}, 1, 1)
    result = gateway.client.get(f"/v1/jobs/{job['id']}/result")
    assert (result.status_code, result.content) == (200, b'{"sum": 2}')
    assert (result.headers["content-type"], result.headers["samovar-version"]) == ("application/json", "1")
