"""What gateways tell of the health they see: their circuit breakers to each other, unwell instances to the manager.

The last word on a breaker is in a key, beside the event to all: it outlives the time it speaks of by MARGIN_S only, so
that a gateway that starts late learns what holds and nobody learns what is over. This module does not know when a
breaker opens, or who is unwell.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import redis.asyncio as redis_async

from samovar.values import Struct
from samovar_storage import keys
from samovar_storage.failures import translating
from samovar_storage.readable import readable
from samovar_storage.records import dumps

MARGIN_S = 5.0


class BreakerNews(Struct, frozen=True, kw_only=True):
    """One gateway's breaker of `ref` moved to `state`.

    until_s: unix seconds; of open, no call before then; of half_open, the others may leave the probing to this gateway
    until then. reason: why it opened. num_openings: in a row.
    """

    ref: str
    gateway: str
    state: Literal["open", "half_open", "closed"]
    until_s: float = 0.0
    reason: str = ""
    num_openings: int = 0


class Unwell(Struct, frozen=True, kw_only=True):
    """An instance whose own checks keep failing, as a gateway sees it. fault: what the last check said."""

    instance_id: str
    ref: str
    gateway: str
    fault: str = ""


async def tell_unwell(redis: redis_async.Redis, news: Unwell) -> None:
    """The pool manager hears that this instance should be replaced; the gateway says so again while nothing happens."""
    with translating("an unwell instance"):
        await redis.publish(keys.CHANNEL_UNWELL, dumps(news))


async def tell(redis: redis_async.Redis, news: BreakerNews, now_s: float) -> None:
    """Every gateway hears it, and those that start while it holds can read it. now_s: unix seconds."""
    key = keys.breaker(news.ref)
    with translating("a breaker's state"):
        async with redis.pipeline(transaction=True) as pipe:
            if news.state == "closed":
                pipe.delete(key)
            else:
                pipe.set(key, dumps(news), px=max(1, int((news.until_s - now_s + MARGIN_S) * 1000)))
            pipe.publish(keys.CHANNEL_BREAKERS, dumps(news))
            await pipe.execute()


async def known(redis: redis_async.Redis, refs: Sequence[str]) -> list[BreakerNews]:
    """Return the last word on each of `refs` that is not closed."""
    if not refs:
        return []
    with translating("the breakers' states"):
        rows: Any = await redis.mget([keys.breaker(ref) for ref in refs])
    found = (readable(f"the breaker of {ref}", row, BreakerNews) for ref, row in zip(refs, rows, strict=True))
    return [news for news in found if news is not None]
