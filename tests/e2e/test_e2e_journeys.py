"""What people do with a platform, on all of its real processes."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import httpx_sse
import psutil
import pytest

from support.journeys import FUNCTIONS, Caller, phases
from support.platform import Platform, environment
from support.waiting import wait_until

pytestmark = pytest.mark.e2e


def samovar(platform: Platform, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run a verb of the CLI, which finds the platform by its data folder."""
    command = [sys.executable, "-m", "samovar.cli", *arguments]
    environ = environment(SAMOVAR_DATA_DIR=str(platform.data_dir))
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=environ, check=False)


def test_deploy_cold_warm_zero_cold_again(platform: Platform, caller: Caller) -> None:
    deployed = samovar(platform, "deploy", str(FUNCTIONS / "echo_sum" / "app.py"), "--json")
    assert deployed.returncode == 0, deployed.stderr
    assert json.loads(deployed.stdout)["version"] == 1

    cold = caller.invoke("echo-sum", {"values": [1, 2, 3.5]})
    assert (cold.status_code, cold.json()) == (200, 6.5), cold.text
    assert cold.headers["samovar-version"] == "1"
    assert {"claim", "load"} <= phases(cold).keys(), cold.headers["server-timing"]
    (first,) = caller.instances("echo-sum", "ready")

    warm = caller.invoke("echo-sum", {"values": [2]})
    assert warm.json() == 2 and "load" not in phases(warm)

    caller.scale("echo-sum", scale_down_window_s=0)
    caller.wait_for_zero("echo-sum")
    again = caller.invoke("echo-sum", {"values": [4]})
    assert again.json() == 4
    assert caller.instances("echo-sum")[0]["pid"] != first["pid"]


def test_the_cli_invokes_and_lists(platform: Platform, caller: Caller) -> None:
    caller.deploy("echo_sum", "listed")
    invoked = samovar(platform, "invoke", "listed", "--json", '{"values": [1, 2]}')
    assert (invoked.returncode, json.loads(invoked.stdout)) == (0, 3), invoked.stderr
    assert "listed" in [entry["name"] for entry in json.loads(samovar(platform, "ls", "--json").stdout)]
    assert json.loads(samovar(platform, "ps", "listed", "--json").stdout)[0]["state"] == "ready"
    doctor = samovar(platform, "doctor")
    assert doctor.returncode == 0, doctor.stdout + doctor.stderr
    missing = samovar(platform, "invoke", "listet", "--json", "{}")
    assert missing.returncode == 5 and "listed" in missing.stderr and "Traceback" not in missing.stderr


def test_two_deploys_at_once_lose_none(platform: Platform, caller: Caller) -> None:
    command = ("deploy", str(FUNCTIONS / "echo_sum"), "--name", "twice", "--json")
    with ThreadPoolExecutor(2) as pool:
        deploys = [*pool.map(lambda _: samovar(platform, *command), range(2))]
    assert sorted(json.loads(deployed.stdout)["version"] for deployed in deploys) == [1, 2]
    assert caller.invoke("twice", {"values": [1]}).headers["samovar-version"] == "2"


def test_weights_travel_and_are_uploaded_once(platform: Platform, caller: Caller) -> None:
    caller.deploy("weighs")
    assert caller.answer("weighs", {"prefix": "it is "}) == "it is forty-two"
    again = samovar(platform, "deploy", str(FUNCTIONS / "weighs" / "app.py"), "--dry-run", "--json")
    assert again.returncode == 0, again.stderr
    assert [blob["present"] for blob in json.loads(again.stdout)["blobs"]] == [True, True]


def test_a_generator_streams_lines(caller: Caller) -> None:
    caller.deploy("generator")
    with caller.http.stream("POST", "/v1/functions/generator/invoke", content=b'{"n": 4}') as answer:
        assert answer.headers["content-type"].startswith("application/x-ndjson")
        assert [json.loads(line) for line in answer.iter_lines()] == [0, 1, 2, 3]


