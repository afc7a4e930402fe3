"""Jobs by HTTP: submitted, looked at, stopped, run again, forgotten, and what each key may see of them."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx
import pytest

from samovar import problems
from samovar.errors import FunctionRaised, InvalidInput, Quarantined
from samovar.jobs import JobState
from samovar.policies import Jobs
from support.gateway import ADMIN_KEY, Gateway
from support.hand_worker import HandWorker
from support.job_gateway import gateway_for_jobs, hands_on
from support.waiting import wait_until

pytestmark = pytest.mark.process

ADMIN = ADMIN_KEY.split("_")[1]
LARGE = "x" * 100_000


@pytest.fixture(scope="module")
def gateway(valkey: Any, seaweed: Any) -> Iterator[Gateway]:
    with gateway_for_jobs(valkey, seaweed, 9, max_body_bytes=1 << 20) as running:
        running.deploy("other", jobs=Jobs(retries=3, timeout_s=7.0))
        yield running


@pytest.fixture
def hands(gateway: Gateway) -> Iterator[HandWorker]:
    """A worker moved by hand; there are no jobs when the test begins."""
    with hands_on(gateway) as found:
        yield found


def submit(gateway: Gateway, body: Any, name: str = "echo", client: httpx.Client | None = None) -> httpx.Response:
    return (client or gateway.client).post(f"/v1/functions/{name}/jobs", json=body)


def accepted(answer: httpx.Response) -> Any:
    assert answer.status_code == 202, answer.text
    return answer.json()


def refused(answer: httpx.Response) -> tuple[int, str]:
    assert answer.headers["content-type"] == "application/problem+json", answer.text
    return answer.status_code, answer.json()["code"]


@contextmanager
def key(
    gateway: Gateway, *scopes: str, functions: Sequence[str] = (), **terms: Any
) -> Iterator[tuple[httpx.Client, str]]:
    """A client with a key of its own, and that key's id."""
    asked = {"name": "k", "scopes": scopes, "functions": functions, **terms}
    made = gateway.client.post("/v1/keys", json=asked)
    assert made.status_code == 201, made.text
    headers = {"authorization": f"Bearer {made.json()['key']}"}
    with httpx.Client(base_url=gateway.url, headers=headers, timeout=60) as client:
        yield client, made.json()["key_id"]


# ---- one job -----------------------------------------------------------------------------------------------------


def test_a_job_from_submission_to_result(gateway: Gateway, hands: HandWorker) -> None:
    answer = submit(gateway, {"input": {"n": 1}, "tags": {"a": "b"}})
    job = accepted(answer)
    where = answer.headers["location"]
    assert where == f"/v1/jobs/{job['id']}" and answer.headers["retry-after"] == "1"
    assert (job["state"], job["function"], job["key_id"], job["tags"]) == ("queued", "echo", ADMIN, {"a": "b"})
    seen = gateway.client.get(where).json()
    assert (seen["state"], seen["position"], seen["wait_reason"]) == ("queued", 0, "no_worker")
    early = gateway.client.get(f"{where}/result")
    assert refused(early) == (409, "conflict") and early.json()["state"] == "queued"
    (taken,) = hands.take("echo", ADMIN)
    assert taken.input == b'{"n":1}' and taken.spec.content_type == "application/json"
    assert gateway.client.get(where).json()["state"] == "started"
    hands.settle(taken, state=JobState.FINISHED, result=b'{"sum": 2}', result_type="application/json", version=1)
    done = gateway.client.get(where).json()
    assert (done["state"], done["result"], done["attempt"], done["version"]) == ("finished", {"sum": 2}, 1, 1)
    result = gateway.client.get(f"{where}/result")
    assert (result.status_code, result.content) == (200, b'{"sum": 2}')
    assert (result.headers["content-type"], result.headers["samovar-version"]) == ("application/json", "1")


def test_the_input_reaches_the_worker_byte_by_byte(gateway: Gateway, hands: HandWorker) -> None:
    value = b'{"a" :  1.50, "a": [ 1e400 ], "\\u00e9": "\\u0041"}'
    answer = gateway.client.post("/v1/functions/echo/jobs", content=b'{"priority": "low", "input": ' + value + b" }")
    assert accepted(answer)["priority"] == "low"
    assert [taken.input for taken in hands.take("echo", ADMIN, "low")] == [value]


