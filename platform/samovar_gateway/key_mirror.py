"""One gateway's copy of the API keys, never more than a second behind, and when each key was last used.

A change is heard of at once, on a channel; a message that was lost costs half a second: the mark that every change
replaces is looked at that often. This module does not know what keys allow.
"""

from __future__ import annotations

import asyncio
import logging

from redis.asyncio import Redis

from samovar.errors import SamovarError
from samovar_gateway.auth import KeyTable
from samovar_storage import apikeys, keys
from samovar_storage.subscribe import subscribe

log = logging.getLogger(__name__)

CHECK_S = 0.5
ANSWER_TIMEOUT_S = 0.4
USED_S = 10.0


async def follow_keys(redis: Redis, table: KeyTable) -> None:
    """Load the keys whenever a change is told, until cancelled."""
    async for _ in subscribe(redis, keys.CHANNEL_API_KEYS):
        await load_keys(redis, table)


async def check_keys(redis: Redis, table: KeyTable) -> None:
    """Load the keys whenever their mark is another one, until cancelled. A Redis that is away changes nothing."""
    while True:
        await asyncio.sleep(CHECK_S)
        try:
            async with asyncio.timeout(ANSWER_TIMEOUT_S):
                edition = await apikeys.edition(redis)
        except (SamovarError, TimeoutError) as error:
            log.debug("the API keys could not be checked: %s", error)
            continue
        if edition != table.edition or not table.loaded:
            await load_keys(redis, table)


async def tell_used(redis: Redis, table: KeyTable) -> None:
    """Say every ten seconds which keys were used, and once more when cancelled. What Redis does not take is dropped."""
    try:
        while True:
            await asyncio.sleep(USED_S)
            await _tell(redis, table)
    finally:
        await _tell(redis, table)


async def load_keys(redis: Redis, table: KeyTable) -> None:
    """The table holds what Redis has; an index that is being rebuilt takes no key away. Raises StoreUnavailable."""
    is_built, edition, records = await apikeys.read(redis)
    if is_built or not table.loaded:
        table.replace(records, edition)


async def _tell(redis: Redis, table: KeyTable) -> None:
    used = table.take_used()
    try:
        async with asyncio.timeout(ANSWER_TIMEOUT_S):
            await apikeys.note_used(redis, used)
    except (SamovarError, TimeoutError) as error:
        log.debug("when keys were last used was not noted: %s", error)
