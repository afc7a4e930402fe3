"""Making a version's files local before an instance needs them: code, weights, layers. Trusted side only.

`lookup` is what the cold path calls: a few stats, no store. `prepare` fetches, in a thread, once for all who ask at the
same time. Pins are written in order by one thread, after the instance was told. This module does not know processes.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass

from samovar.errors import SamovarError
from samovar.layers import Layer, Layers
from samovar_pool.backends.base import BootError
from samovar_pool.backends.sandbox import network_environment, packages_of
from samovar_pool.model import BASE_ENVIRONMENT
from samovar_pool.versions import Version
from samovar_storage.cache import LocalVersion, NodeCache

logger = logging.getLogger("samovar.pool")


@dataclass(frozen=True, slots=True)
class Prepared:
    """Local, read-only paths of one version. weights_dir: "" without weights."""

    code_dir: str
    weights_dir: str
    layer_dirs: list[str]


class Preparer:
    """Files of versions on this node, over the node cache and the layers.

    network_apart: whether instances that may use the network come from environments of their own.
    """

    def __init__(self, cache: NodeCache, layers: Layers, network_apart: bool = False) -> None:
        self._cache = cache
        self._layers = layers
        self._network_apart = network_apart
        self._known_layers: dict[str, Layer] = {}
        self._fetching: dict[str, asyncio.Task[Prepared]] = {}
        self._pinning = ThreadPoolExecutor(1, thread_name_prefix="pin")

    # ---- layers ----------------------------------------------------------------------------------------------------

    def environment(self, version: Version) -> str | None:
        """Return the environment the version's blanks must come from, None while its layer is not there yet."""
        network = self._network_apart and version.manifest.resources.network
        if not version.manifest.requirements:
            return network_environment(BASE_ENVIRONMENT, network)
        layer = self._known_layers.get(version.ref) or self._layers.lookup(version.manifest.requirements)
        if layer is None:
            return None
        self._known_layers[version.ref] = layer
        return network_environment(layer.key if layer.conflicts else BASE_ENVIRONMENT, network)

    async def install_layer(self, version: Version) -> BootError | None:
        """The version's layer is there afterwards, or the answer says why it is not."""
        try:
            layer = await asyncio.to_thread(self._layers.ensure, version.manifest.requirements)
        except SamovarError as error:
            return boot_error(version, error, "layer")
        self._known_layers[version.ref] = layer
        return None

    def layer_dirs_of_environment(self, environment: str) -> list[str]:
        """Return what a zygote of `environment` has in front of its path."""
        key = packages_of(environment)
        return [layer.folder for layer in self._known_layers.values() if layer.key == key][:1]

    # ---- code and weights ------------------------------------------------------------------------------------------

    def lookup(self, version: Version) -> Prepared | None:
        """Return the version's paths if everything is here, and have its weights read into memory meanwhile."""
        local = self._cache.lookup(version.manifest)
        return self._prepared(version, local) if local is not None else None

    async def prepare(self, version: Version, owner: str) -> Prepared:
        """Fetch what is missing, verified, pinned for `owner` from the start; return the paths. Raises one of ours."""
        task = self._fetching.get(version.ref)
        if task is None:
            task = asyncio.get_running_loop().create_task(self._fetch(version, owner))
            self._fetching[version.ref] = task
            task.add_done_callback(lambda _: self._fetching.pop(version.ref, None))
        return await asyncio.shield(task)

    async def _fetch(self, version: Version, owner: str) -> Prepared:
        local = await asyncio.to_thread(self._cache.ensure, version.manifest, owner)
        return self._prepared(version, local)

    def _prepared(self, version: Version, local: LocalVersion) -> Prepared:
        self._cache.prefetch(local)
        layer = self._known_layers.get(version.ref)
        layer_dirs = [layer.folder] if layer is not None else []
        return Prepared(str(local.code_dir), str(local.weights_dir or ""), layer_dirs)

    def pin(self, version: Version, owner: str) -> None:
        """Keep the version's files while `owner` (an instance) lives, also across managers."""
        self._in_order(lambda: self._cache.pin(owner, version.manifest))

    def unpin(self, owner: str) -> None:
        """`owner` is gone."""
        self._in_order(lambda: self._cache.release(owner))

    def unpin_all_but(self, owners: set[str]) -> None:
        """Release what owners held that an earlier manager had and nobody has now."""
        self._in_order(lambda: self._cache.prune(owners))

    def close(self) -> None:
        """Finish writing pins and stop reading ahead."""
        self._pinning.shutdown()
        self._cache.close()

    def _in_order(self, work: Callable[[], object]) -> None:
        self._pinning.submit(work).add_done_callback(_log_failure)


def boot_error(version: Version, error: SamovarError, phase: str) -> BootError:
    """Return a failed preparation as the boot error that waiting callers get."""
    log_tail = [str(line) for line in error.extra.get("log_tail", [])]
    return BootError(version.ref, error.code, error.status, error.detail, phase, log_tail)


def _log_failure(future: Future[object]) -> None:
    if future.exception() is not None:
        logger.error("a pin was not written", exc_info=future.exception())
