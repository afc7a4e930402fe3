"""A subscription that survives: messages as they come, and a RESYNC mark after every (re)connect.

Redis does not keep what it published while we were away. So whoever mirrors a hash reloads it at each RESYNC, and
applies the messages after it. This module does not know what the messages mean.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, Final, Literal

import redis.asyncio as redis_async

from samovar.errors import StoreUnavailable
from samovar_storage.failures import translate, translating

log = logging.getLogger(__name__)

POLL_S = 2.0
SILENCE_S = 10.0
FIRST_RETRY_S, MAX_RETRY_S = 0.05, 2.0


@dataclass(frozen=True, slots=True)
class Message:
    """One published message."""

    channel: str
    data: bytes


@dataclass(frozen=True, slots=True)
class Resync:
    """The subscription is live from here on; anything published before may have been missed."""

    kind: Literal["resync"] = "resync"


RESYNC: Final = Resync()


async def subscribe(redis: redis_async.Redis, *channels: str) -> AsyncGenerator[Message | Resync, None]:
    """Yield RESYNC and then messages, for ever: a lost connection is made again, after 50 ms rising to 2 s.

    A connection that is silent for 10 s although it was pinged counts as lost. Stop by closing the iterator
    (`contextlib.aclosing`) or cancelling the task. Raises BadCredential; an unreachable Redis is waited for.
    """
    retry_s = FIRST_RETRY_S
    while True:
        try:
            async with aclosing(_one_connection(redis, channels)) as events:
                async for event in events:
                    retry_s = FIRST_RETRY_S
                    yield event
        except StoreUnavailable as error:
            log.warning("subscription lost, again in %.2f s: %s", retry_s, error.detail)
        await asyncio.sleep(retry_s)
        retry_s = min(MAX_RETRY_S, retry_s * 2)


async def _one_connection(
    redis: redis_async.Redis, channels: tuple[str, ...]
) -> AsyncGenerator[Message | Resync, None]:
    loop = asyncio.get_running_loop()
    pubsub = redis.pubsub()
    confirmed: set[str] = set()
    try:
        with translating("the subscription"):
            await pubsub.subscribe(*channels)
        heard_s = loop.time()
        while True:
            message = await next_message(pubsub)
            if message is None:
                if loop.time() - heard_s > SILENCE_S:
                    raise StoreUnavailable(f"the subscription was silent for {SILENCE_S:.0f} s")
                continue
            heard_s = loop.time()
            if message["type"] == "message":
                yield Message(as_text(message["channel"]), message["data"])
            elif message["type"] == "subscribe":
                # the client may reconnect by itself: confirmations come again, and so must the mark
                confirmed.add(as_text(message["channel"]))
                if len(confirmed) == len(channels):
                    confirmed.clear()
                    yield RESYNC
    finally:
        await close_pubsub(pubsub)


async def next_message(pubsub: Any, what: str = "the subscription") -> dict[str, Any] | None:
    """Return the next message of any type, or None after 2 s without one, having asked for a sign of life.

    what: is followed, in words. Raises: StoreUnavailable.
    """
    with translating(what):
        message = await pubsub.get_message(ignore_subscribe_messages=False, timeout=POLL_S)
        if message is None:
            await pubsub.ping()
        return dict(message) if message is not None else None


async def close_pubsub(pubsub: Any) -> None:
    """End a subscription that is of no more use; whatever goes wrong meanwhile does not matter."""
    try:
        await pubsub.aclose()
    except Exception as error:  # noqa: BLE001 - the connection is being thrown away; its last words do not matter
        log.debug("closing a subscription: %s", translate(error) or error)


def as_text(value: Any) -> str:
    """Return a channel's name or a message's data as text."""
    return value.decode() if isinstance(value, bytes) else str(value)
