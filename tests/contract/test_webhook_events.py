"""Webhook events in the real Valkey: noted with the move, leased to one, backed off by host, given up, replayed."""

from __future__ import annotations

import pytest
import redis.asyncio as redis_async

from samovar.errors import Conflict, NotFound
from samovar_storage.jobs import webhook_scripts as scripts
from samovar_storage.jobs.hooks import TELL_WEBHOOK, endpoint_id
from samovar_storage.jobs.webhook_scripts import LANE_CAP
from samovar_storage.jobs.webhooks import Failure, Webhooks
from support.hooks import AT_MS, HOST, KEY, end
from support.waiting import wait_until_async

OTHER = "http://two.test/hook"
FAILED = Failure(error="no", retry_s=0.0)


async def look_again(redis: redis_async.Redis) -> None:
    """Every lane is due now."""
    for lane in await redis.zrange("sv:webhooks:due", 0, -1):
        await redis.zadd("sv:webhooks:due", {str(lane, "ascii"): 0})  # type: ignore[arg-type]


@pytest.fixture
def webhooks(aredis: redis_async.Redis) -> Webhooks:
    """The store over this test's database."""
    return Webhooks(aredis)


async def test_an_event_is_noted_once_and_only_if_wanted(aredis: redis_async.Redis, webhooks: Webhooks) -> None:
    await end(aredis, "a", state="canceled")
    assert await webhooks.claim("w", 10, 10) == []
    await end(aredis, "a")
    await end(aredis, "a")
    (event,) = await webhooks.claim("w", 10, 10)
    assert (event.id, event.job, event.state, event.function) == ("a.finished", "a", "finished", "echo")
    assert (event.url, event.key_id, event.at_ms, event.attempts) == (HOST, KEY, AT_MS, 0)
    assert await webhooks.claim("w", 10, 10) == []


async def test_a_job_without_webhook_notes_nothing(aredis: redis_async.Redis) -> None:
    await aredis.eval(TELL_WEBHOOK + "tell_webhook(redis.call('HGET', 'nothing', 'sv_hook'), 'a', 'finished', 1)", 0)
    assert await aredis.keys("*") == []


async def test_a_lease_that_ends_gives_the_event_to_another_and_its_holder_is_not_heard(
    aredis: redis_async.Redis, webhooks: Webhooks
) -> None:
    await end(aredis, "a")
    (event,) = await webhooks.claim("first", 10, 10)
    await look_again(aredis)
    assert await webhooks.claim("second", 10, 10) == [], "it is leased"
    await webhooks.renew("first", 0.0, [event.id])
    await look_again(aredis)
    (again,) = await webhooks.claim("second", 10, 10)
    assert again.id == event.id
    assert not await webhooks.delivered("first", event)
    assert await webhooks.failed("first", event, FAILED) == ""
    assert await webhooks.delivered("second", again)
    assert await aredis.keys("sv:*") == [b"sv:jobs:counts"], "a delivered event leaves nothing but its count"
    assert await aredis.hgetall("sv:jobs:counts") == {b"webhooks_delivered": b"1"}


async def test_hosts_take_turns_and_one_is_sent_a_few_at_a_time(aredis: redis_async.Redis, webhooks: Webhooks) -> None:
    for number in range(2 * LANE_CAP):
        await end(aredis, f"a{number:02}")
    await end(aredis, "b", OTHER)
    first = await webhooks.claim("w", 10, 10)
    assert sorted(event.url for event in first) == [HOST, OTHER]
    more = [event for _ in range(2 * LANE_CAP) for event in await webhooks.claim("w", 10, 10)]
    assert len(more) == LANE_CAP - 1


async def test_a_silent_host_gets_one_at_a_time_after_a_pause(aredis: redis_async.Redis, webhooks: Webhooks) -> None:
    for name in ("a", "b", "c"):
        await end(aredis, name)
    events = [*await webhooks.claim("w", 10, 1), *await webhooks.claim("w", 10, 1)]
    assert await webhooks.failed("w", events[0], Failure(error="no answer", retry_s=5, silence_s=60)) == "retry"
    assert await webhooks.failed("w", events[1], Failure(error="no answer", retry_s=5, silence_s=0.001)) == "retry"
    (probe,) = await wait_until_async(lambda: webhooks.claim("w", 10, 10))
    assert await webhooks.claim("w", 10, 10) == [], "one at a time"
    assert (probe.id, probe.lane_failures) == ("c.finished", 2)
    assert await webhooks.delivered("w", probe)
    open_events = await webhooks.open(KEY, 10)
    assert {(event.id, event.attempts, event.last_error) for event in open_events} == {
        ("a.finished", 1, "no answer"),
        ("b.finished", 1, "no answer"),
    }
    assert await webhooks.endpoints(KEY) == []


