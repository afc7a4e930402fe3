"""One child process of the supervisor: started, watched, restarted with back-off when it dies, stopped when asked.

This module does not know what the child does or in which order children belong together.
"""

from __future__ import annotations

import asyncio
import logging
import signal
import socket
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path

import msgspec

from samovar_up import procfs
from samovar_up.policy import next_failures, restart_delay_s

logger = logging.getLogger(__name__)
KILL_WAIT_S = 5.0
MAX_LOG_BYTES = 32 * 1024 * 1024


class ChildSpec(msgspec.Struct, frozen=True, kw_only=True):
    """How to start a child.

    environ: its whole environment. stop_timeout_s: how long it may take to finish its work. answers: blocking probe
    that the next stage waits for, or None if nothing waits for this child. ends_by_kill: SIGTERM makes it safe to kill,
    and killing is how it ends. listeners: sockets it inherits, under the same descriptors.
    """

    name: str
    argv: tuple[str, ...]
    environ: Mapping[str, str]
    log_path: Path
    stop_timeout_s: float
    answers: Callable[[], bool] | None = None
    ends_by_kill: bool = False
    listeners: tuple[socket.socket, ...] = ()


class Child:
    """A child that is kept alive from `start` until `stop`.

    Args:
        on_change: called after every start and every end, so that the owner can record who runs.
        on_exit: called with the child and its exit code when it ended without being asked to.
    """

    def __init__(self, spec: ChildSpec, on_change: Callable[[], None], on_exit: Callable[[Child, int], None]) -> None:
        self.spec = spec
        self.num_restarts = 0
        self._on_change = on_change
        self._on_exit = on_exit
        self._process: asyncio.subprocess.Process | None = None
        self._identity: procfs.Process | None = None
        self._stopping = asyncio.Event()
        self._task: asyncio.Task[None] | None = None

    @property
    def identity(self) -> procfs.Process | None:
        """The running process, or None between two lives."""
        return self._identity

    async def start(self) -> None:
        """Start the process and keep it alive. Raises OSError if it cannot be started at all."""
        await self._spawn()
        self._task = asyncio.create_task(self._keep_alive(), name=f"keep {self.spec.name} alive")

    async def stop(self, hurry: asyncio.Event) -> None:
        """End the process: asked first; killed when its time is over, or 2 s after `hurry` is set."""
        self._stopping.set()
        process = self._process
        if process is not None and process.returncode is None:
            with suppress(ProcessLookupError):
                process.send_signal(signal.SIGTERM)
            if not await _ends(process, self.spec.stop_timeout_s, hurry):
                level = logging.DEBUG if self.spec.ends_by_kill else logging.WARNING
                logger.log(level, "killing %s (pid %d): its time to stop is over", self.spec.name, process.pid)
                with suppress(ProcessLookupError):
                    process.kill()
        if self._task is not None:
            await asyncio.wait([self._task], timeout=KILL_WAIT_S)

    def last_log_line(self) -> str:
        """Return the last line of the child's log that says something, or ""."""
        with suppress(OSError):
            lines = self.spec.log_path.read_bytes()[-8192:].decode(errors="replace").splitlines()
            return next((line.strip() for line in reversed(lines) if line.strip()), "")
        return ""

    async def _keep_alive(self) -> None:
        num_failures = 0
        while not self._stopping.is_set():
            started_s = time.monotonic()
            how, code = await self._ending()
            if self._stopping.is_set():
                return
            num_failures = next_failures(num_failures, time.monotonic() - started_s)
            delay_s = restart_delay_s(num_failures)
            logger.warning("%s %s; starting it again in %g s", self.spec.name, how, delay_s)
            self._on_exit(self, code)
            await self._respawn_after(delay_s)

    async def _ending(self) -> tuple[str, int]:
        """Wait until there is no process; return how it ended, in words and as an exit code."""
        if self._process is None:
            return "could not be started", 127
        code = await self._process.wait()
        self._identity = None
        self._on_change()
        return (f"was killed by signal {-code}" if code < 0 else f"exited with {code}"), code

    async def _respawn_after(self, delay_s: float) -> None:
        """Wait and start again, unless the supervisor stops meanwhile."""
        with suppress(TimeoutError):
            await asyncio.wait_for(self._stopping.wait(), delay_s)
        if self._stopping.is_set():
            return
        self.num_restarts += 1
        self._process = None
        try:
            await self._spawn()
        except OSError as error:
            logger.error("cannot start %s: %s", self.spec.name, error)
        if self._stopping.is_set() and self._process is not None:
            self._process.kill()  # told to stop while it was being started: it has nothing to finish

    async def _spawn(self) -> None:
        _rotate(self.spec.log_path)
        with self.spec.log_path.open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                *self.spec.argv,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env=dict(self.spec.environ),
                pass_fds=[listener.fileno() for listener in self.spec.listeners],
                start_new_session=True,  # the terminal's Ctrl-C reaches the supervisor alone, which keeps the order
            )
        self._identity = procfs.read_process(self._process.pid)
        self._on_change()


async def _ends(process: asyncio.subprocess.Process, timeout_s: float, hurry: asyncio.Event) -> bool:
    """Return whether `process` ended within its time, which shrinks to 2 s once `hurry` is set."""
    ended = asyncio.create_task(process.wait())
    hurried = asyncio.create_task(hurry.wait())
    try:
        await asyncio.wait([ended, hurried], timeout=timeout_s, return_when=asyncio.FIRST_COMPLETED)
        if not ended.done() and hurry.is_set():
            await asyncio.wait([ended], timeout=2.0)
        return ended.done()
    finally:
        hurried.cancel()
        ended.cancel()


def _rotate(path: Path) -> None:
    """Keep a child's log from growing for ever: what was over the limit becomes `<name>.log.1`."""
    with suppress(FileNotFoundError):
        if path.stat().st_size > MAX_LOG_BYTES:
            path.replace(path.with_name(path.name + ".1"))
