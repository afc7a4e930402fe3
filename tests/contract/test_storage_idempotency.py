"""Claims of Idempotency-Keys over the real server: one owner at a time, the dead's taken over, answers kept once."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import pytest
import redis.asyncio as redis_async

from samovar.errors import StoreFull
from samovar_storage import keys
from samovar_storage.embedded import EmbeddedValkey
from samovar_storage.jobs.idempotency import (
    CLAIM_BYTES,
    Claim,
    Idempotency,
    Kept,
    Limits,
    delete_expired,
    new_ids,
    object_key,
    slot_of,
)
from samovar_storage.live import connect_async
from samovar_storage.objects import ObjectStore
from support.processes import running
from support.waiting import wait_until_async

SLOT = slot_of("k1", "invoke", "embed", b"doc-42")
ANSWER = Kept(200, [(b"content-type", b"application/json")], b'{"n":1}')


def claims(redis: redis_async.Redis, **limits: float) -> Idempotency:
    return Idempotency(redis, Limits(**limits))  # type: ignore[arg-type]


async def test_one_of_many_has_it_and_the_others_get_its_answer(aredis: redis_async.Redis) -> None:
    ours, theirs = claims(aredis), claims(aredis)
    found = await asyncio.gather(*(one.claim(SLOT, "print") for one in [ours, theirs] * 25))
    (mine,) = (claim for claim in found if claim.state == "mine")
    running_ones = [claim for claim in found if claim.state == "running"]
    assert len(running_ones) == 49 and {claim.owner for claim in running_ones} == {mine.owner}
    assert (await theirs.claim(SLOT, "another print")).state == "reused"
    assert await ours.keep(SLOT, "print", mine, ANSWER) is True
    for one in (ours, theirs):
        assert (await one.claim(SLOT, "print")).kept == ANSWER
    assert (await theirs.claim(SLOT, "another print")).state == "reused"
    assert 0 < await aredis.pttl(keys.idempotency(SLOT.name)) <= 24 * 3600 * 1000


async def test_keys_are_an_api_keys_own_on_a_route_and_function(aredis: redis_async.Redis) -> None:
    store = claims(aredis)
    slots = {
        slot_of(key_id, route, function, text)
        for key_id in ("k1", "k2")
        for route in ("invoke", "jobs")
        for function in ("embed", "other")
        for text in (b"doc-42", b"doc-43")
    }
    assert len(slots) == 16
    assert {(await store.claim(slot, "print")).state for slot in slots} == {"mine"}


async def test_a_released_key_is_free_for_the_same_request_under_the_same_seed(aredis: redis_async.Redis) -> None:
    ours, theirs = claims(aredis), claims(aredis)
    first = await ours.claim(SLOT, "print")
    await ours.release(SLOT, first)
    second = await theirs.claim(SLOT, "print")
    assert (second.state, second.seed, second.made_ms) == ("mine", first.seed, first.made_ms)
    await ours.release(SLOT, first)
    assert (await ours.claim(SLOT, "print")).state == "running", "what is not held any more is not released"
    ids, again = new_ids(first), new_ids(second)
    named = [ids(5), ids(6), ids(7)]
    assert [again(8), again(9), again(10)] == named and len(set(named)) == 3
    assert all(len(name) == 24 and int(name[:12], 16) == first.made_ms for name in named)


async def test_only_an_owner_that_stopped_beating_is_replaced(aredis: redis_async.Redis) -> None:
    ours, theirs = claims(aredis), claims(aredis)
    first = await ours.claim(SLOT, "print")
    seen = await theirs.claim(SLOT, "print")
    await ours.beat()
    beaten = await theirs.claim(SLOT, "print", seen)
    assert (beaten.state, beaten.owner) == ("running", first.owner) and beaten.beats != seen.beats
    second = await theirs.claim(SLOT, "print", beaten)
    assert (second.state, second.seed) == ("mine", first.seed)
    assert (await ours.claim(SLOT, "print", beaten)).state == "running", "who was silent is not the owner any more"
    late = await ours.keep(SLOT, "print", first, ANSWER)
    assert late is True and (await ours.claim(SLOT, "print")).state == "running"
    other = msgspec.structs.replace(ANSWER, body=b'{"n":2}')
    assert await theirs.keep(SLOT, "print", second, other) is True
    assert await ours.keep(SLOT, "print", first, ANSWER) == other, "the first answer that was kept is the answer"
    await theirs.leave()
    assert await aredis.hgetall(keys.IDEMPOTENCY_OWNERS) == {}


async def test_a_claim_whose_answer_was_lost_is_made_again(aredis: redis_async.Redis) -> None:
    store = claims(aredis)
    first = await store.claim(SLOT, "print")
    await aredis.delete(keys.idempotency(SLOT.name))  # a Redis that was killed forgot the last second
    assert await store.keep(SLOT, "print", first, ANSWER) is True
    assert (await store.claim(SLOT, "print")).kept == ANSWER


async def test_an_api_key_has_room_for_so_much_and_no_other_suffers(aredis: redis_async.Redis) -> None:
    store = claims(aredis, key_bytes=4 * CLAIM_BYTES + 6000)
    slots = [slot_of("k1", "invoke", "embed", b"%d" % number) for number in range(30)]
    first = [await store.claim(slot, "print") for slot in slots[:4]]
    assert {claim.state for claim in first} == {"mine"}
    large = msgspec.structs.replace(ANSWER, body=b"x" * 5000)
    assert await store.keep(slots[0], "print", first[0], large) is True
    assert await store.keep(slots[1], "print", first[1], large) is False, "its body must lie elsewhere"
    assert await store.keep(slots[1], "print", first[1], ANSWER) is True
    states = [(await store.claim(slot, "print")).state for slot in slots[4:]]
    assert states[-1] == "full"
    assert (await store.claim(slots[0], "print")).kept == large, "what is kept stays"
    assert (await store.claim(slot_of("k2", "invoke", "embed", b"0"), "print")).state == "mine"
    assert 24 * 3600 < await aredis.ttl(keys.idempotency_bytes("k1")) <= 25 * 3600


async def test_room_comes_back_with_time(aredis: redis_async.Redis) -> None:
    store = claims(aredis, key_bytes=CLAIM_BYTES)
    key = keys.idempotency_bytes("k1")
    await aredis.hset(key, mapping={"1": 10_000_000, "2": 10_000_000})
    assert (await store.claim(SLOT, "print")).state == "mine"
    (bytes_now,) = (await aredis.hgetall(key)).values()
    assert int(bytes_now) == CLAIM_BYTES


async def test_an_answer_expires_with_its_time(aredis: redis_async.Redis) -> None:
    store = claims(aredis, lifetime_s=0.05)
    first = await store.claim(SLOT, "print")
    await store.keep(SLOT, "print", first, ANSWER)
    await wait_until_async(lambda: _is_gone(aredis))
    again = await store.claim(SLOT, "another print")
    assert again.state == "mine" and again.seed != first.seed


def test_bodies_in_object_storage_go_when_their_time_is_over(object_store: ObjectStore) -> None:
    claim = Claim(state="mine", owner="p:1")
    old, young = object_key(SLOT, claim, 3600, 1_000_000.0), object_key(SLOT, claim, 7200 * 3, 1_000_000.0)
    for key in (old, young):
        object_store.put(key, b"x")
    assert delete_expired(object_store, 1_000_000.0 + 3599) == 0
    assert delete_expired(object_store, 1_000_000.0 + 2 * 3600) == 1
    assert object_store.head(old) is None and object_store.head(young) is not None


@asynccontextmanager
async def full_redis(tmp_path: Path) -> AsyncIterator[tuple[redis_async.Redis, Idempotency, Claim]]:
    """A Redis that became full after a claim was made."""
    server = EmbeddedValkey(tmp_path)
    with running(server.command(), tmp_path / "valkey.log", server.environment(), 1.0):
        server.wait_ready(20)
        redis = connect_async(server.redis_url)
        store = claims(redis)
        claim = await store.claim(SLOT, "print")
        await redis.config_set("maxmemory", 1)
        try:
            yield redis, store, claim
        finally:
            await redis.aclose()


async def test_a_full_redis_takes_no_claim_but_keeps_small_answers(tmp_path: Path) -> None:
    async with full_redis(tmp_path) as (_, store, claim):
        with pytest.raises(StoreFull):
            await store.claim(slot_of("k1", "invoke", "embed", b"another"), "print")
        with pytest.raises(StoreFull):
            await store.keep(SLOT, "print", claim, msgspec.structs.replace(ANSWER, body=b"x" * 100_000))
        assert await store.keep(SLOT, "print", claim, msgspec.structs.replace(ANSWER, stored="idempotency/x")) is True


async def _is_gone(aredis: redis_async.Redis) -> bool:
    return not await aredis.exists(keys.idempotency(SLOT.name))
