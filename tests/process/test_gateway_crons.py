"""Cron jobs and webhooks by HTTP: made, shown, run, refused with what is wrong; each key sees its own."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from support.gateway import ADMIN_KEY, Gateway
from support.hand_worker import HandWorker
from support.job_gateway import gateway_for_jobs, hands_on

pytestmark = pytest.mark.process

ADMIN = ADMIN_KEY.split("_")[1]
NIGHTLY = {"function": "echo", "schedule": "0 3 * * *", "tz": "Europe/Lisbon", "input": {"x": [1]}}


@pytest.fixture(scope="module")
def gateway(valkey: Any, seaweed: Any) -> Iterator[Gateway]:
    with gateway_for_jobs(valkey, seaweed, 10, webhook_allow="127.0.0.0/8") as running:
        running.deploy("other")
        yield running


@pytest.fixture
def hands(gateway: Gateway) -> Iterator[HandWorker]:
    """A worker moved by hand; there are no jobs when the test begins."""
    with hands_on(gateway) as found:
        yield found


def client_of(gateway: Gateway, **terms: Any) -> tuple[httpx.Client, str]:
    """Return a client with a key of its own, and that key's id."""
    made = gateway.client.post("/v1/keys", json={"name": "k", "scopes": ["invoke"], **terms}).json()
    headers = {"authorization": f"Bearer {made['key']}"}
    return httpx.Client(base_url=gateway.url, headers=headers, timeout=60), made["key_id"]


def put(gateway: Gateway, name: str = "nightly", client: httpx.Client | None = None, **more: Any) -> httpx.Response:
    return (client or gateway.client).put(f"/v1/crons/{name}", json=NIGHTLY | more)


def test_a_cron_job_is_made_shown_changed_and_deleted(gateway: Gateway) -> None:
    made = put(gateway).json()
    assert (made["name"], made["key_id"], made["input"], made["tz"]) == ("nightly", ADMIN, {"x": [1]}, "Europe/Lisbon")
    assert made["next_at_s"] > time.time()
    assert len(made["upcoming_s"]) == 3 and made["upcoming_s"] == sorted(made["upcoming_s"])
    assert gateway.client.get("/v1/crons/nightly").json() == made
    (listed,) = gateway.client.get("/v1/crons").json()
    assert listed == {name: value for name, value in made.items() if name != "upcoming_s"}
    paused = put(gateway, enabled=False).json()
    assert (paused["enabled"], paused["created_at_s"], paused.get("next_at_s", 0)) == (False, made["created_at_s"], 0)
    assert gateway.client.delete("/v1/crons/nightly").status_code == 204
    assert gateway.client.get("/v1/crons/nightly").json()["code"] == "not_found"
    assert gateway.client.delete("/v1/crons/nightly").status_code == 404
    assert gateway.client.get("/v1/crons").json() == []


@pytest.mark.parametrize(
    ("change", "status", "words"),
    [
        ({"schedule": "61 * * * *"}, 422, "Bad minute"),
        ({"schedule": "every day"}, 422, "five fields"),
        ({"tz": "Europe/Lisboa"}, 422, "Europe/Lisbon"),
        ({"function": "ecko"}, 404, "echo"),
        ({"missed": "never"}, 422, "missed"),
        ({"options": {"depends_on": ["0" * 24]}}, 422, "wait for the same job"),
        ({"options": {"retries": -1}}, 422, "$.options.retries"),
        ({"options": {"retrys": 1}}, 422, "retrys"),
        ({"options": {"webhook": {"url": "https://example.com", "event": []}}}, 422, "unknown field `event`"),
        ({"options": {"webhook": "http://10.0.0.1/"}}, 422, "private"),
        ({"inputs": []}, 422, "inputs"),
        ({"input": "x" * 300_000}, 422, "262144 bytes"),
    ],
)
def test_what_is_wrong_is_said(gateway: Gateway, change: dict[str, Any], status: int, words: str) -> None:
    answer = put(gateway, "wrong", **change)
    assert answer.status_code == status, answer.text
    assert words in answer.text
    assert gateway.client.get("/v1/crons/wrong").status_code == 404


@pytest.mark.parametrize("name", ["Nightly", "a_b", "-a", "a" * 64])
def test_a_name_has_the_form_of_names(gateway: Gateway, name: str) -> None:
    assert put(gateway, name).status_code == 422
    assert gateway.client.get(f"/v1/crons/{name}").status_code == 404


