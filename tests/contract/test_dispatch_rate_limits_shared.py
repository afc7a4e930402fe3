"""Rate limits of several gateways over the real server: charged, leased, forgotten when idle."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
import redis.asyncio as redis_async

from samovar.errors import RateLimited
from samovar_dispatch.rates.gcra import Rate
from samovar_dispatch.rates.rate_limits import FunctionRates, RateLimits
from samovar_storage import keys, live
from support.waiting import wait_until_async


@asynccontextmanager
async def reporting(redis: redis_async.Redis, *gateways: RateLimits) -> AsyncIterator[None]:
    """Let gateways report for the body of a `with`, each counted as alive."""
    for number in range(len(gateways)):
        await live.write_demand(redis, f"g{number}", {}, time.time())
    tasks = [asyncio.ensure_future(gateway.run(redis)) for gateway in gateways]
    try:
        await wait_until_async(lambda: all(gateway.num_gateways == len(gateways) for gateway in gateways))
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def calls(gateway: RateLimits, rate: Rate, number: int, key: str = "k") -> int:
    """Return how many of so many calls passed."""
    passed = 0
    for _ in range(number):
        try:
            gateway.take(key, rate, "f", None)
            passed += 1
        except RateLimited:
            continue
    return passed


async def test_what_one_gateway_spent_another_does_not_have(aredis: redis_async.Redis) -> None:
    first, second = RateLimits(), RateLimits()
    rate, key = Rate(1 / 60, 20, "1/m"), keys.rate("k:")
    async with reporting(aredis, first, second):
        assert calls(first, rate, 100) == 10, "its half of an idle limit"
        leased = 0

        async def all_spent() -> bool:
            nonlocal leased
            leased += calls(first, rate, 5)
            return leased >= 10

        await wait_until_async(all_spent, what="the other half, leased")
        assert (leased, calls(first, rate, 100)) == (10, 0)
        assert await aredis.exists(key)
        asked = calls(second, rate, 1)
        await wait_until_async(lambda: not second._busy or not any(b.spent for b in second._busy))
        assert asked + calls(second, rate, 100) <= 10, "what it may spend before its first report, and no more"


async def test_idle_limits_are_forgotten_here_and_there(aredis: redis_async.Redis) -> None:
    gateway = RateLimits()
    fast = Rate(1000, 100, "1000/s")
    async with reporting(aredis, gateway):
        for number in range(700):  # more than one batch
            gateway.take(f"k{number}", fast, "f", FunctionRates(fast, fast) if number < 50 else None)
        assert len(gateway) == 751

        async def forgotten() -> bool:
            return len(gateway) == 0 and not [key async for key in aredis.scan_iter(keys.rate("*"))]

        await wait_until_async(forgotten)


async def test_without_a_server_calls_are_judged_all_the_same(caplog: pytest.LogCaptureFixture) -> None:
    client, gateway = live.connect_async("redis://127.0.0.1:1/0"), RateLimits()
    task = asyncio.ensure_future(gateway.run(client))
    rate = Rate(1 / 60, 5, "1/m")
    assert calls(gateway, rate, 9) == 5
    await wait_until_async(lambda: "on this gateway's share alone" in caplog.text)
    assert calls(gateway, rate, 9) == 0 and not task.done()
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)
    await client.aclose()