def test_options_are_the_functions_unless_said(gateway: Gateway, hands: HandWorker) -> None:
    accepted(submit(gateway, {"input": 1}, "other"))
    accepted(
        submit(gateway, {"input": 1, "retries": 0, "deadline_s": 5, "result_ttl_s": 60, "durability": "fsync"}, "other")
    )
    first, second = (taken.spec for taken in hands.take("other", ADMIN, most=2))
    assert (first.retries, first.timeout_s, first.deadline_at_s) == (3, 7.0, 0.0)
    assert (second.retries, second.timeout_s, second.result_ttl_s) == (0, 7.0, 60.0)
    assert second.deadline_at_s == pytest.approx(second.created_at_s + 5)


def test_delays_and_dependencies_show(gateway: Gateway, hands: HandWorker) -> None:
    later = accepted(submit(gateway, {"input": 1, "delay_s": 60}))
    assert later["state"] == "scheduled" and later["due_at_s"] == pytest.approx(later["created_at_s"] + 60)
    assert gateway.client.get(f"/v1/jobs/{later['id']}").json()["wait_reason"] == "delayed"
    child = accepted(submit(gateway, {"input": 1, "depends_on": [later["id"]]}))
    assert gateway.client.get(f"/v1/jobs/{child['id']}").json()["wait_reason"] == "dependencies"


@pytest.mark.parametrize(
    ("body", "code", "path"),
    [
        ({}, "invalid_input", "$"),
        ({"input": 1, "inputs": [1]}, "invalid_input", "$"),
        ({"inputs": []}, "invalid_input", "$.inputs"),
        ({"inputs": [0] * 10_001}, "invalid_input", "$.inputs"),
        ({"inputs": [1], "unique": "u"}, "invalid_input", "$.unique"),
        ({"input": 1, "reduce": {}}, "invalid_input", "$.reduce"),
        ({"inputs": [1], "reduce": {"functoin": "x"}}, "invalid_input", "$.reduce"),
        ({"input": 1, "retires": 3}, "invalid_input", "$"),
        ({"input": 1, "retries": -1}, "invalid_input", "$.retries"),
        ({"input": 1, "retries": "3"}, "invalid_input", "$.retries"),
        ({"input": 1, "priority": "high"}, "invalid_input", "$.priority"),
        ({"input": 1, "depends_on": ["x"]}, "invalid_input", "$.depends_on[0]"),
        ({"input": 1, "webhook": "http://127.0.0.1/x"}, "webhook_refused", None),
        ({"input": 1, "webhook": {"url": "https://a.example", "events": ["no"]}}, "invalid_input", "$.webhook.events"),
        ([1], "invalid_input", "$"),
    ],
)
def test_what_cannot_be_meant_is_refused(
    gateway: Gateway, hands: HandWorker, body: Any, code: str, path: str | None
) -> None:
    answer = submit(gateway, body)
    assert refused(answer) == (422, code)
    assert answer.json().get("path") == path
    assert "retires" not in str(body) or "retires" in answer.json()["detail"]
    assert gateway.client.get("/v1/jobs").json()["jobs"] == []


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", (400, "malformed")),
        (b'{"input": ', (400, "malformed")),
        (b'{"input": ' + b"[" * 5000 + b"]" * 5000 + b"}", (400, "malformed")),
        (b'{"input": "' + b"x" * (1 << 20) + b'"}', (413, "body_too_large")),
    ],
)
def test_bodies_that_cannot_be_read(gateway: Gateway, content: bytes, expected: tuple[int, str]) -> None:
    assert refused(gateway.client.post("/v1/functions/echo/jobs", content=content)) == expected


def test_a_body_without_its_length_is_bounded(gateway: Gateway) -> None:
    chunks = (b"x" * 65536 for _ in range(40))
    answer = gateway.client.post("/v1/functions/echo/jobs", content=chunks)
    assert refused(answer) == (413, "body_too_large")


