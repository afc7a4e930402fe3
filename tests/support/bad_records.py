"""Records that no deploy lets through, written past the platform: by an older release, or by hand."""

from __future__ import annotations

import redis as redis_sync

from samovar.spec import Route
from samovar_storage import keys
from samovar_storage.records import FunctionRecord, dumps
from samovar_storage.registry import Registry
from support.gateway import manifest

WORTHLESS, TORN, ASTRAY = "worthless", "torn", "astray"  # a value without sense, no JSON, a route to no number


def spoil(registry: Registry, redis: redis_sync.Redis) -> None:
    """The index has a function of each kind that cannot be used, and everybody is told; so have other tables rows."""
    registry.publish_version(manifest(WORTHLESS, hedge_after="1s"))
    route = Route(name=ASTRAY, shares={"north": 100}, latest=1)
    redis.hset(keys.FUNCTIONS, ASTRAY, dumps(FunctionRecord(name=ASTRAY, route=route, manifests={"north": manifest()})))
    redis.hset(keys.FUNCTIONS, TORN, b'{"name": "torn", "rou')
    for name in (ASTRAY, TORN):
        redis.publish(keys.CHANNEL_FUNCTIONS, name)
    for table in (keys.INSTANCES, keys.API_KEYS, keys.demand("nobody")):
        redis.hset(table, "torn", b'{"torn')
    redis.zadd(keys.GATEWAYS, {"nobody": 4e9})
