"""A supervised child: restarted with back-off when it dies, ended when told, killed when it will not."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import pytest

from samovar_up import leftovers, procfs
from samovar_up.child import Child, ChildSpec
from support.waiting import wait_until_async

pytestmark = pytest.mark.process
SLEEPS = "import time; print('up', flush=True); time.sleep(60)"
STUBBORN = "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up', flush=True); time.sleep(60)"
Start = Callable[..., Awaitable[Child]]


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Start]:
    """Start a child that runs a line of Python; whatever is left of it is killed afterwards."""
    started: list[Child] = []

    async def start(code: str, stop_timeout_s: float = 5.0, exits: list[int] | None = None) -> Child:
        spec = ChildSpec(
            name="child",
            argv=(sys.executable, "-c", code),
            environ=dict(os.environ),
            log_path=tmp_path / "child.log",
            stop_timeout_s=stop_timeout_s,
        )
        child = Child(spec, lambda: None, lambda _, exit_code: (exits if exits is not None else []).append(exit_code))
        started.append(child)
        await child.start()
        return child

    yield start
    for child in started:
        hurry = asyncio.Event()
        hurry.set()
        await child.stop(hurry)


async def test_a_killed_child_comes_back_within_seconds(start: Start) -> None:
    exits: list[int] = []
    child = await start(SLEEPS, exits=exits)
    first = child.identity
    assert first is not None
    os.kill(first.pid, signal.SIGKILL)
    await wait_until_async(lambda: child.identity is not None and child.identity.pid != first.pid)
    assert (exits, child.num_restarts) == ([-signal.SIGKILL], 1)


async def test_a_child_that_dies_at_once_is_started_less_and_less_often(start: Start) -> None:
    exits: list[int] = []
    began_s = time.monotonic()
    child = await start("import sys; print('no such thing'); sys.exit(10)", exits=exits)
    await wait_until_async(lambda: len(exits) == 3)
    assert exits == [10, 10, 10]
    assert time.monotonic() - began_s >= 3, "1 s before the second start, 2 s before the third"
    assert child.last_log_line() == "no such thing"


async def test_a_stop_while_waiting_to_start_again_starts_nothing(start: Start) -> None:
    exits: list[int] = []
    child = await start("raise SystemExit(1)", exits=exits)
    await wait_until_async(lambda: exits == [1])
    await child.stop(asyncio.Event())
    assert child.identity is None and child.num_restarts == 0


async def test_a_child_that_ignores_its_end_is_killed_when_its_time_is_over(start: Start) -> None:
    child = await start(STUBBORN, stop_timeout_s=0.3)
    await wait_until_async(lambda: child.last_log_line() == "up")
    identity = child.identity
    assert identity is not None
    await child.stop(asyncio.Event())
    assert not procfs.is_alive(identity)


# in a process of its own: a supervisor ends every descendant that is left, and the test's other servers are ours
REFUSED = """
import asyncio, os, sys
from pathlib import Path
from samovar.errors import ConfigError
from samovar_up.child import ChildSpec
from samovar_up.plan import Plan
from samovar_up.report import JsonReporter
from samovar_up.supervisor import Supervisor

folder = Path(sys.argv[1])
code = "import sys; print('the kettle is on fire', flush=True); sys.exit(10)"
gateway = ChildSpec(
    name="gateway", argv=(sys.executable, "-c", code), environ=dict(os.environ), log_path=folder / "gateway.log",
    stop_timeout_s=5,
)
plan = Plan(
    stages=[[gateway]], missing=lambda: ["everything"], announce=print, ready_timeout_s=30, logs_dir=folder
)
try:
    asyncio.run(Supervisor(plan, JsonReporter(), folder).run())
except ConfigError as error:
    sys.exit(error.detail)
"""


def test_a_child_that_refuses_its_settings_ends_the_start_with_its_sentence(tmp_path: Path) -> None:
    command = [sys.executable, "-c", REFUSED, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 1 and done.stderr.splitlines()[-1] == "the kettle is on fire", done.stderr
    assert "Traceback" not in done.stderr
    assert leftovers.read(tmp_path) == []


async def test_a_recorded_process_of_a_killed_supervisor_is_ended_and_no_other(start: Start, tmp_path: Path) -> None:
    ours, other = await start(SLEEPS), await start(SLEEPS)
    mine, stranger = ours.identity, other.identity
    assert mine is not None and stranger is not None
    recycled = procfs.Process(pid=stranger.pid, ppid=1, start_ticks=stranger.start_ticks - 1, state="S")
    leftovers.write(
        tmp_path,
        [
            leftovers.Record(name="gateway", process=mine, stop_timeout_s=5),
            leftovers.Record(name="pool", process=recycled, stop_timeout_s=5),
        ],
    )
    assert await asyncio.to_thread(leftovers.stop_recorded, tmp_path) == 1
    assert procfs.is_alive(stranger) and not procfs.is_alive(mine)
