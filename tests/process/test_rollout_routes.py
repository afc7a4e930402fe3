"""Moving traffic between versions on a real gateway, with stand-in instances."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from samovar_storage.objects import ObjectStore
from support.gateway import Gateway, running_gateway
from support.stores import Stores
from support.waiting import wait_until

pytestmark = pytest.mark.process


@pytest.fixture
def gateway(stores: Stores, object_store: ObjectStore, short_path: Path) -> Iterator[Gateway]:
    with running_gateway(stores, object_store, short_path) as gateway:
        yield gateway


def route(gateway: Gateway, command: str, expect: int = 200, **body: Any) -> dict[str, Any]:
    """Change the route of `echo`; return the answer."""
    answer = gateway.client.post(f"/v1/functions/echo/route/{command}", json=body)
    assert answer.status_code == expect, answer.text
    found: dict[str, Any] = answer.json()
    return found


def answered_by(gateway: Gateway, num_calls: int, **headers: str) -> Counter[str]:
    """Return version → calls it answered."""
    answers = [gateway.invoke(body={"x": [1]}, **headers) for _ in range(num_calls)]
    assert {answer.status_code for answer in answers} == {200}, [a.text for a in answers if a.status_code != 200][:1]
    return Counter(answer.headers["samovar-version"] for answer in answers)


def why(gateway: Gateway) -> dict[str, Any]:
    found: dict[str, Any] = gateway.client.get("/v1/functions/echo/why").json()
    return found


def wait_ready(gateway: Gateway, **ready: int) -> None:
    wanted = {version.removeprefix("v"): count for version, count in ready.items()}
    wait_until(lambda: {v: n for v, n in why(gateway)["ready"].items() if n} == wanted, what=f"ready: {wanted}")


def test_a_rollout_by_hand(gateway: Gateway) -> None:
    gateway.deploy()
    gateway.start_instance("echo@1", concurrency=4)
    wait_ready(gateway, v1=1)
    assert answered_by(gateway, 5) == {"1": 5}

    gateway.deploy()
    assert answered_by(gateway, 20) == {"1": 20}, "version 2 is not ready: version 1 serves"
    assert why(gateway)["serving"] == "previous"
    second = gateway.start_instance("echo@2", concurrency=4)
    wait_ready(gateway, v1=1, v2=1)
    assert answered_by(gateway, 20) == {"2": 20}
    assert why(gateway)["serving"] == "target"

    gateway.start_instance("echo@3", concurrency=4)
    gateway.registry.publish_version(gateway.registry.manifest("echo", 2))
    route(gateway, "undo")
    trial = route(gateway, "canary", version=3, percent=50)
    assert trial["changed"] == "canary: version 3 at 50 %" and trial["route"]["history"][0]["by"] == "0123456789ab"
    wait_until(lambda: why(gateway)["ready"].get("3"), what="the canary is ready")
    split = answered_by(gateway, 100)
    assert split.keys() == {"2", "3"} and 25 <= split["3"] <= 75

    route(gateway, "rollback", reason="wrong answers")
    assert answered_by(gateway, 20) == {"2": 20}, "in force with the answer to the command"
    refused = route(gateway, "canary", 409, version=3, percent=5)
    assert refused["code"] == "version_rejected"
    assert "wrong answers" in why(gateway)["route"]["history"][0]["reason"]

    second.announce("draining")
    wait_until(lambda: not why(gateway)["ready"]["2"], what="version 2 has left")
    route(gateway, "rollback", to=1)
    assert answered_by(gateway, 20) == {"1": 20}


def test_callers_stick_to_a_version(gateway: Gateway) -> None:
    gateway.deploy()
    gateway.start_instance("echo@1", concurrency=4)
    wait_ready(gateway, v1=1)
    gateway.registry.publish_version(gateway.registry.manifest("echo", 1))
    gateway.start_instance("echo@2", concurrency=4)
    route(gateway, "undo")
    route(gateway, "canary", version=2, percent=30, sticky="header:X-User")
    wait_ready(gateway, v1=1, v2=1)
    users = [f"user-{n}" for n in range(40)]
    first = {user: answered_by(gateway, 3, x_user=user) for user in users}
    assert all(len(versions) == 1 for versions in first.values()), "one version each"
    assert 3 <= sum("2" in versions for versions in first.values()) <= 25
    route(gateway, "canary", percent=60)
    again = {user: answered_by(gateway, 1, x_user=user) for user in users}
    assert all("2" in again[user] for user in users if "2" in first[user]), "nobody moves back"
    assert sum("2" in versions for versions in again.values()) > sum("2" in versions for versions in first.values())
    assert len(answered_by(gateway, 10)) == 1, "without the header: by key"


def test_what_cannot_be_routed_is_refused(gateway: Gateway) -> None:
    gateway.deploy()
    for command, status, body in (
        ("promote", 409, {}),
        ("rollback", 409, {}),
        ("undo", 409, {}),
        ("canary", 422, {"version": 7, "percent": 5}),
        ("canary", 422, {"percent": 0}),
        ("canary", 409, {"version": 1, "percent": 5}),
        ("canary", 422, {"percent": 5, "version": 1, "surprise": 1}),
        ("mirror", 422, {"percent": 101}),
        ("pin", 422, {"version": 9}),
        ("pin", 409, {"off": True}),
    ):
        route(gateway, command, status, **body)
    assert gateway.client.post("/v1/functions/nobody/route/undo").status_code == 404
    assert why(gateway)["route"]["shares"] == {"1": 100}


def test_every_gateway_follows_and_sends_a_caller_to_the_same_version(
    gateway: Gateway, stores: Stores, object_store: ObjectStore, short_path: Path
) -> None:
    other_folder = short_path / "b"
    other_folder.mkdir()
    gateway.deploy()
    gateway.start_instance("echo@1", concurrency=8)
    gateway.registry.publish_version(gateway.registry.manifest("echo", 1), mirror=1)
    gateway.start_instance("echo@2", concurrency=8)
    with running_gateway(stores, object_store, other_folder) as other:
        route(gateway, "canary", version=2, percent=40, sticky="header:x-user")
        for one in (gateway, other):
            wait_until(lambda one=one: why(one)["ready"] == {"1": 1, "2": 1}, what="both are ready")  # type: ignore[misc]
        wait_until(lambda: why(other)["route"]["canary"], what="the other gateway has heard of it")
        for user in (f"user-{n}" for n in range(20)):
            assert answered_by(gateway, 1, x_user=user) == answered_by(other, 1, x_user=user)
        route(other, "rollback")
        wait_until(lambda: why(gateway)["route"]["rejected"] == [2], what="and back")
        assert answered_by(gateway, 20) == answered_by(other, 20) == {"1": 20}


def test_copies_are_compared_and_never_returned(gateway: Gateway) -> None:
    gateway.deploy()
    gateway.start_instance("echo@1", concurrency=4)
    wait_ready(gateway, v1=1)
    first = gateway.registry.manifest("echo", 1)
    gateway.registry.publish_version(first, mirror=100)
    wait_until(lambda: why(gateway)["route"]["mirror"], what="the mirror is routed")
    assert answered_by(gateway, 5) == {"1": 5}, "nobody is ready there: no copies, no waiting"
    assert gateway.metric("samovar_queued") == 0
    mirror = gateway.start_instance("echo@2", concurrency=4)
    wait_ready(gateway, v1=1, v2=1)
    assert answered_by(gateway, 20) == {"1": 20}
    wait_until(lambda: (why(gateway)["mirror"] or {}).get("equal") == 20, what="all are compared")
    report = why(gateway)["mirror"]
    assert (report["compared"], report["different"], report["paths"]) == (20, 0, {})
    mirror.popen.kill()
    assert answered_by(gateway, 20) == {"1": 20}
    route(gateway, "mirror", percent=0)
    assert why(gateway)["mirror"] is None and why(gateway)["route"]["mirror"] is None


def test_a_slow_mirror_delays_nobody(gateway: Gateway) -> None:
    gateway.deploy()
    gateway.start_instance("echo@1", concurrency=2)
    wait_ready(gateway, v1=1)
    gateway.registry.publish_version(gateway.registry.manifest("echo", 1), mirror=100)
    gateway.start_instance("echo@2", concurrency=1).behave(sleep_s=1.0)
    wait_ready(gateway, v1=1, v2=1)
    slow = [gateway.invoke(body={"sleep_s": 0.1}) for _ in range(20)]
    assert {answer.status_code for answer in slow} == {200}
    queued_ms = [float(a.headers["server-timing"].partition("queue;dur=")[2].split(",")[0] or 0) for a in slow]
    assert sorted(queued_ms)[10] < 700, "the calls themselves find a free slot: copies take a second"
    outcomes = wait_until(lambda: (m := why(gateway)["mirror"]) and m["compared"] >= 2 and m, what="copies answered")
    assert outcomes["failed"] == 0
