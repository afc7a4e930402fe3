"""Processes killed or stopped, one after the other, under somebody else's load."""

from __future__ import annotations

import json
import os
import signal
import time

import psutil
import pytest

from samovar.errors import SamovarError
from support.faults import Bystander, Calls, answers
from support.journeys import Caller
from support.platform import Platform
from support.waiting import wait_until

pytestmark = pytest.mark.e2e


@pytest.fixture(scope="module", autouse=True)
def functions(victim: Caller) -> None:
    """The function that is hit; it keeps an instance."""
    victim.deploy("breaks")
    victim.scale("breaks", min_instances=1)
    victim.answer("breaks", {"deed": "answer"})


def cold_call(caller: Caller, name: str) -> bool:
    """Return whether a function that was never called gets an instance and answers."""
    caller.deploy("echo_sum", name)
    return answers(caller, name, {"values": [1]})


def pid_of(platform: Platform, name: str) -> int:
    """Return the pid of the platform's child, 0 while it has none."""
    try:
        return platform.child(name).pid
    except (StopIteration, OSError, ValueError, psutil.NoSuchProcess):
        return 0


def test_an_instance_is_killed(broken: Platform, victim: Caller, bystander: Bystander) -> None:
    """Its calls run again elsewhere: nobody sees it."""
    (instance, *_) = victim.instances("breaks", "ready")
    calls = Calls(victim, "breaks", {"deed": "sleep"}, 4, timeout_s=10)
    wait_until(lambda: running(victim, "breaks"), what="the calls to run")
    with bystander.watch("kill -9 of an instance, calls running") as row:
        os.kill(instance["pid"], signal.SIGKILL)
        assert calls.codes() == ["ok"] * 4
        row.recovered()


def test_the_zygote_is_killed(broken: Platform, victim: Caller, bystander: Bystander) -> None:
    (zygote,) = zygotes(broken)
    before = {instance["pid"] for instance in victim.instances("breaks", "ready")}
    with bystander.watch("kill -9 of the zygote, until a cold start works") as row:
        zygote.kill()
        assert victim.answer("breaks", {"deed": "answer"}) == "done", "instances go on without it"
        wait_until(
            lambda: [process.pid for process in zygotes(broken)] not in ([], [zygote.pid]), what="another zygote"
        )
        wait_until(lambda: cold_call(victim, "after-zygote"), what="a cold start")
        row.recovered()
    assert before <= {instance["pid"] for instance in victim.instances("breaks", "ready")}, "instances outlive it"


def test_the_pool_manager_is_killed(broken: Platform, victim: Caller, bystander: Bystander) -> None:
    first = broken.child("pool")
    with bystander.watch("kill -9 of the pool manager, until a cold start works") as row:
        first.kill()
        assert victim.answer("breaks", {"deed": "answer"}) == "done"
        wait_until(lambda: pid_of(broken, "pool") not in (0, first.pid), what="another pool manager")
        wait_until(lambda: cold_call(victim, "after-pool"), what="a cold start")
        row.recovered()


def test_one_of_two_gateways_is_killed(broken: Platform, victim: Caller, bystander: Bystander) -> None:
    """Calls on its connections break, and may be sent again; whoever connects anew is served by the other one."""
    first = broken.child("gateway-2")
    with bystander.watch("kill -9 of one of two gateways, until two serve", allowed=is_lost_connection) as row:
        first.kill()
        killed_s = time.monotonic()
        wait_until(lambda: pid_of(broken, "gateway-2") not in (0, first.pid), what="another gateway")
        own = json.loads((broken.data_dir / "connection.json").read_bytes())["gateways"]["gateway-2"]
        wait_until(lambda: is_ready(victim, own), what="it to be ready")
        row.recovered()
    broke = [outcome.due_s - killed_s for outcome in bystander.load.outcomes if is_lost_connection(outcome.problem)]
    assert all(due_s < 1.0 for due_s in broke), f"only calls that were in flight: {broke}"


def test_valkey_is_killed(broken: Platform, victim: Caller, bystander: Bystander) -> None:
    first = broken.child("valkey")
    with bystander.watch("kill -9 of Valkey, until a deploy and a cold start work") as row:
        first.kill()
        wait_until(lambda: pid_of(broken, "valkey") not in (0, first.pid), what="another Valkey")
        wait_until(lambda: deploys(victim, "after-valkey"), what="a deploy")
        wait_until(lambda: answers(victim, "after-valkey", {"values": [1]}), what="a cold start")
        row.recovered()


def test_valkey_is_stopped_for_ten_seconds(broken: Platform, victim: Caller, bystander: Bystander) -> None:
    valkey = broken.child("valkey")
    with bystander.watch("SIGSTOP of Valkey for 10 s, until a cold start works after it") as row:
        valkey.suspend()
        try:
            stopped_s = time.monotonic()
            wait_until(lambda: time.monotonic() - stopped_s > 10.0, what="ten seconds")
            assert victim.answer("breaks", {"deed": "answer"}) == "done"
        finally:
            valkey.resume()
        wait_until(lambda: deploys(victim, "after-stop"), what="a deploy")
        wait_until(lambda: answers(victim, "after-stop", {"values": [1]}), what="a cold start")
        row.recovered()


def test_seaweedfs_is_killed(broken: Platform, victim: Caller, bystander: Bystander) -> None:
    first = broken.child("seaweedfs")
    with bystander.watch("kill -9 of SeaweedFS, until a deploy works") as row:
        first.kill()
        refused = victim.http.post("/v1/keys", json={"name": "k", "scopes": ["invoke"], "functions": []})
        assert refused.status_code == 503 and refused.json()["code"] == "store_unavailable", refused.text
        wait_until(lambda: pid_of(broken, "seaweedfs") not in (0, first.pid), what="another SeaweedFS")
        wait_until(lambda: deploys(victim, "after-weed"), what="a deploy")
        row.recovered()


def running(caller: Caller, name: str) -> bool:
    """Return whether an instance of the function holds calls."""
    return "samovar_running" in caller.http.get("/metrics").text and bool(caller.instances(name, "ready"))


def zygotes(platform: Platform) -> list[psutil.Process]:
    """Return the zygotes: children of the pool manager that run its module."""
    try:
        return [child for child in platform.child("pool").children() if "samovar_instance.zygote" in child.cmdline()]
    except (StopIteration, psutil.NoSuchProcess):
        return []


def is_lost_connection(problem: str) -> bool:
    """Return whether a call ended because its connection broke, not with an answer."""
    return problem.startswith(("RemoteProtocolError(", "ReadError("))


def is_ready(caller: Caller, url: str) -> bool:
    """Return whether the gateway at its own address is ready."""
    try:
        return caller.http.get(f"{url}/readyz").status_code == 200
    except OSError:
        return False


def deploys(caller: Caller, name: str) -> bool:
    """Return whether a function can be deployed now."""
    try:
        return caller.deploy("echo_sum", name) > 0
    except SamovarError:
        return False
