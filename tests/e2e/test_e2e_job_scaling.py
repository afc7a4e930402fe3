"""Queued jobs and instances on a whole platform: they wake a sleeping function, and let it sleep again; a poison job
takes down what it may, and starts nothing more."""

from __future__ import annotations

from typing import Any

import pytest

from support.journeys import Caller
from support.waiting import wait_until

pytestmark = pytest.mark.e2e


def submit(caller: Caller, name: str, **request: Any) -> dict[str, Any]:
    """Submit a job, or many; return what was answered."""
    answer = caller.http.post(f"/v1/functions/{name}/jobs", json=request)
    assert answer.status_code == 202, answer.text
    found: dict[str, Any] = answer.json()
    return found


def ended(caller: Caller, job_id: str) -> dict[str, Any]:
    """Return a job once it has ended."""
    for _ in range(8):
        job: dict[str, Any] = caller.http.get(f"/v1/jobs/{job_id}", params={"wait_s": 15}).json()
        if job["state"] in ("finished", "failed", "canceled"):
            return job
    raise AssertionError(f"the job did not end: {job}")


def decisions(caller: Caller, name: str) -> list[dict[str, Any]]:
    """Return what the pool manager decided on a function, newest first."""
    found: list[dict[str, Any]] = caller.http.get(f"/v1/functions/{name}").raise_for_status().json()["decisions"]
    return found


def test_a_backlog_wakes_a_sleeping_function_is_capped_and_lets_it_sleep_again(caller: Caller) -> None:
    """Its jobs run until they are cancelled, so the backlog is there for as long as it is looked at."""
    caller.deploy("works", "milled")
    caller.scale("milled", max_instances=4, scale_down_window_s=1.0)
    caller.wait_for_zero("milled")
    group = submit(caller, "milled", inputs=[{"deed": "polls"}] * 20)["group"]
    wait_until(lambda: len(caller.instances("milled", "ready")) == 2, 120, "half of what it may have")

    def reasons() -> list[str]:
        return [decision.get("detail", "") for decision in decisions(caller, "milled")]

    wait_until(lambda: any("waiting jobs, capped at 2" in reason for reason in reasons()), what="the reason")
    assert len(caller.instances("milled")) == 2, "and no more, though others wait"
    caller.http.post(f"/v1/groups/{group}/cancel").raise_for_status()
    caller.wait_for_zero("milled")


def test_a_call_does_not_wait_for_a_long_job_to_end(caller: Caller) -> None:
    caller.deploy("works", "shared")
    caller.scale("shared", max_instances=2, scale_down_window_s=1.0)
    long = submit(caller, "shared", input={"deed": "spins", "num": 25})
    wait_until(lambda: caller.http.get(f"/v1/jobs/{long['id']}").json()["state"] == "started", what="it runs")
    assert caller.answer("shared", {"deed": "facts"})[0] == "", "by an instance of its own"
    assert caller.http.get(f"/v1/jobs/{long['id']}").json()["state"] == "started"
    caller.http.delete(f"/v1/jobs/{long['id']}")
    caller.wait_for_zero("shared")


def test_a_poison_job_is_quarantined_and_starts_no_more_instances(caller: Caller) -> None:
    caller.deploy("breaks", "poisoned")
    caller.scale("poisoned", max_instances=2, scale_down_window_s=1.0)
    job = submit(caller, "poisoned", input={"deed": "segfault"}, retries=5)
    found = ended(caller, job["id"])
    assert (found["state"], found["crashes"], found.get("failures", 0)) == ("failed", 3, 0)
    assert (found["error"]["code"], found["error"]["crashes"]) == ("quarantined", 3)
    assert "killed by signal 11" in found["error"]["detail"]
    caller.wait_for_zero("poisoned")
    lost = [decision for decision in decisions(caller, "poisoned") if decision["action"] == "lost"]
    assert len(lost) == 3, "each run took down one instance, and there was none after"
    quarantined = caller.http.get("/v1/jobs", params={"function": "poisoned", "state": "quarantined"}).json()["jobs"]
    assert [one["id"] for one in quarantined] == [job["id"]]
    good = submit(caller, "poisoned", input={"deed": "answer"})
    assert ended(caller, good["id"])["state"] == "finished", "others are served, once the breaker lets them"
