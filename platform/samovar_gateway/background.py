"""What runs beside the requests: mirrors, demand, the sweep, the registry's watch. Each is owned, restarted and logged.

This module knows which parts there are; it does not know HTTP.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

from samovar.errors import SamovarError
from samovar_storage.registry import Registry

log = logging.getLogger(__name__)

RESTART_S = 0.5
WATCH_S = 1.0


async def keep_running(name: str, part: Callable[[], Awaitable[None]]) -> None:
    """Run `part` until cancelled; when it fails, log why and start it again."""
    while True:
        try:
            await part()
        except SamovarError as error:
            log.warning("%s: %s", name, error.detail)
        except Exception:
            log.exception("%s failed and is started again", name)
        await asyncio.sleep(RESTART_S)


async def watch_registry(registry: Registry) -> None:
    """Rebuild the index in Redis whenever it is found empty."""
    while True:
        await asyncio.to_thread(registry.ensure_built)
        await asyncio.sleep(WATCH_S)