def test_a_key_sees_its_own_and_a_name_that_another_has_is_taken(gateway: Gateway) -> None:
    one, one_id = client_of(gateway)
    two, _ = client_of(gateway)
    manager, _ = client_of(gateway, scopes=["deploy", "invoke"], functions=["echo"])
    bound, _ = client_of(gateway, functions=["other"])
    with one, two, manager, bound:
        assert put(gateway, "mine", one).json()["key_id"] == one_id
        assert put(gateway, "mine", two).json()["code"] == "conflict"
        assert [two.get("/v1/crons/mine").status_code, two.delete("/v1/crons/mine").status_code] == [404, 404]
        assert two.get("/v1/crons").json() == []
        assert put(gateway, "theirs", bound).json()["code"] == "function_not_found"
        assert put(gateway, "mine", manager, schedule="@daily").json()["key_id"] == one_id, "its owner stays"
        assert [cron["name"] for cron in manager.get("/v1/crons").json()] == ["mine"]
        assert one.delete("/v1/crons/mine").status_code == 204


def test_a_cron_job_runs_now_beside_its_schedule(gateway: Gateway, hands: HandWorker) -> None:
    put(gateway, "now")
    answer = gateway.client.post("/v1/crons/now/run")
    assert answer.status_code == 202, answer.text
    job = answer.json()
    assert answer.headers["location"] == f"/v1/jobs/{job['id']}"
    assert gateway.client.get("/v1/crons/now").json()["last_job"] == job["id"]
    assert hands.finish_all("echo", ADMIN) == 1
    assert gateway.client.get(f"/v1/jobs/{job['id']}/result").json() == {"x": [1]}
    assert gateway.client.post("/v1/crons/nobody/run").status_code == 404
    gateway.client.delete("/v1/crons/now")


def test_who_makes_and_deletes_is_in_the_audit_log_without_the_input(gateway: Gateway) -> None:
    put(gateway, "audited", input={"text": "confidential"})
    gateway.client.delete("/v1/crons/audited")
    gateway.client.post("/v1/webhooks/secret/rotate")
    log = gateway.client.get("/v1/audit").json()
    noted = [(entry["method"], entry["path"]) for entry in log]
    assert {("PUT", "/v1/crons/audited"), ("DELETE", "/v1/crons/audited")} <= {*noted}
    assert ("POST", "/v1/webhooks/secret/rotate") in noted
    assert "confidential" not in str(log)


def test_a_secret_is_made_shown_and_replaced(gateway: Gateway) -> None:
    client, _ = client_of(gateway)
    with client:
        first = client.get("/v1/webhooks/secret").json()
        assert first["secret"].startswith("whsec_")
        assert client.get("/v1/webhooks/secret").json() == first
        second = client.post("/v1/webhooks/secret/rotate", json={"overlap_s": 60}).json()
        assert second["secret"] != first["secret"]
        assert 0 < second["previous_until_s"] - time.time() <= 60
        assert client.post("/v1/webhooks/secret/rotate", json={"overlap_s": -1}).status_code == 422
    assert gateway.client.get("/v1/webhooks/secret").json()["secret"] != second["secret"], "each key has its own"


def test_events_are_listed_and_replayed_by_who_may_see_the_job(gateway: Gateway, hands: HandWorker) -> None:
    client, key_id = client_of(gateway)
    other, _ = client_of(gateway)
    with client, other:
        body = {"input": 1, "webhook": "http://127.0.0.1:9/hook?x=1"}
        job = client.post("/v1/functions/echo/jobs", json=body).json()["id"]
        assert client.post("/v1/webhooks/replay", json={"job": job}).json()["code"] == "conflict"
        hands.finish_all("echo", key_id)
        (event,) = client.get("/v1/webhooks").json()["events"]
        assert (event["id"], event["job"], event["url"]) == (f"{job}.finished", job, body["webhook"])
        assert other.get("/v1/webhooks").json() == {"events": [], "endpoints": [], "dropped": 0}
        assert gateway.client.get("/v1/webhooks", params={"key_id": key_id}).json()["events"] == [event]
        assert other.get("/v1/webhooks", params={"key_id": key_id}).json()["events"] == []
        assert client.post("/v1/webhooks/replay", json={"event": event["id"]}).json() == {"replayed": 1}
        assert client.post("/v1/webhooks/replay", json={"job": job}).json() == {"replayed": 1}
        assert other.post("/v1/webhooks/replay", json={"job": job}).json()["code"] == "job_not_found"
        for wrong in ({}, {"event": "x.finished", "job": job}, {"event": f"{job}.queued"}):
            assert client.post("/v1/webhooks/replay", json=wrong).status_code == 422
        assert client.post("/v1/webhooks/replay", json={"event": "x.finished"}).status_code == 404
        assert client.post("/v1/webhooks/enable", json={"url": body["webhook"]}).json()["code"] == "not_found"
        assert client.post("/v1/webhooks/enable", json={"url": "http://[::/"}).status_code == 422


def test_without_a_key_nothing_is_told(gateway: Gateway) -> None:
    with httpx.Client(base_url=gateway.url) as nobody:
        for path in ("/v1/crons", "/v1/crons/n", "/v1/webhooks", "/v1/webhooks/secret"):
            assert nobody.get(path).status_code == 401
