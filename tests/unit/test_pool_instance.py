"""What is told of a process: to the watchdog, and to those who look at it."""

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


def test_being_idle_is_published_when_it_lasts_and_never_once_per_call() -> None:
    instance = Instance(instance_id="i-1", token="t", address="unix:/x", state=State.READY, ref="f@1")
    now_s = time.monotonic()
    instance.reported(0, 0.0)
    instance.told_idle_since_s = instance.idle_since_s
    assert not instance.has_idle_news(now_s + 100)
    instance.reported(3, 0.0)
    assert not instance.has_idle_news(now_s) and instance.has_idle_news(now_s + 2)
    assert instance.record("n", False).idle_since_s == 0
    instance.told_idle_since_s = None
    instance.reported(0, 0.0)
    assert not instance.has_idle_news(now_s), "a pause between two calls"
    assert instance.has_idle_news(now_s + 2)
    assert instance.record("n", False).idle_since_s == pytest.approx(time.time(), abs=5)
    instance.told_idle_since_s = time.monotonic() - 10
    assert not instance.has_idle_news(now_s + 2), "called now and then: half a minute behind is close enough"
