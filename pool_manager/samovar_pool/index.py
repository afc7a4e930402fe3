"""Keeps the index of functions there: what Redis lost (a flush, an empty restart) is rebuilt from object storage.

A gateway does the same at its start; whoever is first builds, the other waits. This module does not know versions.
"""

from __future__ import annotations

import asyncio
import logging

import redis.asyncio as redis_async

from samovar.errors import SamovarError
from samovar_pool.signals import Signals
from samovar_storage import keys
from samovar_storage.failures import translating
from samovar_storage.registry import Registry

logger = logging.getLogger("samovar.pool")

LOOK_EVERY_S = 2.0


async def keep_index(redis: redis_async.Redis, registry: Registry, signals: Signals) -> None:
    """For ever: look whether the index is whole, have it rebuilt in a thread if not, and mirror it then."""
    told = ""
    while True:
        try:
            with translating("the registry"):
                is_built = await redis.exists(keys.REGISTRY_BUILT)
            if not is_built:
                await asyncio.to_thread(registry.ensure_built)
                await signals.reload_functions()
            told = ""
        except SamovarError as error:
            if told != error.detail:
                logger.warning("the index of functions waits: %s", error.detail)
            told = error.detail
        await asyncio.sleep(LOOK_EVERY_S)
