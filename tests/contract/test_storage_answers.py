"""Kept answers in a real Valkey: caps, lifetimes, forgetting; and the cabinet in front of it."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator
from typing import Any

import pytest
from redis.asyncio import Redis

from samovar_dispatch.answers.cabinet import MAX_WAITING, Cabinet
from samovar_dispatch.answers.fallbacks import Scope
from samovar_dispatch.answers.shelf import Shelf
from samovar_storage import keys
from samovar_storage.answers import Answer, Caps, Keeping, forget_answers, read_answer, write_answers
from samovar_storage.live import connect_async
from support.stores import Stores
from support.waiting import wait_until_async

NOW_S = 1_800_000_000.0
ROOMY = Caps(function_entries=100, function_bytes=1 << 20, entries=1000, num_bytes=1 << 20)


def keeping(name: str, lifetime_s: float = 60.0, num_bytes: int = 10) -> Keeping:
    return Keeping(name, Answer(b"x" * num_bytes, "text/plain", "3", NOW_S), lifetime_s)


async def kept(redis: Redis, *names: str) -> list[str]:
    return [name for name in names if await read_answer(redis, name) is not None]


async def totals(redis: Redis) -> dict[bytes, bytes]:
    found: Any = await redis.hgetall(keys.ANSWER_TOTALS)
    return dict(found)


async def test_an_answer_comes_back_as_it_was(aredis: Redis) -> None:
    given = Answer(b"\x00\xff", "image/png", "7", NOW_S)
    assert await write_answers(aredis, [Keeping("f:a", given, 60.0)], ROOMY, NOW_S) == 1
    assert await read_answer(aredis, "f:a") == given
    assert await read_answer(aredis, "f:b") is None
    assert 0 < await aredis.pttl(keys.answer("f:a")) <= 60_000


async def test_the_soonest_to_expire_leaves_first_within_its_function(aredis: Redis) -> None:
    caps = Caps(function_entries=2, function_bytes=1 << 20, entries=100, num_bytes=1 << 20)
    await write_answers(aredis, [keeping("g:other", 1.0)], caps, NOW_S)
    await write_answers(aredis, [keeping("f:a", 30.0), keeping("f:b", 10.0), keeping("f:c", 20.0)], caps, NOW_S)
    assert await kept(aredis, "f:a", "f:b", "f:c", "g:other") == ["f:a", "f:c", "g:other"]


async def test_bytes_are_capped_per_function_and_overall(aredis: Redis) -> None:
    one = await size_of(aredis)
    caps = Caps(function_entries=100, function_bytes=2 * one, entries=100, num_bytes=3 * one)
    for number in range(4):
        await write_answers(aredis, [keeping(f"f:{number}", 10.0 + number)], caps, NOW_S)
    assert await kept(aredis, "f:0", "f:1", "f:2", "f:3") == ["f:2", "f:3"]
    for number in range(2):
        await write_answers(aredis, [keeping(f"g:{number}", 50.0 + number)], caps, NOW_S)
    assert await kept(aredis, "f:2", "f:3", "g:0", "g:1") == ["f:3", "g:0", "g:1"]
    assert await totals(aredis) == {b"": b"%d" % (3 * one), b"f": b"%d" % one, b"g": b"%d" % (2 * one)}


async def size_of(redis: Redis) -> int:
    await write_answers(redis, [keeping("one:a")], ROOMY, NOW_S)
    size = int((await totals(redis))[b"one"])
    await forget_answers(redis, ["one"])
    assert await redis.keys("sv:answer*") == [] or await totals(redis) == {b"": b"0"}
    return size


async def test_an_answer_larger_than_the_cap_leaves_nothing_behind(aredis: Redis) -> None:
    caps = Caps(function_entries=10, function_bytes=50, entries=10, num_bytes=1 << 20)
    assert await write_answers(aredis, [keeping("f:a", num_bytes=100)], caps, NOW_S) == 0
    assert await aredis.keys("sv:answer:*") == []


async def test_writing_anew_counts_once(aredis: Redis) -> None:
    for num_bytes in (10, 500, 10):
        await write_answers(aredis, [keeping("f:a", num_bytes=num_bytes)], ROOMY, NOW_S)
    counted = await totals(aredis)
    await forget_answers(aredis, ["f"])
    await write_answers(aredis, [keeping("f:a")], ROOMY, NOW_S)
    assert await totals(aredis) == counted


async def test_expired_answers_are_counted_no_more(aredis: Redis) -> None:
    await write_answers(aredis, [keeping("f:a", 5.0), keeping("f:b", 50.0)], ROOMY, NOW_S)
    assert await write_answers(aredis, [keeping("g:a")], ROOMY, NOW_S + 6.0) == 2
    assert await aredis.zrange(keys.answers_of("f"), 0, -1) == [b"f:b"]


async def test_a_function_is_forgotten_alone(aredis: Redis) -> None:
    await write_answers(aredis, [keeping("f:a"), keeping("ff:a")], ROOMY, NOW_S)
    await forget_answers(aredis, ["f", "never-there"])
    assert await kept(aredis, "f:a", "ff:a") == ["ff:a"]
    assert b"f" not in await totals(aredis)


async def test_many_writers_at_once_keep_count(aredis: Redis) -> None:
    caps = Caps(function_entries=20, function_bytes=1 << 20, entries=30, num_bytes=1 << 20)
    batches = [[keeping(f"f{w % 3}:{w}-{n}", 10.0 + w + n) for n in range(10)] for w in range(12)]
    await asyncio.gather(*(write_answers(aredis, batch, caps, NOW_S) for batch in batches))
    sizes = await aredis.hgetall(keys.ANSWER_SIZES)
    assert len(sizes) == await aredis.zcard(keys.ANSWERS) == len(await aredis.keys("sv:answer:*")) == 30
    assert int((await totals(aredis))[b""]) == sum(map(int, sizes.values()))


# ---- the cabinet -------------------------------------------------------------------------------------------------

SCOPE = Scope("f", b"stale", (), False, 60.0)
SHARED = Scope("f", b"stale", (), True, 60.0)


@pytest.fixture
async def cabinet(stores: Stores) -> AsyncIterator[Cabinet]:
    """A cabinet whose writer runs."""
    made = Cabinet(connect_async(stores.redis_url), ROOMY, Shelf(100, 1 << 20), 1000)
    running = asyncio.ensure_future(made.run())
    yield made
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await made.close()


async def fetched(cabinet: Cabinet, key: str, max_age_s: float = 60.0) -> Answer | None:
    found: asyncio.Future[Answer | None] = asyncio.get_running_loop().create_future()
    cabinet.fetch(key, max_age_s, 1.0, found.set_result)
    return await found


def now_answer(cabinet: Cabinet, body: bytes = b"1") -> Answer:
    return Answer(body, "application/json", "1", cabinet._clock())


async def test_what_one_keeps_another_process_finds(cabinet: Cabinet, stores: Stores) -> None:
    cabinet.keep(SCOPE, "ann", b'{"a": 1}', now_answer(cabinet))
    await wait_until_async(lambda: cabinet.num_kept == 1)
    other = Cabinet(connect_async(stores.redis_url), ROOMY, Shelf(100, 1 << 20), 1000)
    key = other.key(SCOPE, "ann", b'{"a":1}')
    assert other.look(key, 60.0) is None
    found = await fetched(other, key)
    assert found is not None and found.body == b"1"
    assert other.look(key, 60.0) == found, "now on its own shelf"
    assert other.look(key, -1.0) is None, "too old"
    await other.close()


async def test_keys_see_their_own_answers_unless_shared(cabinet: Cabinet) -> None:
    mine, yours = (cabinet.key(SCOPE, who, b"1") for who in ("ann", "bob"))
    assert mine != yours
    both = {cabinet.key(SHARED, who, b"1") for who in ("ann", "bob")}
    assert len(both) == 1 and both.isdisjoint({mine, yours})


async def test_the_form_that_is_accepted_sets_answers_apart(cabinet: Cabinet) -> None:
    forms = ["application/json", "application/vnd.samovar.tensors"]
    assert len({cabinet.key(SCOPE, "ann", b"1", form) for form in forms}) == 2
    assert cabinet.key(SCOPE, "ann", b"1") == cabinet.key(SCOPE, "ann", b"1", "application/json")
    cabinet.keep(SCOPE, "ann", b"1", now_answer(cabinet, b"tensors"), accept=forms[1])
    await wait_until_async(lambda: cabinet.num_kept == 1)
    kept = cabinet.look(cabinet.key(SCOPE, "ann", b"1", forms[1]), 60.0)
    assert kept is not None and kept.body == b"tensors"
    assert cabinet.look(cabinet.key(SCOPE, "ann", b"1"), 60.0) is None


async def test_under_load_the_same_answer_is_written_once_a_second(cabinet: Cabinet) -> None:
    for _ in range(50):
        cabinet.keep(SCOPE, "ann", b"1", now_answer(cabinet))
    cabinet.keep(SCOPE, "ann", b"2", now_answer(cabinet))
    await wait_until_async(lambda: cabinet.num_kept == 2 and not cabinet._offers)


async def test_a_full_queue_drops_and_counts(cabinet: Cabinet) -> None:
    for number in range(MAX_WAITING + 25):  # the writer has no turn in between
        cabinet.keep(SCOPE, "ann", b"%d" % number, now_answer(cabinet))
    assert cabinet.num_dropped == 25
    await wait_until_async(lambda: cabinet.num_kept == MAX_WAITING)
    assert (len(cabinet._offers), cabinet._offered_bytes) == (0, 0)


async def test_without_redis_the_shelf_remains_and_nobody_waits() -> None:
    cabinet = Cabinet(connect_async("redis://127.0.0.1:1/0"), ROOMY, Shelf(100, 1 << 20), 1000)
    running = asyncio.ensure_future(cabinet.run())
    cabinet.keep(SCOPE, "ann", b"1", now_answer(cabinet))
    await wait_until_async(lambda: cabinet.num_dropped == 1)
    key = cabinet.key(SCOPE, "ann", b"1")
    assert cabinet.look(key, 60.0) is not None
    assert not cabinet.can_fetch, "it was away a moment ago"
    assert await fetched(cabinet, key) is None
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
    await cabinet.close()


async def test_a_read_that_is_not_wanted_any_more_calls_nobody(cabinet: Cabinet) -> None:
    """Whenever the cancellation comes: the client of Redis swallows some."""
    found: list[Answer | None] = []
    for num_turns in [*range(12)] * 2:
        lookup = cabinet.fetch("f:a", 60.0, 1.0, found.append)
        for _ in range(num_turns):
            await asyncio.sleep(0)
        heard = len(found)
        lookup.cancel()
        await asyncio.gather(lookup.task, return_exceptions=True)
        assert len(found) == heard
    assert await fetched(cabinet, "f:a") is None, "the next one works"


async def test_a_read_ends_in_time_whatever_redis_does() -> None:
    """Here it lets clients connect and says nothing."""
    with socket.create_server(("127.0.0.1", 0)) as mute:
        url = f"redis://127.0.0.1:{mute.getsockname()[1]}/0"
        cabinet = Cabinet(connect_async(url), ROOMY, Shelf(100, 1 << 20), 1000)
        assert await fetched(cabinet, "f:a") is None
        assert not cabinet.can_fetch
        await cabinet.close()
