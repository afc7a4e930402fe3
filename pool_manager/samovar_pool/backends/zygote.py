"""The zygote of one environment: started with a clean environment, asked to fork, taught what to import beforehand.

This module does not know versions or instances beyond the ids it forks.
"""

from __future__ import annotations

import asyncio
import logging
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping

from samovar import wire
from samovar_pool.backends import procfs
from samovar_pool.backends.control import ControlConnection, connect
from samovar_pool.backends.rundir import Note, RunDir

logger = logging.getLogger("samovar.pool")

START_TIMEOUT_S = 180.0
_CONNECT_RETRY_S = 0.05
_INHERITED = ("PATH", "LANG", "LC_ALL", "TZ", "LD_LIBRARY_PATH")
_INHERITED_PREFIXES = ("CUDA_", "NVIDIA_")


def clean_environment(environ: Mapping[str, str], layer_dirs: list[str]) -> dict[str, str]:
    """Return the whole environment of a zygote: no credential, no setting of the platform, no network model hub."""
    kept = {k: v for k, v in environ.items() if k in _INHERITED or k.startswith(_INHERITED_PREFIXES)}
    kept.setdefault("PATH", "/usr/local/bin:/usr/bin:/bin")
    kept.setdefault("LANG", "C.UTF-8")
    kept |= {
        "HOME": "/nonexistent",
        "HF_HUB_OFFLINE": "1",
        "OMP_NUM_THREADS": "1",
        "TOKENIZERS_PARALLELISM": "false",
        "PYTHONUNBUFFERED": "1",
    }
    if layer_dirs:
        kept["PYTHONPATH"] = os.pathsep.join(layer_dirs)
    return kept


class Zygote:
    """One zygote process and the control connection to it. `generation` rises with every successful preload."""

    def __init__(
        self,
        name: str,
        run: RunDir,
        on_exited: Callable[[wire.Exited], None],
        on_lost: Callable[[Zygote], None],
    ) -> None:
        self.name = name
        self.pid = 0
        self.generation = 0
        self.ready = False
        self.sandbox: list[str] = []
        self._run = run
        self._on_exited = on_exited
        self._on_lost = on_lost
        self._ticks = 0
        self._is_left = False
        self._process: subprocess.Popen[bytes] | None = None
        self._connection: ControlConnection | None = None
        self._welcome: asyncio.Future[wire.Welcome] | None = None
        self._forks: dict[str, Callable[[wire.Forked], None]] = {}
        self._preload: asyncio.Future[wire.Preloaded] | None = None

    @property
    def key(self) -> str:
        """The name its socket and note carry."""
        return f"zygote-{self.name}" if self.name else "zygote"

    async def start(self, preload: list[str], layer_dirs: list[str], options: list[str]) -> None:
        """Start the process and wait until it can fork. Raises OSError or TimeoutError if it does not come up.

        options: what describes its sandbox on the command line.
        """
        path = self._run.socket_path(self.key)
        path.unlink(missing_ok=True)
        command = [sys.executable, "-P", "-m", "samovar_instance.zygote", "--socket", str(path), *options]
        command += ["--preload", ",".join(preload)] if preload else []
        log = await asyncio.to_thread(open, self._run.logs / f"{self.key}.log", "ab")
        with log:
            self._process = subprocess.Popen(  # noqa: ASYNC220, S603 (returns once forked; our own interpreter)
                command,
                cwd="/",
                env=clean_environment(os.environ, layer_dirs),
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                start_new_session=True,
            )
        self.pid = self._process.pid
        self._ticks = procfs.start_ticks(self.pid)
        self._write_note()
        await self._connect(f"unix:{path}", START_TIMEOUT_S)

    async def adopt(self, note: Note, timeout_s: float) -> None:
        """Take over a zygote that an earlier manager started. Raises OSError or TimeoutError if it does not answer."""
        self.pid, self._ticks, self.generation = note.pid, note.start_ticks, note.generation
        await self._connect(note.address, timeout_s)

    async def _connect(self, address: str, timeout_s: float) -> None:
        self._welcome = asyncio.get_running_loop().create_future()
        async with asyncio.timeout(timeout_s):
            while self._connection is None:
                try:
                    self._connection = await connect(address, "", self._received, self._lost)
                except (FileNotFoundError, ConnectionRefusedError, BlockingIOError):
                    if not procfs.start_ticks(self.pid):
                        raise OSError(f"the zygote ended while starting; see {self.key}.log") from None
                    await asyncio.sleep(_CONNECT_RETRY_S)
            welcome = await self._welcome
        self.sandbox = list(welcome.sandbox)
        self.ready = True

    def fork(self, fork: wire.Fork, fds: list[int], on_forked: Callable[[wire.Forked], None]) -> None:
        """Ask for a child with `fds`, see wire.Fork; `on_forked` gets its pid. Raises OSError if it cannot be asked."""
        if self._connection is None:
            raise BrokenPipeError("the zygote is gone")
        self._forks[fork.instance_id] = on_forked
        self._connection.send_with_fds(fork, fds)

    async def preload(self, modules: list[str], timeout_s: float = 120.0) -> wire.Preloaded:
        """Import `modules` in the zygote; blanks forked before are of an older generation from then on."""
        if self._connection is None or self._preload is not None:
            return wire.Preloaded([], {})
        self._preload = asyncio.get_running_loop().create_future()
        try:
            self._connection.send(wire.Preload(modules))
            async with asyncio.timeout(timeout_s):
                preloaded = await self._preload
        finally:
            self._preload = None
        self.generation += 1
        self._write_note()
        return preloaded

    def stop(self) -> list[tuple[int, int]]:
        """End the process and what it has left of children, such as the init of their pid namespace.

        Returns the pid and start time of each.
        """
        self.ready = False
        ended = [(self.pid, self._ticks)] + [(pid, procfs.start_ticks(pid)) for pid in procfs.children(self.pid)]
        for pid, ticks in ended:
            procfs.kill(pid, ticks)
        self._run.forget(self.key)
        return ended

    def disconnect(self) -> None:
        """Leave the process alone and close the connection, for the next manager to adopt it."""
        self._is_left = True
        if self._connection is not None:
            self._connection.close()

    def _write_note(self) -> None:
        address = f"unix:{self._run.socket_path(self.key)}"
        note = Note(
            instance_id=self.key,
            kind="zygote",
            pid=self.pid,
            start_ticks=self._ticks,
            address=address,
            environment=self.name,
            generation=self.generation,
            started_at_s=time.time(),
        )
        self._run.write_note(note)

    def _received(self, message: wire.FromInstance) -> None:
        if isinstance(message, wire.Forked):
            on_forked = self._forks.pop(message.instance_id, None)
            if on_forked is not None:
                on_forked(message)
        elif isinstance(message, wire.Exited):
            self._on_exited(message)
        elif isinstance(message, wire.Welcome):
            if self._welcome is not None and not self._welcome.done():
                self._welcome.set_result(message)
        elif isinstance(message, wire.Preloaded):
            if self._preload is not None and not self._preload.done():
                self._preload.set_result(message)
        elif isinstance(message, wire.Goodbye):
            logger.error("the zygote refused: %s %s", message.reason, message.detail)

    def _lost(self) -> None:
        self.ready = False
        self._connection = None
        for future in (self._welcome, self._preload):
            if future is not None and not future.done():
                future.set_exception(OSError(f"the zygote ended; see {self.key}.log"))
                future.exception()  # seen here; whoever waits gets it too
        self._forks.clear()
        if self._process is not None:
            self._process.poll()
        if not self._is_left:
            self._on_lost(self)