def test_there_must_be_such_a_function(gateway: Gateway) -> None:
    answer = submit(gateway, {"input": 1}, "ecoh")
    assert refused(answer) == (404, "function_not_found") and answer.json()["near"] == ["echo"]
    assert refused(submit(gateway, {"input": 1, "depends_on": ["0" * 24]})) == (404, "job_not_found")
    assert refused(submit(gateway, {"inputs": [1], "reduce": {"function": "nope"}})) == (404, "function_not_found")


def test_unique_is_unique_until_it_ended(gateway: Gateway, hands: HandWorker) -> None:
    first = accepted(submit(gateway, {"input": 1, "unique": "u"}))
    again = submit(gateway, {"input": 1, "unique": "u"})
    assert refused(again) == (409, "not_unique") and again.json()["job"] == first["id"]
    hands.finish_all("echo", ADMIN)
    accepted(submit(gateway, {"input": 1, "unique": "u"}))


def test_large_inputs_and_results_are_not_in_redis(gateway: Gateway, hands: HandWorker) -> None:
    job = accepted(submit(gateway, {"input": LARGE}))
    objects = gateway.objects
    assert objects.get(f"jobs/{job['id']}/input")[0] == f'"{LARGE}"'.encode()
    assert hands.finish_all("echo", ADMIN) == 1
    assert sum(gateway.redis.memory_usage(name) or 0 for name in gateway.redis.scan_iter("rq:*")) < 20_000
    seen = gateway.client.get(f"/v1/jobs/{job['id']}").json()
    assert "result" not in seen and seen["result_bytes"] == len(LARGE) + 2
    answer = gateway.client.get(f"/v1/jobs/{job['id']}/result")
    assert answer.status_code == 307
    assert answer.content == b"", "nothing that could be taken for the result"
    stored = httpx.get(answer.headers["location"])
    assert (stored.json(), stored.headers["content-type"]) == (LARGE, "application/json")


def test_the_error_of_a_job_is_its_result(gateway: Gateway, hands: HandWorker) -> None:
    job = accepted(submit(gateway, {"input": 1}))
    (taken,) = hands.take("echo", ADMIN)
    error = problems.standard(FunctionRaised("ValueError: no")) | {"extra": "e"}
    hands.settle(taken, state=JobState.FAILED, error=error)
    assert gateway.client.get(f"/v1/jobs/{job['id']}").json()["error"]["detail"] == "ValueError: no"
    answer = gateway.client.get(f"/v1/jobs/{job['id']}/result", headers={"x-request-id": "r1"})
    assert refused(answer) == (500, "function_raised")
    assert (answer.json()["request_id"], answer.json()["extra"], answer.json()["job"]) == ("r1", "e", job["id"])


def test_results_of_other_kinds(gateway: Gateway, hands: HandWorker) -> None:
    job = accepted(submit(gateway, {"input": 1}))
    (taken,) = hands.take("echo", ADMIN)
    hands.settle(taken, state=JobState.FINISHED, result=b"\x00\xff", result_type="application/octet-stream")
    seen = gateway.client.get(f"/v1/jobs/{job['id']}").json()
    assert "result" not in seen and (seen["result_type"], seen["result_bytes"]) == ("application/octet-stream", 2)
    answer = gateway.client.get(f"/v1/jobs/{job['id']}/result")
    assert (answer.content, answer.headers["content-type"]) == (b"\x00\xff", "application/octet-stream")


# ---- waiting, stopping, repeating, forgetting ----------------------------------------------------------------------


def test_a_job_is_waited_for(gateway: Gateway, hands: HandWorker) -> None:
    job = accepted(submit(gateway, {"input": 1}))
    where = f"/v1/jobs/{job['id']}"
    assert gateway.client.get(where, params={"wait_s": "0.05"}).json()["state"] == "queued"
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(gateway.client.get, where, params={"wait_s": "30"})
        wait_until(lambda: num_watching(gateway), what="somebody watches")
        hands.finish_all("echo", ADMIN)
        assert waiting.result().json()["state"] == "finished"
    assert refused(gateway.client.get(where, params={"wait_s": "-1"})) == (422, "invalid_input")


def num_watching(gateway: Gateway) -> int:
    return len(gateway.redis.pubsub_channels("sv:ch:job:*"))


