"""One periodic look at what is slow, so that what is fast pays nothing: late bodies, and callers who left.

A request that is answered within a sweep or two is only put into a dictionary and taken out again. This module does
not know HTTP semantics beyond ASGI's `receive`.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Any

from samovar_dispatch.ask import Ask

SWEEP_S = 0.05

Receive = Callable[[], Awaitable[Any]]


class Sweeper:
    """reading: when each task began to read its body. waiting: invocations without an answer yet, with their `receive`.

    late: tasks that were cancelled because their body took longer than `body_timeout_s`.
    """

    def __init__(self, body_timeout_s: float) -> None:
        self.reading: dict[asyncio.Task[Any], float] = {}
        self.waiting: dict[Ask, Receive] = {}
        self.late: set[asyncio.Task[Any]] = set()
        self._body_timeout_s = body_timeout_s
        self._before: set[Ask] = set()
        self._watchers: set[asyncio.Task[None]] = set()

    async def run(self) -> None:
        """Sweep until cancelled, then end every watcher."""
        try:
            while True:
                await asyncio.sleep(SWEEP_S)
                self.sweep(time.monotonic())
        finally:
            for watcher in self._watchers:
                watcher.cancel()
            await asyncio.gather(*self._watchers, return_exceptions=True)

    def sweep(self, now_s: float) -> None:
        """Cancel readers past their time; watch for the disconnect of calls that were here last time already."""
        for task, since_s in [*self.reading.items()]:
            if now_s - since_s > self._body_timeout_s and task not in self.late:
                self.late.add(task)
                task.cancel()
        for ask in self._before & self.waiting.keys():
            watcher = asyncio.get_running_loop().create_task(self._watch(ask, self.waiting.pop(ask)))
            self._watchers.add(watcher)
            watcher.add_done_callback(self._watchers.discard)
        self._before = set(self.waiting)

    async def _watch(self, ask: Ask, receive: Receive) -> None:
        """Until its route says that the ask has its answer, wait for the caller to leave."""
        while (await receive())["type"] != "http.disconnect":
            pass
        if ask.handle is not None:
            ask.handle.cancel()
