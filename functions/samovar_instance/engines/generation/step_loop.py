"""The one task that steps the engine while there is work, between what else the model thread's event loop does.

    add ─► the loop runs: step, let the others run, step, …  ─► no work left: it ends, until the next add

When a step itself fails, everybody who waits hears of it, and the next sequence finds a new engine.
This module does not know text, models or sampling.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from samovar_instance.engines.generation.contract import GenerationEngine, Sequence

log = logging.getLogger(__name__)


class StepLoop:
    """Owns the engine and the task. From the loop's thread only, like the engine."""

    def __init__(self, make_engine: Callable[[], GenerationEngine]) -> None:
        """make_engine: called now, and again whenever an engine has failed."""
        self._make_engine = make_engine
        self._engine: GenerationEngine | None = make_engine()
        self._members: set[Sequence] = set()
        self._task: asyncio.Task[None] | None = None

    @property
    def engine(self) -> GenerationEngine:
        """The engine; a new one if the last one failed."""
        if self._engine is None:
            self._engine = self._make_engine()
        return self._engine

    def add(self, sequence: Sequence) -> None:
        """Have a sequence computed; `leave` has to follow. Raises: what `GenerationEngine.add` raises."""
        self.engine.add(sequence)
        self._members.add(sequence)
        if self._task is None or self._task.done():
            self._task = asyncio.get_running_loop().create_task(self._run())

    def leave(self, sequence: Sequence) -> None:
        """Nobody waits for this sequence any more: it ends before the next step, unless it has."""
        if sequence in self._members:
            self._members.remove(sequence)
            self.engine.cancel(sequence)

    def run_now(self, sequence: Sequence, is_over: Callable[[], bool]) -> None:
        """Step until a sequence is over, in one go; the others are served beside it. Raises: what a step raises."""
        self.engine.add(sequence)
        while not is_over():
            self.engine.step()

    async def _run(self) -> None:
        while self.engine.has_work:
            try:
                self.engine.step()
            except Exception as error:
                log.exception("a step failed: every sequence fails, the next one finds a new engine")
                self._fail(error.with_traceback(None))  # which would keep the engine, and its cache, alive
                return
            await asyncio.sleep(0)

    def _fail(self, error: Exception) -> None:
        members, self._members = self._members, set()
        self._engine = None  # what it holds is unknown; its cache is given back before the next one is made
        for sequence in members:
            sequence.listener.ended("failed", error)
