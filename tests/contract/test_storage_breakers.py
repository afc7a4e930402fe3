"""What gateways say of breakers, in a real Valkey: the last word is read while it holds, and everybody hears it."""

from __future__ import annotations

import time

import redis.asyncio as redis_async

from samovar_storage import breakers, keys
from samovar_storage.breakers import BreakerNews, Unwell
from samovar_storage.records import loads


def news(state: str, for_s: float = 10.0) -> BreakerNews:
    """Return what gateway g1 says of a@1."""
    return BreakerNews(
        ref="a@1",
        gateway="g1",
        state=state,  # type: ignore[arg-type]
        until_s=time.time() + for_s,
        reason="error_rate",
        num_openings=2,
    )


async def test_the_last_word_is_known_until_it_is_over(aredis: redis_async.Redis) -> None:
    opened = news("open")
    await breakers.tell(aredis, opened, time.time())
    assert await breakers.known(aredis, ["b@1", "a@1"]) == [opened]
    assert await breakers.known(aredis, []) == []
    assert 9 < await aredis.pttl(keys.breaker("a@1")) / 1000 <= 10 + breakers.MARGIN_S
    await breakers.tell(aredis, news("half_open", 1.0), time.time())
    assert [known.state for known in await breakers.known(aredis, ["a@1"])] == ["half_open"]
    await breakers.tell(aredis, news("closed"), time.time())
    assert await breakers.known(aredis, ["a@1"]) == []


async def test_what_is_over_already_is_not_kept(aredis: redis_async.Redis) -> None:
    await breakers.tell(aredis, news("open", -60.0), time.time())
    assert await aredis.pttl(keys.breaker("a@1")) <= 1


async def test_everybody_hears_it(aredis: redis_async.Redis) -> None:
    unwell = Unwell(instance_id="i1", ref="a@1", gateway="g1", fault="it leaks")
    async with aredis.pubsub() as heard:
        await heard.subscribe(keys.CHANNEL_BREAKERS, keys.CHANNEL_UNWELL)
        opened = news("open")
        await breakers.tell(aredis, opened, time.time())
        await breakers.tell_unwell(aredis, unwell)
        messages: list[bytes] = []
        while len(messages) < 2:
            message = await heard.get_message(ignore_subscribe_messages=True, timeout=60)
            if message is not None:
                messages.append(message["data"])
    assert loads(messages[0], BreakerNews) == opened
    assert loads(messages[1], Unwell) == unwell