@pytest.mark.parametrize("method", ["DELETE", "POST"])
def test_a_job_is_cancelled(gateway: Gateway, hands: HandWorker, method: str) -> None:
    def cancel(job: Any) -> httpx.Response:
        tail = "/cancel" if method == "POST" else ""
        return gateway.client.request(method, f"/v1/jobs/{job['id']}{tail}")

    waits, runs = accepted(submit(gateway, {"input": 1})), accepted(submit(gateway, {"input": 2}))
    answer = cancel(waits)
    assert (answer.status_code, answer.json()["state"]) == (200, "canceled")
    assert refused(cancel(waits)) == (409, "job_ended")
    (taken,) = hands.take("echo", ADMIN)
    answer = cancel(runs)
    assert (answer.status_code, answer.json()["state"], answer.headers["retry-after"]) == (202, "started", "1")
    hands.settle(taken, state=JobState.CANCELED)
    for job in waits, runs:
        assert gateway.client.get(f"/v1/jobs/{job['id']}").json()["state"] == "canceled"
        assert refused(gateway.client.get(f"/v1/jobs/{job['id']}/result")) == (409, "job_ended")


def test_a_job_is_run_again(gateway: Gateway, hands: HandWorker) -> None:
    job = accepted(submit(gateway, {"input": {"n": LARGE}}))
    path = f"/v1/jobs/{job['id']}/retry"
    assert refused(gateway.client.post(path)) == (409, "conflict")
    (taken,) = hands.take("echo", ADMIN)
    hands.settle(taken, state=JobState.FAILED, error=problems.standard(FunctionRaised("no")))
    answer = gateway.client.post(path)
    again = accepted(answer)
    assert again["id"] != job["id"] and answer.headers["location"] == f"/v1/jobs/{again['id']}"
    assert [(one.id, one.input) for one in hands.take("echo", ADMIN)] == [(again["id"], taken.input)]
    assert gateway.client.get(f"/v1/jobs/{job['id']}").json()["state"] == "failed"


def test_ended_jobs_are_forgotten_with_their_objects(gateway: Gateway, hands: HandWorker) -> None:
    done, waits = accepted(submit(gateway, {"input": LARGE})), accepted(submit(gateway, {"input": 1}))
    hands.finish_all("echo", ADMIN, most=1)

    def purge(**more: Any) -> httpx.Response:
        return gateway.client.post("/v1/jobs/purge", json={"function": "echo", **more})

    assert purge(state="failed").json() == purge(older_than_s=60).json() == {"deleted": 0}
    assert refused(purge(state="queued")) == (422, "invalid_input")
    assert refused(purge(older_than_s=-1)) == (422, "invalid_input")
    assert refused(purge(olderthan=1)) == (422, "invalid_input")
    assert purge().json() == {"deleted": 1}
    assert refused(gateway.client.get(f"/v1/jobs/{done['id']}")) == (404, "job_not_found")
    assert refused(gateway.client.get(f"/v1/jobs/{done['id']}/result")) == (404, "job_not_found")
    assert gateway.client.get(f"/v1/jobs/{waits['id']}").json()["state"] == "queued"
    objects = gateway.objects
    assert [*objects.list(f"jobs/{done['id']}/")] == []


# ---- many ----------------------------------------------------------------------------------------------------------


def test_many_jobs_at_once(gateway: Gateway, hands: HandWorker) -> None:
    answer = submit(gateway, {"inputs": [{"n": n} for n in range(2500)], "tags": {"batch": "1"}})
    made = accepted(answer)
    where = answer.headers["location"]
    assert where == f"/v1/groups/{made['group']}" and made["num_jobs"] == len(set(made["jobs"])) == 2500
    assert made["jobs"] == sorted(made["jobs"])
    group = gateway.client.get(where).json()
    assert (group["num_jobs"], group["counts"], group["function"]) == (2500, {"queued": 2500}, "echo")
    taken = hands.take("echo", ADMIN, most=3)
    assert [(one.id, one.input, one.spec.index) for one in taken] == [
        (made["jobs"][n], b'{"n":%d}' % n, n) for n in range(3)
    ]
    assert gateway.client.get(where).json()["counts"] == {"queued": 2497, "started": 3}
    stopped = gateway.client.post(f"{where}/cancel")
    assert stopped.status_code == 200 and stopped.json()["counts"] == {"canceled": 2497, "started": 3}
    for one in taken:
        hands.settle(one, state=JobState.CANCELED)
    assert gateway.client.get(where).json()["counts"] == {"canceled": 2500}
    assert refused(gateway.client.get(f"/v1/groups/{'0' * 24}")) == (404, "job_not_found")
    assert refused(gateway.client.get("/v1/groups/x")) == (404, "job_not_found")


