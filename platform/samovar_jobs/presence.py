"""How a worker shows in RQ's own tools: as one of its workers, alive, idle or busy. Blocking calls, made in threads.

RQ's record of a worker is for people and dashboards; no lease hangs on it. This module does not know how jobs are run.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from functools import partial
from typing import Protocol, TypeVar

from samovar.errors import StoreUnavailable
from samovar_storage.failures import translating

log = logging.getLogger(__name__)

LOOK_S = 1.0
REFRESH_S = 10.0

R = TypeVar("R")


class Registered(Protocol):
    """What `rq_worker.SamovarWorker` does with RQ's record of it; all of it blocks."""

    def appear(self) -> None:
        """The record is there, under a name that is nobody else's."""

    def renew(self, *, is_busy: bool) -> None:
        """The record lives on, and says whether the worker is busy."""

    def vanish(self) -> None:
        """The record is gone."""

    def is_suspended(self) -> bool:
        """Return whether somebody told all of RQ's workers to pause (`rq suspend`)."""


class Presence:
    """One per worker. is_busy: whether it holds jobs. on_suspended: told every second whether RQ's workers are to
    pause."""

    def __init__(
        self, registered: Registered, is_busy: Callable[[], bool], on_suspended: Callable[[bool], object]
    ) -> None:
        self._registered = registered
        self._is_busy = is_busy
        self._on_suspended = on_suspended

    async def run(self) -> None:
        """Show until cancelled. Raises StoreUnavailable: run it again."""
        await _in_thread(self._registered.appear)
        shown, age_s = None, 0.0
        while True:
            is_busy = self._is_busy()
            if is_busy is not shown or age_s >= REFRESH_S:
                await _in_thread(partial(self._registered.renew, is_busy=is_busy))
                shown, age_s = is_busy, 0.0
            self._on_suspended(await _in_thread(self._registered.is_suspended))
            await asyncio.sleep(LOOK_S)
            age_s += LOOK_S

    async def end(self) -> None:
        """Show no more, if Redis is there."""
        try:
            await _in_thread(self._registered.vanish)
        except StoreUnavailable as error:
            log.info("RQ's record of this worker is left to expire: %s", error.detail)


async def _in_thread(call: Callable[[], R]) -> R:
    with translating("RQ's record of this worker"):
        return await asyncio.to_thread(call)
