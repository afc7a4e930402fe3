"""API keys at rest: only hashes, created once, revoked everywhere."""

from __future__ import annotations

import hashlib

import pytest
import redis as redis_sync
import redis.asyncio as redis_async

from samovar.errors import InvalidInput, NotFound
from samovar_storage import keys
from samovar_storage.apikeys import ApiKeys, KeyTerms, edition, new_token, note_used, object_key, split_token
from samovar_storage.objects import ObjectStore
from support.listening import listening


@pytest.fixture
def api_keys(object_store: ObjectStore, redis: redis_sync.Redis) -> ApiKeys:
    return ApiKeys(object_store, redis)


def test_a_key_is_kept_as_a_hash_only(api_keys: ApiKeys, object_store: ObjectStore, redis: redis_sync.Redis) -> None:
    record, token = api_keys.create("ci", ["invoke", "deploy", "deploy"], ["embed"])
    prefix, key_id, secret = token.split("_")
    assert (prefix, key_id) == ("sv", record.key_id)
    assert record.secret_sha256 == hashlib.sha256(secret.encode()).hexdigest()
    assert record.scopes == ["deploy", "invoke"] and record.functions == ["embed"]
    stored = object_store.get(object_key(key_id))[0]
    indexed = redis.hget(keys.API_KEYS, key_id)
    assert stored == indexed and secret.encode() not in stored
    assert api_keys.list() == [record]


def test_the_same_token_twice_is_one_key(api_keys: ApiKeys) -> None:
    token = new_token()
    first, _ = api_keys.create("admin", ["admin"], token=token)
    again, _ = api_keys.create("admin", ["admin"], token=token)
    assert first == again and len(api_keys.list()) == 1
    with pytest.raises(InvalidInput):
        api_keys.create("admin", ["admin"], token=token[:16] + "x" * 40)


def test_a_revoked_key_is_gone_everywhere_and_said_so(
    api_keys: ApiKeys, object_store: ObjectStore, redis: redis_sync.Redis
) -> None:
    record, _ = api_keys.create("ci", ["deploy"])
    with listening(redis, keys.CHANNEL_API_KEYS) as subscription:
        api_keys.revoke(record.key_id)
        message = subscription.get_message(timeout=60)
    assert message is not None and message["data"] == record.key_id.encode()
    assert object_store.head(object_key(record.key_id)) is None and api_keys.list() == []
    for key_id in (record.key_id, "../../functions"):
        with pytest.raises(NotFound):
            api_keys.revoke(key_id)


def test_a_rebuild_brings_back_what_object_storage_has(
    api_keys: ApiKeys, object_store: ObjectStore, redis: redis_sync.Redis
) -> None:
    record, _ = api_keys.create("ci", ["deploy"])
    object_store.put("keys/broken.json", b"{")
    redis.delete(keys.API_KEYS)
    redis.hset(keys.API_KEYS, "forged", b"{}")
    assert api_keys.rebuild() == 1
    assert api_keys.list() == [record]


@pytest.mark.parametrize(
    ("name", "scopes", "functions"),
    [
        ("", ["invoke"], []),
        ("x" * 101, ["invoke"], []),
        ("bell\a", ["invoke"], []),
        ("ci", [], []),
        ("ci", ["root"], []),
        ("ci", ["invoke"], ["Not A Name"]),
        ("ci", ["admin"], ["embed"]),
    ],
)
def test_impossible_keys_are_refused(api_keys: ApiKeys, name: str, scopes: list[str], functions: list[str]) -> None:
    with pytest.raises(InvalidInput):
        api_keys.create(name, scopes, functions)


TERMS: dict[str, KeyTerms] = {
    "no rate": KeyTerms(rate="fast"),
    "a burst without a rate": KeyTerms(burst=5),
    "a negative burst": KeyTerms(rate="5/s", burst=-1),
    "no such priority": KeyTerms(max_priority="urgent"),
    "expired before it began": KeyTerms(expires_at_s=1.0),
}