def test_results_are_reduced(gateway: Gateway, hands: HandWorker) -> None:
    made = accepted(submit(gateway, {"inputs": [1, 2], "reduce": {"function": "other"}, "retries": 1}))
    reduce = gateway.client.get(f"/v1/jobs/{made['reduce']}").json()
    assert (reduce["state"], reduce["function"], reduce["retries"]) == ("deferred", "other", 1)
    assert gateway.client.get(f"/v1/groups/{made['group']}").json()["reduce"] == made["reduce"]
    assert hands.finish_all("echo", ADMIN) == 2
    (taken,) = hands.take("other", ADMIN)
    assert taken.id == made["reduce"] and taken.spec.reduce_of == made["group"]


def test_a_list_is_read_by_pages_while_jobs_come_and_go(gateway: Gateway, hands: HandWorker) -> None:
    ids = accepted(submit(gateway, {"inputs": [0] * 25}))["jobs"]
    seen: list[str] = []
    cursor = ""
    for page_number in range(10):
        page = gateway.client.get("/v1/jobs", params={"limit": "10", "cursor": cursor, "function": "echo"}).json()
        seen += [job["id"] for job in page["jobs"]]
        cursor = page.get("cursor", "")
        if page_number == 0:
            accepted(submit(gateway, {"input": "comes meanwhile"}))
            hands.finish_all("echo", ADMIN, most=5)
            gateway.client.post("/v1/jobs/purge", json={"function": "echo"})
        if not cursor:
            break
    assert seen == sorted(ids[5:], reverse=True)


def test_a_list_is_filtered(gateway: Gateway, hands: HandWorker) -> None:
    group = accepted(submit(gateway, {"inputs": [1, 2, 3]}))
    other = accepted(submit(gateway, {"input": 1}, "other"))
    hands.finish_all("echo", ADMIN, most=1)

    def ids(**query: str) -> list[str]:
        found = gateway.client.get("/v1/jobs", params=query)
        assert found.status_code == 200, found.text
        return [job["id"] for job in found.json()["jobs"]]

    assert ids() == [other["id"], *reversed(group["jobs"])]
    assert ids(function="other") == [other["id"]] and ids(function="nope") == []
    assert ids(state="finished") == group["jobs"][:1]
    assert ids(state="queued", function="echo") == [group["jobs"][2], group["jobs"][1]]
    assert ids(group=group["group"]) == group["jobs"]
    assert ids(group=group["group"], state="finished") == group["jobs"][:1]
    assert ids(state="quarantined") == ids(state="failed") == []
    for bad in ({"state": "done"}, {"limit": "0"}, {"limit": "1001"}, {"limit": "x"}, {"cursor": "x" * 300}):
        assert refused(gateway.client.get("/v1/jobs", params=bad)) == (422, "invalid_input"), bad


def test_dead_letters_are_listed(gateway: Gateway, hands: HandWorker) -> None:
    job = accepted(submit(gateway, {"input": 1}))
    (taken,) = hands.take("echo", ADMIN)
    error = problems.standard(Quarantined("it took down 3 instances", crashes=3))
    hands.settle(taken, state=JobState.FAILED, error=error, crashes=3)
    later = accepted(submit(gateway, {"input": 1, "delay_s": 60}))
    assert {one["id"]: one.get("wait_reason") for one in gateway.client.get("/v1/jobs").json()["jobs"]} == {
        job["id"]: None,
        later["id"]: "delayed",
    }
    (found,) = gateway.client.get("/v1/jobs", params={"state": "quarantined"}).json()["jobs"]
    assert (found["id"], found["crashes"], found["error"]["code"]) == (job["id"], 3, "quarantined")


# ---- who may -------------------------------------------------------------------------------------------------------


