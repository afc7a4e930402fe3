"""Uploads of JSON lines that become jobs: all of them or none, once, whatever happens to the gateway meanwhile."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis as redis_sync

from samovar_storage import keys
from samovar_storage.objects import ObjectStore
from support.folders import short_folder
from support.gateway import ADMIN_KEY, Gateway, running_gateway
from support.hand_worker import HandWorker
from support.job_gateway import gateway_for_jobs, hands_on
from support.stores import Stores
from support.waiting import wait_until

pytestmark = pytest.mark.process

ADMIN = ADMIN_KEY.split("_")[1]


@pytest.fixture(scope="module")
def gateway(valkey: Any, seaweed: Any) -> Iterator[Gateway]:
    with gateway_for_jobs(valkey, seaweed, 10, max_body_bytes=1 << 20) as running:
        running.deploy("other")
        yield running


@pytest.fixture
def hands(gateway: Gateway) -> Iterator[HandWorker]:
    """A worker moved by hand; there are no jobs when the test begins."""
    with hands_on(gateway) as found:
        yield found


def upload(gateway: Gateway, data: bytes, name: str = "echo") -> str:
    """Send lines to where the gateway says; return the upload's id."""
    begun = gateway.client.post(f"/v1/functions/{name}/jobs/uploads", json={"size_bytes": max(1, len(data))})
    assert begun.status_code == 201, begun.text
    assert httpx.put(begun.json()["url"], content=data).status_code == 200
    return str(begun.json()["upload"])


def submit(gateway: Gateway, upload: str, name: str = "echo", **options: Any) -> httpx.Response:
    return gateway.client.post(f"/v1/functions/{name}/jobs", json={"upload": upload, **options})


def group(gateway: Gateway, group_id: str) -> Any:
    return gateway.client.get(f"/v1/groups/{group_id}").json()


def is_expanded(gateway: Gateway, upload_id: str) -> bool:
    return not gateway.redis.hexists(keys.JOBS_EXPANDING, upload_id)


def test_each_line_becomes_a_job(gateway: Gateway, hands: HandWorker) -> None:
    lines = [json.dumps({"n": n}).encode() for n in range(2500)]
    sent = upload(gateway, b"\n".join(lines))
    answer = submit(gateway, sent, tags={"a": "b"}, reduce={"function": "other"}, priority="low")
    assert answer.status_code == 202, answer.text
    made = answer.json()
    assert (made["group"], made["num_jobs"], made["jobs"]) == (sent, 2500, [])
    assert answer.headers["location"] == f"/v1/groups/{sent}"
    wait_until(lambda: is_expanded(gateway, sent), what="every line is a job")
    seen = group(gateway, sent)
    assert (seen["num_jobs"], seen["counts"], seen["reduce"]) == (2500, {"queued": 2500}, made["reduce"])
    taken = hands.take("echo", ADMIN, "low", most=2500)
    assert [one.input for one in taken] == lines
    assert [one.spec.index for one in taken] == [*range(2500)] and taken[0].spec.tags == {"a": "b"}
    for one in taken[:3]:
        hands.settle(one)
    assert group(gateway, sent)["counts"] == {"finished": 3, "started": 2497}
    objects = gateway.objects
    wait_until(lambda: [*objects.list("job-uploads/")] == [], what="the upload is deleted")
    assert gateway.redis.zcard(keys.JOBS_UPLOADS) == 0


def test_submitted_twice_is_submitted_once(gateway: Gateway, hands: HandWorker) -> None:
    sent = upload(gateway, b"1\n2\n3\n")
    first, second = submit(gateway, sent).json(), submit(gateway, sent).json()
    wait_until(lambda: is_expanded(gateway, sent), what="every line is a job")
    third = submit(gateway, sent).json()
    assert first == second == third == {"group": sent, "num_jobs": 3, "jobs": [], "reduce": ""}
    assert len(hands.take("echo", ADMIN, most=10)) == 3


@pytest.mark.parametrize(
    ("data", "line"), [(b'1\n{"a": \n3\n', 2), (b"", None), (b"\n\n", None), (b'"' + b"x" * (1 << 20) + b'"', None)]
)
def test_one_bad_line_refuses_all(gateway: Gateway, hands: HandWorker, data: bytes, line: int | None) -> None:
    answer = submit(gateway, upload(gateway, data))
    problem = answer.json()
    assert (answer.status_code, problem["code"], problem["path"]) == (422, "invalid_input", "$.upload")
    assert problem.get("line") == line
    assert gateway.client.get("/v1/jobs").json()["jobs"] == [] and gateway.redis.hlen(keys.JOBS_EXPANDING) == 0


def test_only_what_was_uploaded_can_be_submitted(gateway: Gateway, hands: HandWorker) -> None:
    sent = upload(gateway, b"1\n")
    for answer in (submit(gateway, "0" * 24), submit(gateway, "x"), submit(gateway, sent, "other")):
        assert (answer.status_code, answer.json()["code"]) == (404, "not_found")
    made = gateway.client.post("/v1/keys", json={"name": "k", "scopes": ["invoke"]}).json()
    headers = {"authorization": f"Bearer {made['key']}"}
    answer = httpx.post(f"{gateway.url}/v1/functions/echo/jobs", json={"upload": sent}, headers=headers)
    assert answer.status_code == 404
    for size in 0, -1, 5 << 40:
        answer = gateway.client.post("/v1/functions/echo/jobs/uploads", json={"size_bytes": size})
        assert (answer.status_code, answer.json()["path"]) == (422, "$.size_bytes")


def test_a_cancelled_group_gets_no_further_jobs(gateway: Gateway, hands: HandWorker) -> None:
    sent = upload(gateway, b"1\n" * 20_000)
    assert submit(gateway, sent, reduce={}).status_code == 202
    wait_until(lambda: group(gateway, sent)["counts"].get("queued"), what="some lines are jobs")
    answer = gateway.client.post(f"/v1/groups/{sent}/cancel")
    assert answer.status_code == 200
    wait_until(lambda: set(group(gateway, sent)["counts"]) == {"canceled"}, what="what was under way is cancelled")
    seen = group(gateway, sent)
    assert seen["num_jobs"] == seen["counts"]["canceled"]
    assert hands.take("echo", ADMIN, most=10) == []


def test_a_gateway_that_dies_in_the_middle_loses_and_doubles_nothing(
    stores: Stores, object_store: ObjectStore, tmp_path: Path
) -> None:
    num_lines = 30_000
    lines = b"".join(b'{"n": %d}\n' % n for n in range(num_lines))
    with short_folder() as folder:
        with running_gateway(stores, object_store, folder, gateway_id="g") as first:
            first.deploy("echo")
            sent = upload(first, lines)
            assert submit(first, sent).json()["num_jobs"] == num_lines
            wait_until(lambda: 0 < first.redis.llen(f"rq:queue:sv:echo:{ADMIN}"), what="some lines are jobs")
            first.process.send_signal(signal.SIGKILL)
            first.process.wait()
        with redis_sync.Redis.from_url(stores.redis_url) as redis:
            assert 0 < redis.llen(f"rq:queue:sv:echo:{ADMIN}") < num_lines, "killed too late to show anything"
    with short_folder() as folder, running_gateway(stores, object_store, folder, gateway_id="g") as second:
        wait_until(lambda: is_expanded(second, sent), what="every line is a job")
        assert group(second, sent)["counts"] == {"queued": num_lines}
        waiting = second.redis.lrange(f"rq:queue:sv:echo:{ADMIN}", 0, -1)
        assert len(waiting) == len(set(waiting)) == num_lines
