"""Traffic slices in a real Valkey: written in one round trip, read by version and time, gone after a while."""

from __future__ import annotations

import time

import pytest
import redis.asyncio as redis_async

from samovar_storage import keys
from samovar_storage.traffic import Tally, TrafficSlice, merge, read_slices, write_slices


def one(gateway: str, ref: str, num_ok: int) -> TrafficSlice:
    return TrafficSlice(
        gateway=gateway, ref=ref, at_s=time.time(), span_s=1.0, calls=Tally(ok=num_ok, total={3: num_ok})
    )


async def test_slices_of_all_gateways_are_read_by_version_and_time(aredis: redis_async.Redis) -> None:
    started_s = time.time()
    await write_slices(aredis, [one("g1", "a@1", 2), one("g1", "a@2", 5)])
    await write_slices(aredis, [one("g2", "a@1", 3)])
    await write_slices(aredis, [])
    slices = await read_slices(aredis, "a@1", started_s)
    assert [s.gateway for s in slices] == ["g1", "g2"]
    assert merge(s.calls for s in slices) == Tally(ok=5, total={3: 5})
    assert await read_slices(aredis, "a@1", time.time() + 60) == []
    assert await read_slices(aredis, "b@1", 0.0) == []


async def test_what_is_kept_is_bounded(aredis: redis_async.Redis, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keys, "MAX_TRAFFIC_SLICES", 100)
    for _ in range(5):
        await write_slices(aredis, [one("g1", "a@1", 1)] * 100)
    assert len(await read_slices(aredis, "a@1", 0.0)) <= 200  # trimmed a node at a time
    assert 0 < await aredis.ttl(keys.traffic("a@1")) <= keys.TRAFFIC_LIFETIME_S
