"""How long a store is waited for. This module does not know which."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from samovar.errors import StoreUnavailable


@asynccontextmanager
async def within(timeout_s: float, what: str) -> AsyncIterator[None]:
    """Run the body for so long at most. Raises: StoreUnavailable, which names `what`."""
    try:
        async with asyncio.timeout(timeout_s):
            yield
    except TimeoutError as error:
        raise StoreUnavailable(f"{what} did not answer within {timeout_s:.0f} s") from error
