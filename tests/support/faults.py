"""What tests of faults share: calls made while something is broken, and somebody else's load, which must not notice."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx

from support.journeys import Caller
from support.load import Load, p99_ms, problems, steady_load
from support.platform import Platform
from support.waiting import wait_until

LATE_S = 30.0  # what ends later than this after its deadline has hung, however busy the machine is
RATE_PER_S = 25.0
WINDOW_S = 3.0
SETTLED_S = 1.0


@dataclass
class Row:
    """What one fault did. recovery_s: from the fault until what it broke works again; None if nothing was broken."""

    fault: str
    began_s: float
    recovery_s: float | None = None
    num_calls: int = 0
    p99_before_ms: float = 0.0
    p99_during_ms: float = 0.0

    def recovered(self) -> None:
        """What the fault broke works again."""
        self.recovery_s = time.monotonic() - self.began_s


@dataclass
class Bystander:
    """Another function under load. `watch` asserts that a fault costs it nothing."""

    load: Load
    rows: list[Row] = field(default_factory=list)

    @contextmanager
    def watch(self, fault: str, allowed: Callable[[str], bool] = lambda problem: False) -> Iterator[Row]:
        """Break something in the body: the bystander's calls all get their answer, but for `allowed` problems."""
        row = Row(fault, time.monotonic())
        self.rows.append(row)
        yield row
        until_s = time.monotonic() + SETTLED_S
        wait_until(lambda: any(outcome.due_s > until_s for outcome in self.load.outcomes), what="the load to go on")
        during = self.load.between(row.began_s, until_s)
        row.num_calls = len(during)
        row.p99_before_ms = p99_ms(self.load.between(row.began_s - WINDOW_S, row.began_s))
        row.p99_during_ms = p99_ms(during)
        bad = [outcome for outcome in problems(during) if not allowed(outcome.problem)]
        assert not bad, f"{len(bad)} of {len(during)} calls of another function failed: {bad[:3]}"


@dataclass(frozen=True)
class Ended:
    """How a call ended. code: "ok", the problem document's code, or "lost" when the connection broke."""

    code: str
    latency_s: float
    answer: Any = None


def timed_call(caller: Caller, name: str, value: Any, timeout_s: float) -> Ended:
    """Make one call with a deadline; whatever becomes of it is returned, and it has kept its deadline."""
    began_s = time.monotonic()
    try:
        response = caller.invoke(name, value, **{"samovar-timeout-ms": f"{timeout_s * 1e3:.0f}"})
    except httpx.TransportError:
        return Ended("lost", time.monotonic() - began_s)
    latency_s = time.monotonic() - began_s
    assert latency_s < timeout_s + LATE_S, f"{latency_s:.2f} s for a deadline of {timeout_s} s: {response.text[:300]}"
    body = response.json()
    return Ended("ok", latency_s, body) if response.status_code == 200 else Ended(body["code"], latency_s, body)


class Calls:
    """Calls in flight beside a test."""

    def __init__(self, caller: Caller, name: str, value: Any, count: int, timeout_s: float) -> None:
        self._pool = ThreadPoolExecutor(count)
        self._calls: list[Future[Ended]] = [
            self._pool.submit(timed_call, caller, name, value, timeout_s) for _ in range(count)
        ]

    def codes(self) -> list[str]:
        """Wait for all of them; return how they ended."""
        try:
            return [call.result(60).code for call in self._calls]
        finally:
            self._pool.shutdown()


@contextmanager
def loaded(platform: Platform, caller: Caller, rows: list[Row]) -> Iterator[Bystander]:
    """Have the other function deployed, warm and under load for the body of a `with`."""
    if caller.http.get("/v1/functions/bystander").status_code == 404:
        caller.deploy("echo_sum", "bystander")
        caller.scale("bystander", min_instances=1)
    caller.answer("bystander", {"values": [1, 2]})
    arguments: tuple[Any, ...] = (platform.url, platform.admin_key, "bystander", {"values": [1, 2]}, 3.0, RATE_PER_S)
    with steady_load(*arguments) as load:
        wait_until(lambda: len(load.outcomes) > RATE_PER_S, what="the load to run")
        yield Bystander(load, rows)


def answers(caller: Caller, name: str, value: Any) -> bool:
    """Return whether a call gets an answer now."""
    try:
        return caller.invoke(name, value).status_code == 200
    except httpx.TransportError:
        return False


def table(rows: list[Row]) -> list[str]:
    """Return the lines of a table for people: what every fault did."""
    lines = [f"{'fault':<52} {'recovery':>9} {'calls of others':>16} {'their p99 before → during, ms':>30}"]
    for row in rows:
        recovery = "-" if row.recovery_s is None else f"{row.recovery_s:.1f} s"
        both = f"{row.p99_before_ms:.0f} → {row.p99_during_ms:.0f}"
        lines.append(f"{row.fault:<52} {recovery:>9} {row.num_calls:>16} {both:>30}")
    return lines
