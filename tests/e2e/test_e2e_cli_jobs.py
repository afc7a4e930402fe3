"""Jobs as a person queues them: from Python and the command line, against a whole platform that is restarted, and a
client that is killed."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import samovar
from samovar import errors
from samovar.jobs import CronJob
from support.journeys import Caller
from support.platform import Platform, environment
from support.waiting import wait_until

pytestmark = pytest.mark.e2e
EXAMPLE = Path(__file__).parents[2] / "functions" / "examples" / "word_counts" / "app.py"
NUM_TEXTS, NUM_KILLS = 400, 3


@pytest.fixture
def environ(platform: Platform, tmp_path: Path) -> dict[str, str]:
    return environment(SAMOVAR_DATA_DIR=str(platform.data_dir), XDG_CACHE_HOME=str(tmp_path / "cache"))


@pytest.fixture
def command() -> list[str]:
    return [sys.executable, "-m", "samovar.cli"]


@pytest.fixture
def client(platform: Platform) -> Iterator[samovar.Client]:
    with samovar.Client(platform.url, platform.admin_key) as client:
        yield client


def run(command: list[str], environ: dict[str, str], folder: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Run `samovar ARGUMENTS` to its end."""
    return subprocess.run(
        [*command, *arguments],
        cwd=folder,
        env=environ,
        capture_output=True,
        stdin=subprocess.DEVNULL,
        text=True,
        timeout=120,
        check=False,
    )


def texts(path: Path, count: int) -> list[str]:
    """Write so many inputs, one of them bad, and return their texts."""
    found = ["tea " * (number % 5 + 1) + "water" if number != 7 else " " for number in range(count)]
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in found))
    return found


def test_a_file_is_worked_through_once_however_often_its_client_is_killed(
    platform: Platform, client: samovar.Client, command: list[str], environ: dict[str, str], tmp_path: Path
) -> None:
    for function in ("count_words", "add_up"):
        assert run(command, environ, tmp_path, "deploy", f"{EXAMPLE}:{function}").returncode == 0
    found = texts(tmp_path / "texts.jsonl", NUM_TEXTS)
    verb = ["jobs", "submit", "count-words", "--file", "texts.jsonl", "--output", "out.jsonl", "--batch", "40"]
    state, chance = tmp_path / "out.jsonl.state", random.Random(4)
    for kill in range(NUM_KILLS):
        with subprocess.Popen([*command, *verb], cwd=tmp_path, env=environ, stdin=subprocess.DEVNULL) as process:
            noted = state.read_bytes().count(b"\n") if state.exists() else 0
            due = noted + chance.randint(1, 3)
            wait_until(lambda: process.poll() is not None or _lines(state) >= due, what=f"kill {kill}")  # noqa: B023
            process.send_signal(signal.SIGKILL)
    done = run(command, environ, tmp_path, *verb, "--json")
    assert done.returncode == 7, done.stderr
    summary = json.loads(done.stdout)
    assert (summary["finished"], summary["failed"]) == (NUM_TEXTS - 1, 1)
    rows = [json.loads(line) for line in (tmp_path / "out.jsonl").read_text().splitlines()]
    assert [row["line"] for row in rows] == list(range(1, NUM_TEXTS + 1))
    for row, text in zip(rows, found, strict=True):
        assert ("error" in row) if not text.strip() else sum(row["result"].values()) == len(text.split())
    assert sum(1 for _ in client.jobs(function="count-words")) == NUM_TEXTS, "nothing was submitted twice"
    reduced = run(command, environ, tmp_path, *verb[:5], "--wait", "--reduce", "add-up", "--allow-failed", "--json")
    assert json.loads(reduced.stdout)["reduced"]["water"] == NUM_TEXTS - 1


def _lines(path: Path) -> int:
    return path.read_bytes().count(b"\n") if path.exists() else 0