def test_another_keys_jobs_do_not_exist(gateway: Gateway, hands: HandWorker) -> None:
    job = accepted(submit(gateway, {"input": 1}))
    made = accepted(submit(gateway, {"inputs": [1]}))
    where, group = f"/v1/jobs/{job['id']}", f"/v1/groups/{made['group']}"
    with key(gateway, "invoke") as (client, key_id):
        waiting = submit(gateway, {"input": 1, "depends_on": [job["id"]]}, client=client)
        assert refused(waiting) == (404, "job_not_found") and waiting.json()["job"] == job["id"]
        for method, path in (
            ("GET", where),
            ("GET", f"{where}/result"),
            ("GET", f"{where}/events"),
            ("DELETE", where),
            ("POST", f"{where}/cancel"),
            ("POST", f"{where}/retry"),
            ("GET", group),
            ("POST", f"{group}/cancel"),
        ):
            assert refused(client.request(method, path)) == (404, "job_not_found"), path
        mine = accepted(submit(gateway, {"input": 1}, client=client))
        assert [one["id"] for one in client.get("/v1/jobs").json()["jobs"]] == [mine["id"]]
        assert client.get("/v1/jobs", params={"group": made["group"]}).json()["jobs"] == []
        assert hands.finish_all("echo", ADMIN) == hands.finish_all("echo", key_id) + 1 == 2
        assert client.post("/v1/jobs/purge", json={"function": "echo"}).json() == {"deleted": 1}
        assert len(gateway.client.get("/v1/jobs").json()["jobs"]) == 2


def test_whoever_deploys_a_function_manages_its_jobs(gateway: Gateway, hands: HandWorker) -> None:
    job, other = accepted(submit(gateway, {"input": 1})), accepted(submit(gateway, {"input": 1}, "other"))
    with key(gateway, "deploy", functions=["echo"]) as (client, key_id):
        assert [one["id"] for one in client.get("/v1/jobs").json()["jobs"]] == [job["id"]]
        assert refused(client.get(f"/v1/jobs/{other['id']}")) == (404, "job_not_found")
        assert refused(submit(gateway, {"input": 1}, client=client)) == (403, "forbidden")
        assert client.delete(f"/v1/jobs/{job['id']}").status_code == 200
        assert client.post("/v1/jobs/purge", json={"function": "echo"}).json() == {"deleted": 1}
        assert refused(client.post("/v1/jobs/purge", json={"function": "other"})) == (404, "function_not_found")
    entries = [one for one in gateway.client.get("/v1/audit").json() if one["key_id"] == key_id]
    assert [(one["method"], one["path"], one["status"]) for one in entries] == [
        ("DELETE", f"/v1/jobs/{job['id']}", 200),
        ("POST", "/v1/jobs/purge", 200),
        ("POST", "/v1/jobs/purge", 404),
    ]
    assert entries[0]["change"] == {"function": "echo", "owner": ADMIN}


def test_a_key_submits_as_it_may(gateway: Gateway, hands: HandWorker) -> None:
    with key(gateway, "invoke", max_priority="low", functions=["echo"]) as (client, _):
        assert accepted(submit(gateway, {"input": 1}, client=client))["priority"] == "low"
        assert refused(submit(gateway, {"input": 1}, "other", client)) == (404, "function_not_found")
        assert refused(submit(gateway, {"inputs": [1], "reduce": {"function": "other"}}, client=client))[0] == 404
    with httpx.Client(base_url=gateway.url) as nobody:
        assert refused(submit(gateway, {"input": 1}, client=nobody)) == (401, "unauthenticated")
        assert refused(nobody.get("/v1/jobs")) == (401, "unauthenticated")


def test_submissions_count_in_the_rate_of_their_key(gateway: Gateway, hands: HandWorker) -> None:
    with key(gateway, "invoke", rate="1/h", burst=2) as (client, _):
        accepted(submit(gateway, {"inputs": [1] * 100}, client=client))
        accepted(client.post("/v1/functions/echo/invoke", json=1, headers={"prefer": "respond-async"}))
        answer = submit(gateway, {"input": 1}, client=client)
        assert refused(answer) == (429, "rate_limited") and int(answer.headers["retry-after"]) > 1


