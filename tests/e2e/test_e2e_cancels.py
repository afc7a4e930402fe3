"""A caller leaves sync code that does not stop: its process is ended after the grace, and another takes its place."""

from __future__ import annotations

import httpx
import pytest

from support.journeys import Caller
from support.waiting import wait_until

pytestmark = pytest.mark.e2e


def test_who_waits_behind_a_caller_that_left_gets_a_new_instance(caller: Caller) -> None:
    caller.deploy("hangs", name="abandoned")
    caller.scale("abandoned", max_instances=1)
    assert caller.answer("abandoned", {"sleep_s": 0}) == "awake"
    (first,) = caller.instances("abandoned", "ready")
    url, key = str(caller.http.base_url), caller.http.headers["authorization"]
    with httpx.Client(base_url=url, headers={"authorization": key}, timeout=0.5) as hasty:
        with pytest.raises(httpx.ReadTimeout):
            hasty.post("/v1/functions/abandoned/invoke", json={"sleep_s": 60})
    answer = caller.invoke("abandoned", {"sleep_s": 0}, **{"samovar-timeout-ms": "30000"})
    assert (answer.status_code, answer.json()) == (200, "awake"), answer.text
    wait_until(lambda: caller.instances("abandoned", "ready"))
    (second,) = caller.instances("abandoned", "ready")
    assert second["pid"] != first["pid"]