def test_every_verb_speaks_json(
    caller: Caller, command: list[str], environ: dict[str, str], tmp_path: Path, client: samovar.Client
) -> None:
    caller.deploy("works", "spoken")

    def said(*arguments: str, code: int = 0) -> Any:
        done = run(command, environ, tmp_path, *arguments, "--json")
        assert done.returncode == code, done.stderr
        return json.loads(done.stdout)

    job = said("jobs", "submit", "spoken", "--json", '{"deed": "logs", "num": 2}', "--wait", "--retries", "1")
    assert job["state"] == "finished"
    assert job["id"] in [one["id"] for one in said("jobs", "ls", "--function", "spoken", "--state", "finished")]
    assert said("jobs", "get", job["id"])["function"] == "spoken"
    lines = run(command, environ, tmp_path, "jobs", "logs", job["id"], "-f", "--json").stdout.splitlines()
    assert [json.loads(line)["kind"] for line in lines] == ["log", "log"]
    bad = said("jobs", "submit", "spoken", "--json", '{"deed": 7}')
    assert said("jobs", "wait", job["id"], bad["id"], code=6)[1]["error"]["code"] == "invalid_input"
    (again,) = said("jobs", "retry", job["id"])
    assert said("jobs", "wait", again["id"])[0]["state"] == "finished"
    later = said("jobs", "submit", "spoken", "--json", '{"deed": "facts"}', "--delay", "1h")
    assert later["state"] == "scheduled"
    assert said("jobs", "cancel", later["id"])[0]["state"] == "canceled"
    assert said("jobs", "purge", "spoken", "--yes")["deleted"] == 4

    cron = ("--schedule", "0 3 * * *", "--tz", "Europe/Lisbon", "--json", '{"deed": "facts"}')
    made = said("cron", "add", "spoken-nightly", "spoken", *cron)
    assert len(made["upcoming_s"]) == 3
    assert "spoken-nightly" in [one["name"] for one in said("cron", "ls")]
    run_now = said("cron", "run", "spoken-nightly")
    assert said("jobs", "wait", run_now["id"])[0]["state"] == "finished"
    assert said("cron", "pause", "spoken-nightly").get("enabled", True) is False
    assert said("cron", "resume", "spoken-nightly").get("enabled", True) is True
    assert said("cron", "get", "spoken-nightly")["last_job"] == run_now["id"]
    said("cron", "rm", "spoken-nightly")
    assert said("webhooks", "ls")["events"] == []
    assert said("webhooks", "secret")["secret"].startswith("whsec_")


def test_results_are_waited_for_through_a_kill_of_the_gateway(
    caller: Caller, platform: Platform, client: samovar.Client
) -> None:
    caller.deploy("works", "outlasts")
    job = client.function("outlasts").submit({"deed": "spins", "num": 4})
    kinds: list[str] = []
    watching = threading.Thread(target=lambda: kinds.extend(event.kind for event in job.events()))
    watching.start()
    wait_until(lambda: client.job(job.id).status().state == "started", what="it runs")
    platform.child("gateway").kill()
    another = client.function("outlasts").submit({"deed": "facts"})
    assert another.result(timeout_s=60) is not None
    job.wait(timeout_s=60)
    watching.join(60)
    assert job.view is not None
    assert job.view.state == "finished"
    assert kinds[-1] == "finished"
    assert len([kind for kind in kinds if kind == "started"]) == 1, "no event is told twice"


def test_the_python_client_sees_a_job_through(caller: Caller, client: samovar.Client) -> None:
    caller.deploy("works", "seen")
    seen = client.function("seen")
    job = seen.submit({"deed": "reports", "num": 3}, retries=2, tags={"of": "monday"})
    assert job.wait(timeout_s=60).progress is not None
    assert job.status().tags == {"of": "monday"}
    assert [line["line"] for line in seen.submit({"deed": "logs", "num": 2}).logs()] != []
    group = seen.submit_many([{"deed": "facts"} for _ in range(20)])
    assert len(group.results(timeout_s=60)) == 20
    assert {one.id for one in group} == {one.id for one in group.jobs}
    late = seen.submit({"deed": "facts"}, delay_s=3600)
    with pytest.raises(errors.JobNotDone, match="scheduled"):
        late.result(timeout_s=0)
    late.cancel()
    with pytest.raises(errors.JobEnded):
        late.result()
    with pytest.raises(errors.InvalidInput):
        seen.submit({"deed": 7}).result(timeout_s=60)
    assert seen.submit({"deed": "facts"}, idempotency_key="doc-42").id == (
        seen.submit({"deed": "facts"}, idempotency_key="doc-42").id
    )
    client.crons.put(CronJob(name="seen-hourly", function="seen", schedule="@hourly", input={"deed": "facts"}))
    assert client.crons.run("seen-hourly").wait(timeout_s=60).state == "finished"
    client.crons.delete("seen-hourly")