# ---- Prefer: respond-async -----------------------------------------------------------------------------------------


def prefer(gateway: Gateway, value: str, body: bytes = b'{"n": 1}', **headers: str) -> httpx.Response:
    sent = {"prefer": value, **{name.replace("_", "-"): text for name, text in headers.items()}}
    return gateway.client.post("/v1/functions/echo/invoke", content=body, headers=sent)


def test_an_invocation_becomes_a_job(gateway: Gateway, hands: HandWorker) -> None:
    answer = prefer(gateway, "respond-async", b"any bytes", content_type="text/plain", samovar_priority="low")
    job = accepted(answer)
    assert answer.headers["preference-applied"] == "respond-async"
    assert answer.headers["location"] == f"/v1/jobs/{job['id']}" and job["priority"] == "low"
    (taken,) = hands.take("echo", ADMIN, "low")
    assert (taken.input, taken.spec.content_type) == (b"any bytes", "text/plain")
    answer = prefer(gateway, "Respond-Async; foo, wait=0", samovar_timeout_ms="60000")
    assert accepted(answer)["state"] == "queued"
    (taken,) = hands.take("echo", ADMIN)
    assert taken.spec.deadline_at_s == pytest.approx(taken.spec.created_at_s + 60, abs=5)


@pytest.mark.parametrize("large", [False, True])
def test_the_answer_comes_if_it_comes_in_time(gateway: Gateway, hands: HandWorker, large: bool) -> None:
    result = f'"{LARGE}"'.encode() if large else b"[1]"
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(prefer, gateway, 'respond-async, wait="30"')
        wait_until(lambda: num_watching(gateway), what="somebody watches")
        (taken,) = hands.take("echo", ADMIN)
        hands.settle(taken, state=JobState.FINISHED, result=result, result_type="application/json", version=1)
        answer = waiting.result()
    assert (answer.status_code, answer.content) == (200, result)
    assert answer.headers["content-type"] == "application/json"
    assert (answer.headers["samovar-version"], answer.headers["preference-applied"]) == ("1", "wait=30")


def test_so_does_the_error(gateway: Gateway, hands: HandWorker) -> None:
    with ThreadPoolExecutor(1) as pool:
        waiting = pool.submit(prefer, gateway, "respond-async, wait=30", x_request_id="r2")
        wait_until(lambda: num_watching(gateway), what="somebody watches")
        (taken,) = hands.take("echo", ADMIN)
        hands.settle(taken, state=JobState.FAILED, error=problems.standard(InvalidInput("bad", path="$.x")))
        answer = waiting.result()
    assert refused(answer) == (422, "invalid_input") and answer.json()["request_id"] == "r2"


def test_else_there_is_a_job(gateway: Gateway, hands: HandWorker) -> None:
    answer = prefer(gateway, "respond-async, wait=1")
    assert accepted(answer)["wait_reason"] == "no_worker"
    assert answer.headers["preference-applied"] == "respond-async"


def test_other_preferences_change_nothing(gateway: Gateway, hands: HandWorker) -> None:
    gateway.start_instance(gateway.deploy("plain").ref)
    for value in ("wait=10", "return=minimal", ""):
        answer = gateway.client.post("/v1/functions/plain/invoke", json={"n": 1}, headers={"prefer": value})
        assert answer.status_code == 200 and "preference-applied" not in answer.headers
    assert refused(prefer(gateway, "respond-async", samovar_timeout_ms="-1")) == (400, "malformed")


def test_metrics_tell_what_waits_and_what_ended(gateway: Gateway, hands: HandWorker) -> None:
    accepted(submit(gateway, {"inputs": [1, 2, 3]}))
    accepted(submit(gateway, {"input": 1, "priority": "low"}))
    hands.finish_all("echo", ADMIN, most=1)
    text = gateway.client.get("/metrics").text
    assert 'samovar_jobs_waiting{function="echo",lane="normal"} 2.0' in text
    assert 'samovar_jobs_waiting{function="echo",lane="low"} 1.0' in text
    assert 'samovar_jobs_ended_total{state="finished"} 1.0' in text
    assert "samovar_jobs_accepted_total 4.0" in text