async def test_a_day_of_failures_disables_the_endpoint_and_enabling_sends_what_is_kept(
    aredis: redis_async.Redis,
) -> None:
    webhooks = Webhooks(aredis, give_up_s=0.0)
    await end(aredis, "a", HOST + "?a=1")
    await end(aredis, "b", HOST + "?b=2")
    (first,) = await webhooks.claim("w", 10, 10)
    assert await webhooks.failed("w", first, Failure(error="boom", retry_s=5, body=b"{}")) == "disabled"
    assert await webhooks.claim("w", 10, 10) == [], "what waits is put aside"
    (endpoint,) = await webhooks.endpoints(KEY)
    assert (endpoint.url, endpoint.last_error, endpoint.failures) == ("http://one.test:80/hook", "boom", 1)
    assert endpoint.disabled_ms >= endpoint.failing_ms > 0
    assert not await webhooks.replay("a", "finished"), "it is disabled"
    assert await aredis.ttl("sv:webhook:a.finished") > 6 * 86_400
    with pytest.raises(NotFound):
        await webhooks.enable("ffffffffffff", HOST)
    assert await webhooks.enable(KEY, HOST) == 2
    with pytest.raises(NotFound):
        await webhooks.enable(KEY, HOST)
    found = [event for _ in range(3) for event in await webhooks.claim("w", 10, 10)]
    assert {(event.id, event.body) for event in found} == {("a.finished", b"{}"), ("b.finished", b"")}


async def test_enabling_that_was_cut_short_goes_on_when_it_is_asked_again(
    aredis: redis_async.Redis, webhooks: Webhooks
) -> None:
    for name in "abc":
        await end(aredis, name)
    events = [event for _ in range(3) for event in await webhooks.claim("w", 10, 10)]
    for event in events:
        await webhooks.failed("w", event, Failure(error="410", retry_s=5, is_gone=True))
    await webhooks._run(scripts.ENABLE, KEY, endpoint_id(KEY, HOST))
    assert await webhooks.enable(KEY, HOST) == 3
    with pytest.raises(NotFound):
        await webhooks.enable(KEY, HOST)


async def test_only_a_disabled_endpoint_can_be_enabled(aredis: redis_async.Redis, webhooks: Webhooks) -> None:
    await end(aredis, "a")
    (event,) = await webhooks.claim("w", 10, 10)
    await webhooks.failed("w", event, FAILED)
    with pytest.raises(Conflict):
        await webhooks.enable(KEY, HOST)


async def test_gone_disables_at_once_and_only_for_that_key(aredis: redis_async.Redis, webhooks: Webhooks) -> None:
    await end(aredis, "a")
    await end(aredis, "b", key_id="ffffffffffff")
    events = await webhooks.claim("w", 10, 10)
    mine = next(event for event in events if event.key_id == KEY)
    assert await webhooks.failed("w", mine, Failure(error="410", retry_s=5, is_gone=True)) == "disabled"
    assert await webhooks.endpoints("ffffffffffff") == []
    await end(aredis, "c")
    assert await webhooks.claim("w", 10, 10) == []
    assert {event.id: bool(event.dead_ms) for event in await webhooks.open(KEY, 10)} == {
        "a.finished": True,
        "c.finished": True,
    }


async def test_replay_sends_dead_waiting_and_delivered_events(aredis: redis_async.Redis, webhooks: Webhooks) -> None:
    await end(aredis, "a")
    assert not await webhooks.replay("a", "failed"), "it did not fail"
    (event,) = await webhooks.claim("w", 10, 10)
    assert not await webhooks.replay("a", "finished"), "it is being sent"
    await webhooks.failed("w", event, Failure(error="no", retry_s=3600, silence_s=3600))
    assert await webhooks.claim("w", 10, 10) == []
    assert await webhooks.replay("a", "finished")
    (event,) = await webhooks.claim("w", 10, 10)
    assert await webhooks.delivered("w", event)
    assert await webhooks.replay("a", "finished")
    (event,) = await webhooks.claim("w", 10, 10)
    assert (event.id, event.attempts) == ("a.finished", 0)
    assert not await webhooks.replay("nobody", "finished")


async def test_released_events_count_as_never_tried(aredis: redis_async.Redis, webhooks: Webhooks) -> None:
    assert await webhooks.due_in_s() is None
    await end(aredis, "a")
    (event,) = await webhooks.claim("w", 10, 10)
    due_s = await webhooks.due_in_s()
    assert due_s is not None and 9 < due_s <= 10, "when its lease ends"
    await webhooks.release("w", [event.id])
    (again,) = await webhooks.claim("w2", 10, 10)
    assert (again.id, again.attempts) == (event.id, 0)