def test_a_generator_and_what_it_says_come_as_events(caller: Caller) -> None:
    caller.deploy("tells")
    said = told(caller, "tells", {"n": 3})
    assert [event.event for event in said if event.event != "progress"] == ["log", *["output"] * 3, "done"]
    assert json.loads(said[0].data) == {"line": "the kettle is on"}
    assert [json.loads(event.data) for event in said if event.event == "output"] == [{"i": i} for i in range(3)]
    assert [event.id for event in said] == [str(number) for number in range(1, len(said) + 1)]
    fractions = [json.loads(event.data)["fraction"] for event in said if event.event == "progress"]
    assert fractions == sorted(fractions) and len(fractions) >= 2 and fractions[-1] == 1.0
    assert json.loads(said[-1].data)["timing_ms"]["run"] > 300
    failed = told(caller, "tells", {"n": 3, "fail_at": 1})
    assert failed[-1].event == "error" and json.loads(failed[-1].data)["detail"].endswith("spilt")


def told(caller: Caller, name: str, body: object) -> list[httpx_sse.ServerSentEvent]:
    """Return the events of an invocation, as a client library of others reads them."""
    events: list[httpx_sse.ServerSentEvent] = []
    with (
        httpx_sse.connect_sse(caller.http, "POST", f"/v1/functions/{name}/invoke", json=body) as source,
        contextlib.suppress(httpx.RemoteProtocolError),  # after an error
    ):
        for event in source.iter_sse():
            events.append(event)
    return events


def test_what_a_function_prints_can_be_followed(caller: Caller) -> None:
    caller.deploy("misbehaves", "talks")
    caller.answer("talks", {"deed": "print"})
    wait_until(lambda: "said natively" in caller.logs("talks"))
    assert {"said on stdout", "said on stderr"} <= set(caller.logs("talks"))
    with caller.http.stream("GET", "/v1/functions/talks/logs?lines=0&follow=1") as followed:
        lines = followed.iter_lines()
        with printing(caller, "talks"):
            assert any("said on stdout" in line for line in lines)


@contextlib.contextmanager
def printing(caller: Caller, name: str) -> Iterator[None]:
    """Have the function print again and again: who follows its log begins to at some moment."""
    over = threading.Event()

    def go_on() -> None:
        while not over.wait(0.2):
            caller.answer(name, {"deed": "print"})

    thread = threading.Thread(target=go_on)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def test_a_warm_request_brings_instances_up_without_a_call(caller: Caller) -> None:
    caller.deploy("echo_sum", "warmed")
    caller.http.post("/v1/functions/warmed/warm", json={"instances": 2, "for_s": 30}).raise_for_status()
    wait_until(lambda: len(caller.instances("warmed", "ready")) == 2)
    caller.scale("warmed", scale_down_window_s=0)
    caller.http.post("/v1/functions/warmed/warm", json={"instances": 0}).raise_for_status()
    caller.wait_for_zero("warmed")


def test_a_removed_function_is_gone_and_so_are_its_instances(caller: Caller) -> None:
    caller.deploy("echo_sum", "passing")
    caller.answer("passing", {"values": [1]})
    assert caller.http.delete("/v1/functions/passing").status_code == 204
    assert caller.invoke("passing", {"values": [1]}).status_code == 404
    caller.wait_for_zero("passing")


def kill_the_instance_during(caller: Caller, name: str, value: object) -> httpx.Response:
    """Kill -9 the only instance while it works on a call; return the call's answer."""
    caller.answer(name, value)
    (instance,) = caller.instances(name, "ready")
    with ThreadPoolExecutor(1) as pool:
        call = pool.submit(caller.invoke, name, value, **{"samovar-timeout-ms": "60000"})
        wait_until(lambda: f'samovar_running{{function="{name}"' in running_of(caller), what="the call to be sent")
        sent_s = time.monotonic()
        wait_until(lambda: time.monotonic() - sent_s > 0.5, what="the call to be running")
        os.kill(instance["pid"], signal.SIGKILL)
        return call.result(60)


def running_of(caller: Caller) -> str:
    """Return the metrics of functions that work on a call."""
    lines = caller.http.get("/metrics").text.splitlines()
    return "\n".join(line for line in lines if line.startswith("samovar_running{") and not line.endswith(" 0.0"))


