"""Learned preload: modules of transformers that versions imported are imported in the zygote, so that the next fork has
them. Taught only when the pool is quiet: a zygote that imports cannot fork. This module does not know versions.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Iterable
from pathlib import Path

import msgspec

from samovar.lifecycle import State
from samovar_pool.backends.local import LocalBackend
from samovar_pool.model import Snapshot

logger = logging.getLogger("samovar.pool")

MAX_MODULES = 500
QUIET_S = 2.0
_LEARNABLE = re.compile(r"^transformers(\.\w+)+$")


def learnable(modules: Iterable[str]) -> list[str]:
    """Return those modules that other versions may want too and that only the base environment can provide."""
    return sorted(module for module in modules if _LEARNABLE.match(module))


def is_quiet(snapshot: Snapshot) -> bool:
    """Return whether no instance is on its way or was made ready a moment ago."""
    on_the_way = (State.STARTING, State.LOADING)
    return not any(
        i.state in on_the_way or (i.ready_at_s is not None and snapshot.now_s - i.ready_at_s < QUIET_S)
        for i in snapshot.instances
    )


class Learner:
    """Collects modules and teaches the base zygote when the pool is quiet; the list outlives the process in `path`."""

    def __init__(self, path: Path, backend: LocalBackend, wake: Callable[[], None]) -> None:
        self._path = path
        self._backend = backend
        self._wake = wake
        self._known: set[str] = set(read_learned(path))
        self._new: set[str] = set()
        self._teaching = False

    def loaded(self, modules: list[str]) -> None:
        """Remember what a load imported beyond what its zygote had."""
        fresh = set(learnable(modules)) - self._known
        self._new |= set(sorted(fresh)[: max(0, MAX_MODULES - len(self._known) - len(self._new))])

    def tick(self, snapshot: Snapshot) -> None:
        """Teach what is new, if the pool is quiet."""
        if self._new and not self._teaching and is_quiet(snapshot):
            self._teaching = True
            self._backend.spawn(self._teach(sorted(self._new)))

    async def _teach(self, modules: list[str]) -> None:
        try:
            preloaded = await self._backend.teach(modules)
        except (OSError, TimeoutError) as error:
            logger.warning("the zygote did not learn: %s", error)
            return
        finally:
            self._known |= set(modules)
            self._new -= set(modules)
            self._teaching = False
        if preloaded.modules:
            logger.info("the zygote has %d more modules; its blanks are renewed", len(preloaded.modules))
            self._path.write_bytes(msgspec.json.encode(sorted(self._known - set(preloaded.failed))))
        self._wake()


def read_learned(path: Path) -> list[str]:
    """Return what earlier managers learned, [] if there is nothing readable."""
    try:
        return learnable(msgspec.json.decode(path.read_bytes(), type=list[str]))
    except (OSError, msgspec.MsgspecError):
        return []
