"""Jobs while something is broken: what got a 202 ends, and its effect counts once. tests/benchmarks/jobs_chaos.py does
the same with 5,000 jobs a fault, and kills without a plan."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from pathlib import Path

import pytest
from harness.chaos import Killer, Site, Verdict, book, platform_pids, run_jobs, stopped

from support.clock_step import SteppedClock
from support.folders import short_folder
from support.journeys import Caller
from support.platform import Platform, end, environment, start, wait_ready
from support.waiting import wait_until

pytestmark = pytest.mark.e2e

NUM_JOBS = 200
RATE = 100.0
TIMEOUT_S = 120.0
PAST_LEASE_S = 5.0
LARGE = "x" * 70_000  # an input that goes to object storage


@pytest.fixture(scope="module")
def clock(tmp_path_factory: pytest.TempPathFactory) -> SteppedClock:
    """The wall clock of the platform's Python processes."""
    return SteppedClock(tmp_path_factory.mktemp("clock-of-jobs") / "site")


@pytest.fixture(scope="module")
def platform(clock: SteppedClock) -> Iterator[Platform]:
    """A platform with two gateways and two job workers, for this module to break."""
    with short_folder() as folder:
        flags = ("--gateways", "2", "--job-workers", "2")
        running = start(folder / "data", *flags, environ=environment(**clock.environment))
        try:
            yield wait_ready(running)
        finally:
            end(running)


@pytest.fixture(scope="module")
def caller(platform: Platform) -> Iterator[Caller]:
    """Somebody with the admin key; the function is deployed and keeps two instances."""
    with Caller.of(platform) as person:
        person.deploy("effects")
        person.scale("effects", min_instances=2, max_instances=2)
        wait_until(lambda: len(person.instances("effects", "ready")) == 2, what="two instances")
        yield person


@pytest.fixture
def site(platform: Platform, caller: Caller) -> Iterator[Site]:
    """Where jobs go, and an empty book of their effects."""
    with book() as rows:
        yield Site(platform.url, platform.admin_key, "effects", rows)


def pids(platform: Platform, kind: str) -> Sequence[int]:
    """Return the platform's processes of one kind."""
    return platform_pids(platform.data_dir).get(kind, [])


@contextmanager
def killing(pid: int, after_s: float = 0.7) -> Iterator[None]:
    """Kill one process of the platform while the body of a `with` runs."""
    timer = threading.Timer(after_s, os.kill, (pid, signal.SIGKILL))
    timer.start()
    try:
        yield
    finally:
        timer.join()


def run(site: Site, broken: AbstractContextManager[object], num_jobs: int = NUM_JOBS, **value: object) -> Verdict:
    """Run jobs while something is broken; every one of them must have ended, and none counts twice."""
    verdict = run_jobs(site, broken, num_jobs, RATE, TIMEOUT_S, **value)
    assert (verdict.accepted, verdict.lost, verdict.double_committed, verdict.not_terminal) == (num_jobs, 0, 0, 0)
    return verdict


@pytest.mark.parametrize("kind", ["jobs", "pool", "gateway", "valkey"])
def test_a_process_is_killed(platform: Platform, site: Site, kind: str) -> None:
    verdict = run(site, killing(pids(platform, kind)[0]))
    assert verdict.states == {"finished": NUM_JOBS}


def test_an_instance_is_killed(caller: Caller, site: Site) -> None:
    """Jobs that ran on it run again."""
    victim = caller.instances("effects", "ready")[0]["pid"]
    assert run(site, killing(victim)).states == {"finished": NUM_JOBS}


def test_processes_are_killed_one_after_the_other(platform: Platform, caller: Caller, site: Site) -> None:
    def victims() -> dict[str, Sequence[int]]:
        return {kind: pids(platform, kind) for kind in ("gateway", "jobs", "pool", "valkey")}

    killer = Killer(victims, str(platform.data_dir), every_s=0.5, max_kills=6)
    assert run(site, killer.at_work()).states == {"finished": NUM_JOBS}
    assert sum(killer.killed.values()) >= 2


def test_a_worker_is_stopped_past_its_lease(platform: Platform, site: Site) -> None:
    """What it held runs elsewhere; what it says once it goes on is late."""
    verdict = run(site, stopped(pids(platform, "jobs")[:1], 0.5, PAST_LEASE_S))
    assert verdict.states == {"finished": NUM_JOBS}


def test_object_storage_hangs(platform: Platform, site: Site) -> None:
    """Inputs that lie there cannot be stored or read for a while."""
    verdict = run(site, stopped(pids(platform, "seaweedfs"), 0.3, 8.0), 40, padding=LARGE)
    assert verdict.states == {"finished": 40}


def test_the_clock_steps(platform: Platform, clock: SteppedClock, site: Site) -> None:
    """Nobody's lease depends on the wall clock."""

    @contextmanager
    def stepping() -> Iterator[None]:
        timers = [threading.Timer(0.5, clock.step, (3600.0,)), threading.Timer(1.2, clock.step, (-3600.0,))]
        for timer in timers:
            timer.start()
        try:
            yield
        finally:
            for timer in timers:
                timer.join()
            clock.step(0.0)

    verdict = run(site, stepping())
    assert verdict.states == {"finished": NUM_JOBS}
    assert verdict.rows == NUM_JOBS, "nothing ran twice"


def test_one_poison_job_among_good_ones(caller: Caller, site: Site) -> None:
    """It is quarantined after its crashes, the others finish, and it starts no more instances."""
    verdict = run(site, nullcontext(), poison_every=NUM_JOBS)
    assert verdict.states == {"finished": NUM_JOBS - 1, "failed": 1}
    [dead] = caller.http.get("/v1/jobs?function=effects&state=quarantined").raise_for_status().json()["jobs"]
    assert dead["error"]["code"] == "quarantined"
    assert dead["crashes"] == 4, "max_crashes of the function"


def children(data_dir: Path) -> list[str]:
    """Return the names of the platform's processes."""
    return [child["name"] for child in json.loads((data_dir / "children.json").read_bytes())["children"]]


def test_the_platform_has_what_this_module_breaks(platform: Platform, caller: Caller) -> None:
    assert {"gateway", "gateway-2", "jobs", "jobs-2", "pool", "valkey", "seaweedfs"} <= set(children(platform.data_dir))