def test_a_call_on_a_killed_instance_is_retried(caller: Caller) -> None:
    caller.deploy("misbehaves", "mortal")
    answer = kill_the_instance_during(caller, "mortal", {"deed": "sleep", "amount": 4.0})
    assert (answer.status_code, answer.json()) == (200, "done"), answer.text


def test_a_call_that_may_not_be_retried_gets_502(caller: Caller) -> None:
    caller.deploy("no_retry")
    answer = kill_the_instance_during(caller, "no-retry", {"sleep_s": 4.0})
    assert answer.status_code == 502 and answer.json()["code"] == "instance_lost", answer.text
    assert caller.answer("no-retry", {"sleep_s": 0}) == "done"


def test_the_pool_manager_is_killed_under_load_and_no_call_fails(platform: Platform, caller: Caller) -> None:
    caller.deploy("echo_sum", "steady")
    caller.answer("steady", {"values": [1]})
    stop = threading.Event()

    def calls() -> list[int]:
        statuses = []
        while not stop.is_set():
            statuses.append(caller.invoke("steady", {"values": [1]}).status_code)
        return statuses

    with ThreadPoolExecutor(4) as pool:
        running = [pool.submit(calls) for _ in range(4)]
        try:
            first = platform.child("pool")
            first.kill()
            wait_until(lambda: _pid(platform, "pool") not in (0, first.pid), what="another pool manager")
            caller.deploy("echo_sum", "newcomer")
            assert caller.answer("newcomer", {"values": [5]}) == 5
        finally:
            stop.set()
        statuses = [status for call in running for status in call.result()]
    assert len(statuses) > 50 and set(statuses) == {200}


def test_a_killed_gateway_comes_back(platform: Platform, caller: Caller) -> None:
    caller.deploy("echo_sum", "edge")
    first = platform.child("gateway")
    first.kill()
    wait_until(lambda: _pid(platform, "gateway") not in (0, first.pid), what="another gateway")
    wait_until(lambda: _is_ready(caller), what="a ready gateway")
    assert caller.answer("edge", {"values": [1, 1]}) == 2


def test_a_second_up_says_who_holds_the_folder(platform: Platform) -> None:
    refused = subprocess.run(
        [sys.executable, "-m", "samovar_up", "--data-dir", str(platform.data_dir), "--port", "0"],
        capture_output=True,
        text=True,
        timeout=60,
        env=environment(),
        check=False,
    )
    assert refused.returncode == 10
    assert f"pid {platform.process.pid} since" in refused.stderr and platform.url in refused.stderr


def test_no_secret_shows_in_arguments_or_the_environment_of_instances(platform: Platform, caller: Caller) -> None:
    secrets = [value for value in json.loads((platform.data_dir / "secrets.json").read_bytes()).values()]
    secrets.append(platform.admin_key)
    caller.deploy("echo_sum", "discreet")
    caller.answer("discreet", {"values": [1]})
    arguments = " ".join(" ".join(process.cmdline()) for process in platform.tree())
    assert not any(secret in arguments for secret in secrets)
    (instance,) = caller.instances("discreet", "ready")
    inside = Path(f"/proc/{instance['pid']}/environ").read_text()
    assert "SAMOVAR" not in inside and not any(secret in inside for secret in secrets)
    process = psutil.Process(instance["pid"])
    opened = {Path(file.path).name for file in process.open_files()}
    assert not [name for name in opened if "log" not in name], "its logs, and no file with a secret"
    ports = {connection.raddr.port for connection in process.net_connections("inet") if connection.raddr}
    assert not ports, "no connection to a store"
    for name in ("connection.json", "settings.json", "secrets.json"):
        assert (platform.data_dir / name).stat().st_mode & 0o077 == 0, name


def _pid(platform: Platform, name: str) -> int:
    try:
        return platform.child(name).pid
    except (StopIteration, OSError, ValueError, psutil.NoSuchProcess):
        return 0


def _is_ready(caller: Caller) -> bool:
    try:
        return caller.http.get("/readyz").status_code == 200
    except httpx.TransportError:
        return False
