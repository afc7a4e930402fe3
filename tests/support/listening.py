"""Listening to a channel in a blocking test."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import redis as redis_sync


@contextmanager
def listening(redis: redis_sync.Redis, channel: str) -> Iterator[Any]:
    """Return a subscription that is live: `get_message(timeout=…)` yields what is published from now on."""
    subscription: Any = redis.pubsub()  # type: ignore[no-untyped-call]
    try:
        subscription.subscribe(channel)
        confirmation = subscription.get_message(timeout=60)
        assert confirmation is not None and confirmation["type"] == "subscribe"
        yield subscription
    finally:
        subscription.close()
