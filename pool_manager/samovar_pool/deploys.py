"""What is done for a version when it is deployed, so that its first call finds it local and loaded: its files are
fetched at once, and, once deploys have calmed down, the newest few get a template.

Only versions that become routed while this manager runs are taken: thousands that it finds at its start are not. This
module does not know when there is room for a template; the reconciler does.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import TypeVar

from samovar.errors import SamovarError
from samovar_pool.backends.base import BootError
from samovar_pool.backends.local import LocalBackend
from samovar_pool.knowledge import Knowledge
from samovar_pool.placement import wants_device
from samovar_pool.prepare import boot_error
from samovar_pool.versions import Version

MAX_WAITING = 64  # whose files wait to be fetched; the oldest are left to their first call
MAX_TEMPLATES_WANTED = 8
CALM_S = 0.3
OWNER = "deploy"

V = TypeVar("V")


class Deploys:
    """The queue, newest first, one version at a time. `on_failure` is told why files could not be fetched."""

    def __init__(
        self,
        backend: LocalBackend,
        knowledge: Knowledge,
        make_templates: bool,
        on_failure: Callable[[BootError], None],
        wake: Callable[[], None],
    ) -> None:
        self._backend = backend
        self._knowledge = knowledge
        self._make_templates = make_templates
        self._on_failure = on_failure
        self._wake = wake
        self._waiting: dict[str, Version] = {}
        self._fetched: dict[str, Version] = {}
        self._is_working = False

    def deployed(self, version: Version) -> None:
        """Take a version that has just become routed; the one before it of its function is dropped."""
        self._waiting.pop(version.manifest.name, None)
        self._waiting[version.manifest.name] = version
        _keep_newest(self._waiting, MAX_WAITING)
        if not self._is_working:
            self._is_working = True
            self._backend.spawn(self._work())

    async def _work(self) -> None:
        try:
            while self._waiting:
                while self._waiting:
                    name, version = self._waiting.popitem()
                    await self._fetch(name, version)
                await asyncio.sleep(CALM_S)
            self._want_templates()
        finally:
            self._is_working = False

    async def _fetch(self, name: str, version: Version) -> None:
        try:
            await self._backend.preparer.prepare(version, OWNER)
        except SamovarError as error:
            self._on_failure(boot_error(version, error, "fetch"))
            return
        self._backend.preparer.unpin(OWNER)
        self._fetched[name] = version
        _keep_newest(self._fetched, MAX_TEMPLATES_WANTED)

    def _want_templates(self) -> None:
        for version in self._fetched.values():
            has_own_instances = version.scaling.min_instances > 0  # whose load shows whether a template is possible
            if self._make_templates and not wants_device(version.manifest.resources) and not has_own_instances:
                self._knowledge.to_prepare[version.ref] = None
        self._fetched.clear()
        _keep_newest(self._knowledge.to_prepare, MAX_TEMPLATES_WANTED)
        self._wake()


def _keep_newest(entries: dict[str, V], num: int) -> None:
    while len(entries) > num:
        del entries[next(iter(entries))]
