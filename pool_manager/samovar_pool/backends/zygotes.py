"""The zygotes of a node, one per environment: started once, again when one ended, after a pause when one cannot start.

This module does not know what is forked from them.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Callable, Coroutine
from typing import Any

from samovar import wire
from samovar_pool.backends import procfs
from samovar_pool.backends.rundir import RunDir
from samovar_pool.backends.zygote import Zygote

logger = logging.getLogger("samovar.pool")

RETRY_S = 2.0
END_WAIT_S, LOOK_EVERY_S = 2.0, 0.01


class Zygotes:
    """By environment, "" for the base one.

    preload: modules for each to import. layer_dirs: what an environment has in front of its path. options: how its
    sandbox is described to it. spawn: runs a task
    that the backend owns. on_exited: told how a child ended. on_changed: told that one came up or went away.
    """

    def __init__(
        self,
        run: RunDir,
        preload: list[str],
        layer_dirs: Callable[[str], list[str]],
        options: Callable[[str], list[str]],
        spawn: Callable[[Coroutine[Any, Any, None]], object],
        on_exited: Callable[[wire.Exited], None],
        on_changed: Callable[[], None],
    ) -> None:
        self._run = run
        self._preload = preload
        self._layer_dirs = layer_dirs
        self._options = options
        self._spawn = spawn
        self._on_exited = on_exited
        self._on_changed = on_changed
        self._up: dict[str, Zygote] = {}
        self._starting: dict[str, Zygote] = {}
        self._retry_at_s: dict[str, float] = {}
        self._is_ending = False

    def get(self, environment: str) -> Zygote | None:
        """Return the zygote that can fork for `environment` now."""
        zygote = self._up.get(environment)
        return zygote if zygote is not None and zygote.ready else None

    def ready(self) -> frozenset[str]:
        """Return the environments whose zygote can fork now."""
        return frozenset(name for name, zygote in self._up.items() if zygote.ready)

    def keys(self) -> set[str]:
        """Return the names under which all of them, those that start included, have sockets and notes."""
        return {zygote.key for zygote in (*self._up.values(), *self._starting.values())}

    def generation(self, environment: str) -> int:
        """Return how often the environment's zygote has learned modules."""
        zygote = self._up.get(environment)
        return zygote.generation if zygote is not None else 0

    def new(self, environment: str) -> Zygote:
        """Return a zygote that is neither started nor adopted yet."""
        return Zygote(environment, self._run, self._on_exited, self._lost)

    def adopted(self, zygote: Zygote) -> None:
        """Own a zygote that an earlier manager started."""
        self._up[zygote.name] = zygote

    def start(self, environment: str) -> None:
        """Start one unless one runs, starts, or failed a moment ago."""
        too_early = time.monotonic() < self._retry_at_s.get(environment, 0.0)
        if (
            not self._is_ending
            and not too_early
            and environment not in self._starting
            and self.get(environment) is None
        ):
            self._starting[environment] = zygote = self.new(environment)
            self._spawn(self._start(environment, zygote))

    async def _start(self, environment: str, zygote: Zygote) -> None:
        started_s = time.monotonic()
        try:
            await zygote.start(self._preload, self._layer_dirs(environment), self._options(environment))
        except (OSError, TimeoutError) as error:
            logger.error("zygote %s did not start: %s", environment or "base", error or "it did not answer in time")
            self._retry_at_s[environment] = time.monotonic() + RETRY_S
            zygote.stop()
        else:
            self._up[environment] = zygote
            logger.info("zygote %s is up after %.1f s", environment or "base", time.monotonic() - started_s)
        finally:
            self._starting.pop(environment, None)
            self._on_changed()

    async def stop(self) -> None:
        """End all of them, those that start included; they are gone afterwards, or after END_WAIT_S still ending."""
        self._is_ending = True
        ended = [process for zygote in (*self._up.values(), *self._starting.values()) for process in zygote.stop()]
        deadline_s = time.monotonic() + END_WAIT_S
        # nothing tells when a process has ended that is not ours to wait for
        while any(procfs.start_ticks(pid) == ticks != 0 for pid, ticks in ended) and time.monotonic() < deadline_s:  # noqa: ASYNC110
            await asyncio.sleep(LOOK_EVERY_S)

    def leave(self) -> None:
        """Disconnect from all and leave them running; one that still starts has nothing to leave, and ends."""
        self._is_ending = True
        for zygote in self._up.values():
            zygote.disconnect()
        for zygote in self._starting.values():
            zygote.stop()

    def _lost(self, zygote: Zygote) -> None:
        if self._up.get(zygote.name) is zygote:
            del self._up[zygote.name]
            self._run.forget(zygote.key)
            if not self._is_ending:
                logger.error("zygote %s ended; starting another", zygote.name or "base")
            self._on_changed()
