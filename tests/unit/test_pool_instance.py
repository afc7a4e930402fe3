"""What the watchdog is told of a process."""

from __future__ import annotations

import time

import pytest

from samovar.lifecycle import State
from samovar_pool.backends.instance import Instance
from samovar_pool.model import Role
from samovar_pool.watchdog import DEFAULT_LIMITS, MAX_SILENCE_S, verdict


@pytest.mark.parametrize(("role", "is_killed"), [("instance", True), ("template", False)])
def test_only_what_reports_can_fall_silent(role: Role, is_killed: bool) -> None:
    instance = Instance(instance_id="i-1", token="t", address="unix:/x", role=role, state=State.READY, ref="f@1")
    long_after_s = time.monotonic() + 2 * MAX_SILENCE_S
    assert bool(verdict(instance.vitals(long_after_s), DEFAULT_LIMITS)) == is_killed
