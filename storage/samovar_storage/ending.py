"""Ending tasks that talk to Redis. This module does not know what they do.

Up to Python 3.11 `asyncio.wait_for`, which the client of Redis is built on, swallows a cancellation that comes in the
turn in which what it waits for ends (bpo-37658). A loop that was cancelled there goes on: it must be told again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from typing import Any

AGAIN_S = 0.1


async def end_tasks(tasks: Iterable[asyncio.Future[Any]]) -> None:
    """Every task has ended afterwards, cancelled as often as it takes; what they raised is dropped."""
    left = {*tasks}
    while left:
        for task in left:
            task.cancel()
        ended, left = await asyncio.wait(left, timeout=AGAIN_S)
        await asyncio.gather(*ended, return_exceptions=True)
