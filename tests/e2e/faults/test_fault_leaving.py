"""Processes that are told to leave while everybody calls: nobody notices."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import urllib.request
from collections import Counter

import httpx
import psutil
import pytest

from support.faults import Bystander
from support.journeys import Caller
from support.load import problems, steady_load
from support.platform import Platform, environment
from support.waiting import wait_until

pytestmark = pytest.mark.e2e

RATE_PER_S = 60.0


def own_urls(platform: Platform) -> dict[str, str]:
    """Return the gateways' own addresses, by place."""
    urls: dict[str, str] = json.loads((platform.data_dir / "connection.json").read_bytes())["gateways"]
    return urls


def gateway_id(url: str) -> str:
    """Return who answers at `url`, on a connection of its own."""
    with urllib.request.urlopen(f"{url}/livez", timeout=60) as response:  # noqa: S310  our own http URL
        answer: str = json.loads(response.read())["gateway_id"]
    return answer


def test_both_gateways_take_connections_and_each_has_its_own_metrics(broken: Platform, victim: Caller) -> None:
    seen = Counter(gateway_id(broken.url) for _ in range(100))
    assert len(seen) == 2, seen
    alone = {place: {gateway_id(url) for _ in range(5)} for place, url in own_urls(broken).items()}
    assert {len(ids) for ids in alone.values()} == {1} and set.union(*alone.values()) == set(seen)
    for place, url in own_urls(broken).items():
        (name,) = alone[place]
        assert f'samovar_gateway{{gateway_id="{name}"}} 1.0' in httpx.get(f"{url}/metrics").text


def test_gateways_are_replaced_under_load_without_a_dropped_call(
    broken: Platform, victim: Caller, bystander: Bystander
) -> None:
    """A call that runs for seconds is answered by the gateway that took it, long after its successor serves."""
    victim.deploy("hangs", "long-runner")
    victim.answer("long-runner", {"sleep_s": 0})
    before = {place: gateway_id(url) for place, url in own_urls(broken).items()}
    long_calls: list[int] = []
    long_call = threading.Thread(
        target=lambda: long_calls.append(victim.invoke("long-runner", {"sleep_s": 3}).status_code)
    )
    arguments = (broken.url, broken.admin_key, "bystander", {"values": [3, 4]}, 7.0, RATE_PER_S)
    with steady_load(*arguments) as load, bystander.watch("both gateways are replaced, one at a time") as row:
        long_call.start()
        told = subprocess.run(
            [sys.executable, "-m", "samovar_up", "--restart-gateways", "--data-dir", str(broken.data_dir)],
            capture_output=True,
            text=True,
            timeout=60,
            env=environment(),
            check=False,
        )
        assert told.returncode == 0 and f"pid {broken.process.pid}" in told.stderr, told.stderr
        wait_until(lambda: broken.wait_for("progress")["text"] == "every gateway was replaced")
        row.recovered()
    long_call.join()
    assert long_calls == [200]
    assert len(load.outcomes) > RATE_PER_S and not problems(load.outcomes), problems(load.outcomes)[:3]
    after = {place: gateway_id(url) for place, url in own_urls(broken).items()}
    assert before.keys() == after.keys() and not set(before.values()) & set(after.values())


def test_nobody_is_told_to_restart_gateways_where_nothing_runs(broken: Platform) -> None:
    told = subprocess.run(
        [sys.executable, "-m", "samovar_up", "--restart-gateways", "--data-dir", str(broken.data_dir / "elsewhere")],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment(),
        check=False,
    )
    assert told.returncode == 3 and "no samovar up runs in" in told.stderr


@pytest.mark.parametrize("folder", ["echo_sum", "no_retry"])
def test_instances_leave_under_load_without_a_dropped_call(
    broken: Platform, victim: Caller, bystander: Bystander, folder: str
) -> None:
    """SIGTERM: whether its calls may be run twice or not."""
    name = f"leaves-{folder}".replace("_", "-")
    value, answer = ({"values": [5]}, 5.0) if folder == "echo_sum" else ({"sleep_s": 0.01}, "done")
    victim.deploy(folder, name)
    victim.scale(name, min_instances=2)
    victim.answer(name, value)
    wait_until(lambda: len(victim.instances(name, "ready")) >= 2, what="two instances")
    arguments = (broken.url, broken.admin_key, name, value, answer, RATE_PER_S)
    with steady_load(*arguments) as load, bystander.watch(f"SIGTERM of both instances of {folder}") as row:
        leaving = {instance["instance_id"]: instance["pid"] for instance in victim.instances(name, "ready")}
        for pid in leaving.values():
            os.kill(pid, signal.SIGTERM)
        wait_until(lambda: not any(map(psutil.pid_exists, leaving.values())), what="them to end")
        wait_until(lambda: len(ids(victim, name) - leaving.keys()) >= 2, what="two others")
        row.recovered()
    assert len(load.outcomes) > RATE_PER_S / 2 and not problems(load.outcomes), problems(load.outcomes)[:3]


def ids(caller: Caller, name: str) -> set[str]:
    """Return the ids of a function's ready instances."""
    return {instance["instance_id"] for instance in caller.instances(name, "ready")}
