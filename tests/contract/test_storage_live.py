"""The live keys against a real Valkey: what is written is read, lifetimes hold, one leader at a time."""

from __future__ import annotations

import asyncio
from contextlib import aclosing

import msgspec
import pytest
import redis.asyncio as redis_async

from samovar.errors import BadCredential, Conflict, StoreUnavailable
from samovar_storage import keys, live
from samovar_storage.records import (
    BootFailure,
    Decision,
    Demand,
    InstanceRecord,
    LogLine,
    NodeStatus,
    VersionStatus,
    WarmRequest,
    loads,
)
from samovar_storage.subscribe import RESYNC, Message, subscribe
from support.stores import Stores
from support.waiting import wait_until_async

NOW_S = 1_800_000_000.0


async def test_demand_is_summed_over_live_gateways(aredis: redis_async.Redis) -> None:
    await live.write_demand(
        aredis, "g1", {"a@1": Demand(queued=2, running=1), "b@1": Demand(queued=1, running=0)}, NOW_S
    )
    await live.write_demand(aredis, "g2", {"a@1": Demand(queued=0, running=4)}, NOW_S + 1)
    assert await live.read_demand(aredis, NOW_S + 1) == {
        "a@1": Demand(queued=2, running=5),
        "b@1": Demand(queued=1, running=0),
    }
    # the whole demand is written each time: what is left out is gone
    await live.write_demand(aredis, "g1", {}, NOW_S + 2)
    assert (await live.read_demand(aredis, NOW_S + 2)).keys() == {"a@1"}
    assert await aredis.pttl(keys.demand("g2")) > 0
    # a gateway that was not heard of for 10 s takes its demand with it
    assert await live.read_demand(aredis, NOW_S + 11.5) == {}
    assert await live.live_gateways(aredis, NOW_S + 11.5) == ["g1"]
    await live.remove_gateway(aredis, "g1")
    assert await live.live_gateways(aredis, NOW_S) == []


async def test_a_wake_up_is_published_with_the_demand(aredis: redis_async.Redis) -> None:
    async with aclosing(subscribe(aredis, keys.CHANNEL_WAKE)) as events:
        assert await anext(events) is RESYNC
        await live.write_demand(aredis, "g1", {"a@1": Demand(queued=1, running=0)}, NOW_S, wake=["a@1"])
        await live.wake(aredis, "b@1")
        assert await anext(events) == Message(keys.CHANNEL_WAKE, b"a@1")
        assert await anext(events) == Message(keys.CHANNEL_WAKE, b"b@1")


async def test_instances_are_stored_published_and_fenced(aredis: redis_async.Redis) -> None:
    record = InstanceRecord(instance_id="i-1", state="ready", ref="a@1", address="unix:/x", token="t")
    async with aclosing(subscribe(aredis, keys.CHANNEL_INSTANCES)) as events:
        assert await anext(events) is RESYNC
        token = await live.acquire_lease(aredis)
        assert token is not None
        await live.put_instance(aredis, record, token)
        assert await live.instances(aredis) == {"i-1": record}
        message = await anext(events)
        assert isinstance(message, Message) and loads(message.data, InstanceRecord) == record
        await live.remove_instance(aredis, record, token)
        assert await live.instances(aredis) == {}
        message = await anext(events)
        assert isinstance(message, Message) and loads(message.data, InstanceRecord).state == "gone"
    await live.release_lease(aredis, token)
    assert await live.acquire_lease(aredis)
    with pytest.raises(Conflict):
        await live.put_instance(aredis, record, token)
    await live.put_instance(aredis, record)


async def test_one_leader_at_a_time_with_growing_tokens(aredis: redis_async.Redis) -> None:
    tokens = await asyncio.gather(*(live.acquire_lease(aredis) for _ in range(5)))
    (first,) = [token for token in tokens if token is not None]
    assert await live.renew_lease(aredis, first)
    assert not await live.renew_lease(aredis, first + 1)
    await live.release_lease(aredis, first + 1)
    assert await live.acquire_lease(aredis) is None
    await live.release_lease(aredis, first)
    second = await live.acquire_lease(aredis, lifetime_s=0.05)
    assert second is not None and second > first
    # not renewed, it ends by itself
    await wait_until_async(lambda: _is_free(aredis))
    assert await live.renew_lease(aredis, second, lifetime_s=0.05), "nobody led since: it is ours again"
    third = await wait_until_async(lambda: live.acquire_lease(aredis))
    assert third > second and not await live.renew_lease(aredis, second)


async def _is_free(aredis: redis_async.Redis) -> bool:
    return not await aredis.exists(keys.MANAGER_LEASE)


async def test_boot_failures_are_published_and_kept_through_the_back_off(aredis: redis_async.Redis) -> None:
    failure = BootFailure(
        ref="a@1", code="load_failed", status=500, detail="no", failed_at_s=NOW_S, retry_at_s=NOW_S + 4
    )
    async with aclosing(subscribe(aredis, keys.CHANNEL_BOOT)) as events:
        assert await anext(events) is RESYNC
        await live.put_boot_failure(aredis, failure)
        message = await anext(events)
    assert isinstance(message, Message) and loads(message.data, BootFailure) == failure
    assert await live.boot_failure(aredis, "a@1") == failure
    assert 8000 < await aredis.pttl(keys.boot("a@1")) <= 9000
    await live.clear_boot_failure(aredis, "a@1")
    assert await live.boot_failure(aredis, "a@1") is None


