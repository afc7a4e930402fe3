"""What runs beside the calls of a process: each part is owned, logged when it fails, and started again.

This module does not know which parts there are.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping

from samovar.errors import SamovarError

log = logging.getLogger(__name__)

RESTART_S = 0.5

Part = Callable[[], Awaitable[None]]


async def keep_running(name: str, part: Part) -> None:
    """Run `part` until cancelled; when it fails, log why and start it again."""
    while True:
        try:
            await part()
        except SamovarError as error:
            log.warning("%s: %s", name, error.detail)
        except Exception:
            log.exception("%s failed and is started again", name)
        await asyncio.sleep(RESTART_S)


def keep_all_running(named: Mapping[str, Part]) -> list[asyncio.Future[None]]:
    """Start every part; return the tasks that keep them alive, for their owner to end."""
    return [asyncio.ensure_future(keep_running(name, part)) for name, part in named.items()]
