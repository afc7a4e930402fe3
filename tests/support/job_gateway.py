"""A gateway for tests of job routes: a function that nobody runs, on a Redis database of its own, and a worker moved
by hand. This module does not know what is tested."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import redis as redis_sync

from samovar_storage.objects import ObjectStore
from support.folders import short_folder
from support.gateway import Gateway, running_gateway
from support.hand_worker import HandWorker
from support.stores import stores_for_a_test


@contextmanager
def gateway_for_jobs(valkey: Any, seaweed: Any, database: int, **settings: Any) -> Iterator[Gateway]:
    """Run a gateway with `settings` on an empty Redis database, and the function `echo`, for the body of a `with`."""
    stores = stores_for_a_test(valkey, seaweed, database)
    with redis_sync.Redis.from_url(stores.redis_url) as redis:
        redis.flushdb()
    with short_folder() as folder:
        store = ObjectStore.from_settings(stores.settings(folder))
        store.ensure_bucket()
        with running_gateway(stores, store, folder, **settings) as running:
            running.deploy("echo")
            yield running
        store.close()


@contextmanager
def hands_on(gateway: Gateway) -> Iterator[HandWorker]:
    """Move a worker by hand for the body of a `with`; there are no jobs when it begins."""
    for name in [*gateway.redis.scan_iter("rq:*"), *gateway.redis.scan_iter("sv:jobs:*")]:
        gateway.redis.delete(name)
    hands = HandWorker(gateway.redis_url, gateway.objects)
    yield hands
    hands.close()
