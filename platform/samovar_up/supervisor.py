"""The supervisor: brings the platform's processes up in order, keeps them alive, takes them down in order.

This module does not know how a store is configured (`stores.py`) or what a child does.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import math
import os
import signal
import time
from collections.abc import Awaitable, Callable, Sequence
from pathlib import Path

from samovar.errors import ConfigError, SamovarError, Unavailable
from samovar_gateway.settings import LATEST_OPENING_S
from samovar_up import leftovers, procfs
from samovar_up.child import Child, ChildSpec
from samovar_up.plan import Plan
from samovar_up.policy import STOP_STAGES, kind_of
from samovar_up.report import Reporter

logger = logging.getLogger(__name__)
_READY_POLL_S = 0.05
_STRAY_TIMEOUT_S = 5.0
RESTART_GATEWAYS = signal.SIGUSR2
SUCCESSOR_TIMEOUT_S = LATEST_OPENING_S - 5.0  # one that is not ready by then is ended before it takes connections


class Supervisor:
    """Runs one `Plan` from start to end.

    Args:
        plan: which children to run and how to see that they are ready.
        reporter: told of progress.
        data_dir: the folder all of it belongs to; the children are recorded there.
    """

    def __init__(self, plan: Plan, reporter: Reporter, data_dir: Path) -> None:
        self._plan = plan
        self._reporter = reporter
        self._data_dir = data_dir
        self._children: dict[str, Child] = {}
        self._changing: list[Child] = []  # gateways that come or leave while another holds their place
        self._replacing: asyncio.Task[None] | None = None
        self._stop = asyncio.Event()
        self._hurry = asyncio.Event()
        self._failure: SamovarError | None = None
        self._is_ready = False

    async def run(self) -> None:
        """Bring everything up, stay until a signal, take everything down.

        Raises: ConfigError or Unavailable if the platform did not come up; everything is down again then, too.
        """
        started_s = time.monotonic()
        self._install_signals()
        procfs.become_subreaper()
        try:
            await self._start()
            if await self._until_ready():
                self._is_ready = True
                self._plan.announce(time.monotonic() - started_s)
                await self._stop.wait()
        finally:
            await self._take_down()
        if self._failure is not None:
            raise self._failure

    def _install_signals(self) -> None:
        loop = asyncio.get_running_loop()
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            loop.add_signal_handler(number, self._on_stop_signal)
        loop.add_signal_handler(signal.SIGCHLD, self._on_child_signal)
        loop.add_signal_handler(RESTART_GATEWAYS, self._on_restart_signal)

    def _on_stop_signal(self) -> None:
        if self._stop.is_set() and not self._hurry.is_set():
            self._reporter.progress("hurrying")
            self._hurry.set()
        self._stop.set()

    def _on_child_signal(self) -> None:
        procfs.reap_zombies([child.identity.pid for child in self._all() if child.identity is not None])

    def _all(self) -> list[Child]:
        return [*self._children.values(), *self._changing]

    async def _start(self) -> None:
        """Start the children stage by stage; within a stage all at once."""
        for stage in self._plan.stages:
            if self._stop.is_set():
                return
            self._reporter.progress(f"starting {', '.join(spec.name for spec in stage)}")
            for spec in stage:
                await self._start_child(spec)
            await self._wait_for(stage)

    async def _wait_for(self, stage: Sequence[ChildSpec], timeout_s: float = math.inf) -> None:
        """Wait until every child of the stage that says when it answers does."""
        for spec in stage:
            if spec.answers is not None:
                probe = functools.partial(asyncio.to_thread, spec.answers)
                await self._wait(probe, functools.partial("{} does not answer".format, spec.name), timeout_s)

    async def _start_child(self, spec: ChildSpec) -> None:
        child = self._children[spec.name] = Child(spec, self._record, self._on_child_exit)
        await _start(child)

    async def _until_ready(self) -> bool:
        """Return True once the platform can serve, False if it was told to stop before."""
        lacking: list[str] = ["everything"]

        async def ready() -> bool:
            lacking[:] = await asyncio.to_thread(self._plan.missing)
            return not lacking

        await self._wait(ready, lambda: f"the platform is not ready: {', '.join(lacking)} missing")
        return not self._stop.is_set()

    async def _wait(
        self, done: Callable[[], Awaitable[bool]], sentence: Callable[[], str], timeout_s: float = math.inf
    ) -> None:
        """Wait until `done()` is true, or the supervisor is told to stop. Raises on failure and timeout."""
        timeout_s = min(timeout_s, self._plan.ready_timeout_s)
        deadline_s = time.monotonic() + timeout_s
        while not self._stop.is_set():
            is_done = await done()
            if self._failure is not None:
                raise self._failure
            if is_done:
                return
            if time.monotonic() >= deadline_s:
                raise Unavailable(f"{sentence()} after {timeout_s:g} s; see {self._plan.logs_dir}")
            await asyncio.sleep(_READY_POLL_S)

    def _record(self) -> None:
        running = [
            leftovers.Record(name=child.spec.name, process=child.identity, stop_timeout_s=child.spec.stop_timeout_s)
            for child in self._all()
            if child.identity is not None
        ]
        leftovers.write(self._data_dir, running)

    def _on_child_exit(self, child: Child, code: int) -> None:
        """While coming up, a child that says its configuration is wrong ends it all: a restart would not help."""
        if not self._is_ready and code == ConfigError.exit_code:
            self._failure = ConfigError(child.last_log_line() or f"{child.spec.name} refused its settings")

    # ---- gateways replaced while they serve ----------------------------------------------------------------------

    def _on_restart_signal(self) -> None:
        if self._is_ready and (self._replacing is None or self._replacing.done()):
            self._replacing = asyncio.create_task(self._replace_gateways(), name="replace the gateways")

    async def _replace_gateways(self) -> None:
        """Replace one gateway after the other; stop at the first whose successor does not come up."""
        for place in [name for name in self._children if kind_of(name) == "gateway"]:
            try:
                await self._replace(place)
            except SamovarError as error:
                self._reporter.progress(f"{place} goes on: its successor failed: {error.detail}")
                return
        self._reporter.progress("every gateway was replaced")

    async def _replace(self, place: str) -> None:
        """The place is held by a new gateway afterwards, and the old one has answered everybody and ended.

        Raises: Unavailable or ConfigError if the new one does not serve; then the old one holds the place as before.
        """
        assert self._plan.gateways is not None
        old, new = self._children[place], Child(self._plan.gateways.next_of(place), self._record, self._on_child_exit)
        self._changing.append(new)
        try:
            await _start(new)
            await self._wait_for([new.spec], SUCCESSOR_TIMEOUT_S)
        except SamovarError:
            await new.stop(self._hurry)
            self._changing.remove(new)
            raise
        self._changing[:] = [old]
        self._children[place] = new
        self._reporter.progress(f"{place}: the new one serves, the old one finishes")
        await old.stop(self._hurry)
        self._changing.remove(old)

    async def _take_down(self) -> None:
        """Stop gateways and job workers, pool and stores in this order, then whatever of ours is still there."""
        self._stop.set()
        if self._children:
            self._reporter.progress("stopping: running calls are finished first")
        if self._plan.gateways is not None:
            self._plan.gateways.close()
        if self._replacing is not None:
            self._replacing.cancel()
        for stage in STOP_STAGES:
            of_stage = [child for child in self._all() if kind_of(child.spec.name) in stage]
            await asyncio.gather(*(child.stop(self._hurry) for child in of_stage))
            if "pool" in stage:
                await asyncio.to_thread(self._stop_strays)
        await asyncio.to_thread(self._stop_strays)
        (self._data_dir / leftovers.FILE_NAME).unlink(missing_ok=True)

    def _stop_strays(self) -> None:
        """End instances that outlived their manager; the stores, which are still needed or already gone, are not."""
        processes = procfs.all_processes()
        keep = {child.identity.pid for child in self._all() if child.identity is not None}
        keep |= {process.pid for pid in keep for process in procfs.descendants(pid, processes)}
        strays = leftovers.strays(os.getpid(), self._data_dir, processes)
        strays = [process for process in strays if process.pid not in keep]
        for process in strays:
            logger.warning("ending process %d, which outlived its manager", process.pid)
        leftovers.stop(strays, _STRAY_TIMEOUT_S)
        procfs.reap_zombies(keep)


async def _start(child: Child) -> None:
    try:
        await child.start()
    except OSError as error:
        raise ConfigError(f"cannot start {child.spec.argv[0]}: {error.strerror}") from error
