"""Queued jobs on a whole platform, as a client sees them: run, told, stopped, and safe when the platform stops."""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import Any

import pytest

from support.folders import short_folder
from support.journeys import Caller
from support.platform import running_platform
from support.waiting import wait_until

pytestmark = pytest.mark.e2e


def submit(caller: Caller, name: str, value: Any, **options: Any) -> str:
    """Submit a job; return its id."""
    answer = caller.http.post(f"/v1/functions/{name}/jobs", json={"input": value, **options})
    assert answer.status_code == 202, answer.text
    found: str = answer.json()["id"]
    return found


def state(caller: Caller, job_id: str) -> dict[str, Any]:
    """Return a job."""
    found: dict[str, Any] = caller.http.get(f"/v1/jobs/{job_id}").raise_for_status().json()
    return found


def ended(caller: Caller, job_id: str) -> dict[str, Any]:
    """Return a job once it has ended."""
    found: dict[str, Any] = {}

    def has_ended() -> bool:
        found.update(caller.http.get(f"/v1/jobs/{job_id}", params={"wait_s": 5}).raise_for_status().json())
        return found["state"] in ("finished", "failed", "canceled")

    wait_until(has_ended, what=f"the job {job_id} ends")
    return found


def test_a_job_wakes_its_function_runs_and_is_in_the_request_log(caller: Caller) -> None:
    caller.deploy("works", "jobbed")
    caller.scale("jobbed", scale_down_window_s=1.0)
    caller.wait_for_zero("jobbed")
    job = ended(caller, submit(caller, "jobbed", {"deed": "facts"}))
    assert job["state"] == "finished"
    assert job["result"][:3] == [job["id"], 1, job["token"]]

    def is_logged() -> bool:
        rows = caller.http.get("/v1/functions/jobbed/requests").raise_for_status().json()["records"]
        return any(row.get("request_id") == job["id"] for row in rows)

    wait_until(is_logged, what="the job's attempt in the request log")


def test_what_a_handler_says_is_told_in_order(caller: Caller) -> None:
    caller.deploy("works", "talks")
    job = submit(caller, "talks", {"deed": "logs", "num": 3})
    assert ended(caller, job)["state"] == "finished"
    with caller.http.stream("GET", f"/v1/jobs/{job}/events") as events:
        kinds = [line.removeprefix("event: ") for line in events.iter_lines() if line.startswith("event: ")]
    assert [kind for kind in kinds if kind != "queued"] == ["started", "log", "log", "log", "finished"]
    told = ended(caller, submit(caller, "talks", {"deed": "reports", "num": 200}))
    assert told["progress"] == {"fraction": 1.0, "message": "row 200"}


def test_a_job_that_hears_nothing_is_stopped_with_its_instance(caller: Caller) -> None:
    caller.deploy("works", "deafened")
    job = submit(caller, "deafened", {"deed": "spins", "num": 60})
    wait_until(lambda: "progress" in state(caller, job), what="the handler runs")
    assert caller.http.delete(f"/v1/jobs/{job}").status_code == 202
    canceled = ended(caller, job)
    assert canceled["state"] == "canceled"
    assert "its instance was replaced" in canceled["error"]["detail"]
    assert ended(caller, submit(caller, "deafened", {"deed": "facts"}))["state"] == "finished"


def test_a_map_is_reduced(caller: Caller) -> None:
    caller.deploy("noop", "mapped")
    caller.deploy("collects", "collects")
    request = {"inputs": [{"value": number} for number in range(20)], "reduce": {"function": "collects"}}
    answer = caller.http.post("/v1/functions/mapped/jobs", json=request)
    assert answer.status_code == 202, answer.text
    assert ended(caller, answer.json()["reduce"])["result"] == sum(range(20))


def test_jobs_outlive_the_platform(tmp_path: Path) -> None:
    with short_folder() as folder:
        with running_platform(folder / "data") as platform, Caller.of(platform) as caller:
            caller.deploy("hangs", "outlives")
            running, *waiting = [submit(caller, "outlives", {"sleep_s": 1.0}) for _ in range(4)]
            wait_until(lambda: state(caller, running)["state"] == "started")
            assert platform.stop(signal.SIGTERM) == 0
        with running_platform(folder / "data") as platform, Caller.of(platform) as caller:
            first, *others = [ended(caller, job) for job in (running, *waiting)]
            assert {job["state"] for job in (first, *others)} == {"finished"}
            assert first["attempt"] == 1, "it was finished before the platform stopped"
            assert json.loads(caller.http.get(f"/v1/jobs/{running}/result").content) is not None
