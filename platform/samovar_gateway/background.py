"""The watch over the registry's index. This module does not know HTTP."""

from __future__ import annotations

import asyncio

from samovar_storage.registry import Registry

WATCH_S = 1.0


async def watch_registry(registry: Registry) -> None:
    """Rebuild the index in Redis whenever it is found empty."""
    while True:
        await asyncio.to_thread(registry.ensure_built)
        await asyncio.sleep(WATCH_S)
