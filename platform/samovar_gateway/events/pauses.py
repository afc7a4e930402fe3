"""Items as they come, and word of it whenever none came for a while. This module does not know what items are."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable
from typing import TypeVar

T = TypeVar("T")


async def with_pauses(items: AsyncGenerator[T], patience_s: Callable[[], float]) -> AsyncGenerator[T | None]:
    """Yield every item, and None each time that none came for `patience_s()` seconds. Whoever stops reading closes it:
    then `items` are closed, too.

    An item is waited for by a task of its own, which a pause leaves alone; the next is asked for once its reader asks.
    """
    following: asyncio.Task[T | None] | None = None
    try:
        while True:
            following = following or asyncio.ensure_future(anext(items, None))
            done, _ = await asyncio.wait({following}, timeout=max(0.0, patience_s()))
            if not done:
                yield None
                continue
            item, following = following.result(), None
            if item is None:
                return
            yield item
    finally:
        if following is not None:
            following.cancel()
            await asyncio.wait({following})
        await items.aclose()
