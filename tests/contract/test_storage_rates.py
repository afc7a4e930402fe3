"""The script of the rate limits says what `gcra.lease` says, on the real server."""

from __future__ import annotations

import time

import pytest
import redis as redis_sync
import redis.asyncio as redis_async

from samovar.errors import StoreUnavailable
from samovar_dispatch.rates import gcra
from samovar_storage import keys, live
from samovar_storage.rates import LeaseReply, LeaseRequest, lease, num_gateways
from support.lease_cases import CASES, Case
from support.waiting import wait_until_async

SLACK_S = 0.04  # between two looks at the server's clock


def server_s(redis: redis_sync.Redis) -> float:
    seconds, micros = redis.time()
    return float(seconds + micros / 1e6)


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
async def test_leases(redis: redis_sync.Redis, aredis: redis_async.Redis, case: Case) -> None:
    key = keys.rate("k:f")
    request = LeaseRequest(("k", "f"), case.rate_per_s, case.burst, case.charge, case.want)

    async def looked() -> tuple[LeaseReply, float] | None:
        """Return the reply and how long the key lives; None if so much time went by that it cannot be judged."""
        redis.delete(key)
        began_s = server_s(redis)
        if case.backlog_s:
            redis.set(key, repr(began_s + case.backlog_s))
        (reply,) = await lease(aredis, [request])
        lifetime_s = redis.pttl(key) / 1000
        return (reply, lifetime_s) if server_s(redis) - began_s < SLACK_S else None

    reply, lifetime_s = await wait_until_async(looked, what="an undisturbed look")
    assert reply.granted == case.granted
    assert reply.backlog_s == pytest.approx(case.after_s, abs=SLACK_S)
    if case.after_s > SLACK_S:
        assert lifetime_s == pytest.approx(case.after_s, abs=SLACK_S), "gone as soon as the limit is unused"


async def test_a_long_story_is_told_alike(redis: redis_sync.Redis, aredis: redis_async.Redis) -> None:
    """Time passes by moving the stored instant back; then both are asked the same."""
    rate, key, tat_s = gcra.Rate(10, 40, ""), keys.rate("k:"), 0.0
    story = [(0, 12, 20), (0.25, 8, 3), (1.0, 0, 100), (2.05, -4, 1), (0.5, 60, 5), (3.0, 0, 5), (9.0, 1.5, 100)]
    for passed_s, charge, want in story:
        tat_s = max(0.0, tat_s - passed_s)
        if (stored := redis.get(key)) is not None:
            redis.set(key, repr(float(stored) - passed_s))
        expected = gcra.lease(rate, tat_s, 0.0, charge, want)
        (reply,) = await lease(aredis, [LeaseRequest(("k", ""), 10, 40, charge, want)])
        assert reply.granted == expected.granted
        assert reply.backlog_s == pytest.approx(expected.tat_s, abs=SLACK_S * len(story))
        tat_s = reply.backlog_s


async def test_many_limits_in_one_round_trip(aredis: redis_async.Redis) -> None:
    requests = [LeaseRequest((f"k{number}", "f"), 10, 40, number, 100) for number in range(100)]
    replies = await lease(aredis, requests)
    assert [reply.granted for reply in replies] == [max(0, 40 - number) for number in range(100)]


async def test_gateways_are_counted_while_they_are_heard_of(aredis: redis_async.Redis) -> None:
    assert await num_gateways(aredis) == 0
    await live.write_demand(aredis, "a", {}, time.time())
    await live.write_demand(aredis, "b", {}, time.time() - 5)
    await live.write_demand(aredis, "gone", {}, time.time() - 60)
    assert await num_gateways(aredis) == 2


async def test_a_server_that_is_away_is_an_error_of_ours() -> None:
    client = live.connect_async("redis://127.0.0.1:1/0")
    with pytest.raises(StoreUnavailable):
        await lease(client, [LeaseRequest(("k", ""), 1, 1, 0, 1)])
    await client.aclose()