@pytest.mark.parametrize("terms", TERMS.values(), ids=TERMS)
def test_impossible_terms_are_refused(api_keys: ApiKeys, terms: KeyTerms) -> None:
    with pytest.raises(InvalidInput):
        api_keys.create("ci", ["invoke"], terms=terms)


async def test_every_change_replaces_the_mark(api_keys: ApiKeys, aredis: redis_async.Redis) -> None:
    marks = [await edition(aredis)]
    record, _ = api_keys.create("ci", ["invoke"])
    for change in (
        lambda: api_keys.rotate(record.key_id, 10),
        lambda: api_keys.revoke(record.key_id),
        api_keys.rebuild,
    ):
        marks.append(await edition(aredis))
        change()
    marks.append(await edition(aredis))
    assert len(set(marks)) == 5


def test_a_rotated_key_has_a_new_secret_and_for_a_while_the_old_one(api_keys: ApiKeys) -> None:
    terms = KeyTerms(rate="5/s", burst=9, max_priority="low", expires_at_s=9e9)
    record, token = api_keys.create("ci", ["invoke"], terms=terms)
    rotated, again = api_keys.rotate(record.key_id, overlap_s=60.0)
    assert again != token and split_token(again) == (record.key_id, rotated.secret_sha256)
    assert rotated.previous_sha256 == record.secret_sha256
    assert rotated.previous_until_s == pytest.approx(rotated.rotated_at_s + 60.0)
    assert (rotated.rate, rotated.burst, rotated.max_priority, rotated.expires_at_s) == ("5/s", 9, "low", 9e9)
    assert api_keys.list() == [rotated] and api_keys.get(record.key_id) == rotated
    ended, _ = api_keys.rotate(record.key_id, overlap_s=0.0)
    assert (ended.previous_sha256, ended.previous_until_s) == ("", 0.0)
    for key_id, overlap_s, error in ((record.key_id, -1.0, InvalidInput), ("0" * 12, 1.0, NotFound)):
        with pytest.raises(error):
            api_keys.rotate(key_id, overlap_s)


def test_a_key_from_the_settings_may_be_rotated(api_keys: ApiKeys) -> None:
    token = new_token()
    record, _ = api_keys.create("admin", ["admin"], token=token)
    rotated, _ = api_keys.rotate(record.key_id, overlap_s=0.0)
    again, _ = api_keys.create("admin", ["admin"], token=token)
    assert again == rotated, "the next start with the old secret changes nothing"


def test_a_record_from_before_there_were_terms_still_works(
    api_keys: ApiKeys, object_store: ObjectStore, redis: redis_sync.Redis
) -> None:
    old = b'{"key_id":"00000000000a","name":"old","secret_sha256":"ab","scopes":["invoke"],"functions":[]}'
    object_store.put(object_key("00000000000a"), old)
    assert api_keys.rebuild() == 1
    (record,) = api_keys.list()
    assert (record.rate, record.burst, record.max_priority, record.expires_at_s) == ("", 0, "high", 0.0)


async def test_when_keys_were_last_used(api_keys: ApiKeys, aredis: redis_async.Redis) -> None:
    record, _ = api_keys.create("ci", ["invoke"])
    assert api_keys.last_used() == {}
    await note_used(aredis, {})
    await note_used(aredis, {record.key_id: 1000.4})
    await note_used(aredis, {record.key_id: 2000.0})
    assert api_keys.last_used() == {record.key_id: 2000.0}
    api_keys.revoke(record.key_id)
    assert api_keys.last_used() == {}


@pytest.mark.parametrize(
    "token", ["", "sv_", "sv_abc_def", "xx_" + "0" * 12 + "_" + "s" * 40, "sv_" + "0" * 12 + "_short"]
)
def test_a_malformed_token_is_refused_without_repeating_it(token: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        split_token(token)
    assert not token or len(token) < 5 or token not in caught.value.detail