async def test_status_of_versions_and_nodes(aredis: redis_async.Redis) -> None:
    status = VersionStatus(ref="a@1", desired=1, ready=1, starting=0, draining=0, reason="demand", at_s=NOW_S)
    node = NodeStatus(
        node="n1",
        blanks=1,
        blank_target=1,
        instances=1,
        memory_budget_bytes=1,
        memory_used_bytes=0,
        devices=[],
        at_s=NOW_S,
    )
    await live.put_status(aredis, status)
    await live.put_node(aredis, msgspec.structs.replace(node, node="n2"))
    await live.put_node(aredis, node)
    assert await live.statuses(aredis, ["a@1", "b@1"]) == {"a@1": status}
    assert await live.statuses(aredis, []) == {}
    assert [one.node for one in await live.nodes(aredis)] == ["n1", "n2"]
    assert 0 < await aredis.ttl(keys.status("a@1")) <= 10


async def test_the_newest_hundred_decisions_are_kept(aredis: redis_async.Redis) -> None:
    made = [Decision(at_s=NOW_S + i, ref="a@1", action="start", rule="panic", desired=i, ready=0) for i in range(105)]
    await live.add_decisions(aredis, "a", made[:60])
    await live.add_decisions(aredis, "a", made[60:])
    await live.add_decisions(aredis, "a", [])
    assert await live.decisions(aredis, "a") == made[:4:-1]
    assert await live.decisions(aredis, "a", count=2) == [made[104], made[103]]


async def test_logs_are_read_back_and_followed(aredis: redis_async.Redis) -> None:
    lines = [LogLine(at_s=NOW_S, ref="a@1", instance="i-1", stream="stdout", line=f"line {i}") for i in range(5)]
    assert await live.last_logs(aredis, "a", 10) == ([], "0-0")
    await live.add_logs(aredis, "a", lines[:3])
    last, after = await live.last_logs(aredis, "a", 2)
    assert last == lines[1:3]
    assert await live.logs_after(aredis, "a", after, wait_s=0.01) == ([], after)
    async with aclosing(live.follow_logs(aredis, "a", after)) as following:
        waiting = asyncio.ensure_future(anext(following))
        await live.add_logs(aredis, "a", lines[3:])
        assert await waiting == lines[3]
        assert await anext(following) == lines[4]


async def test_a_warm_request_lasts_as_asked_and_wakes(aredis: redis_async.Redis) -> None:
    request = WarmRequest(ref="a@1", instances=2, until_s=NOW_S + 60)
    async with aclosing(subscribe(aredis, keys.CHANNEL_WAKE)) as events:
        assert await anext(events) is RESYNC
        await live.put_warm(aredis, request, NOW_S)
        assert await anext(events) == Message(keys.CHANNEL_WAKE, b"a@1")
    assert await live.warm_requests(aredis, ["a@1", "b@1"]) == {"a@1": request}
    assert 0 < await aredis.ttl(keys.warm("a@1")) <= 60
    await live.put_warm(aredis, msgspec.structs.replace(request, until_s=NOW_S - 1), NOW_S)
    assert await live.warm_requests(aredis, ["a@1"]) == {}


async def test_a_lost_subscription_comes_back_with_a_mark(aredis: redis_async.Redis) -> None:
    async with aclosing(subscribe(aredis, "one", "two")) as events:
        assert await anext(events) is RESYNC
        await aredis.publish("two", b"before")
        assert await anext(events) == Message("two", b"before")
        assert await aredis.client_kill_filter(_type="pubsub") >= 1
        assert await anext(events) is RESYNC
        await aredis.publish("one", b"after")
        assert await anext(events) == Message("one", b"after")


async def test_a_redis_that_is_away_is_said() -> None:
    client = live.connect_async("redis://127.0.0.1:1/0")
    with pytest.raises(StoreUnavailable):
        await live.instances(client)
    await client.aclose()


async def test_a_wrong_password_is_a_bad_credential(stores: Stores) -> None:
    client = live.connect_async(stores.redis_url.replace(stores.redis_url.split(":")[2].split("@")[0], "wrong"))
    with pytest.raises(BadCredential):
        await live.instances(client)
    with pytest.raises(BadCredential):
        await anext(subscribe(client, "channel"))
    await client.aclose()


async def test_more_calls_than_connections_wait_for_their_turn(stores: Stores) -> None:
    """A thousand requests at once are no failure of Redis."""
    client = live.connect_async(stores.redis_url)
    try:
        answers = await asyncio.gather(*(client.set(f"sv:test:turn:{n}", n, px=5000) for n in range(1000)))
        assert all(answers)
    finally:
        await client.aclose()
