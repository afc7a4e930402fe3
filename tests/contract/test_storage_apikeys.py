"""API keys at rest: only hashes, created once, revoked everywhere."""

from __future__ import annotations

import hashlib

import pytest
import redis as redis_sync

from samovar.errors import InvalidInput, NotFound
from samovar_storage import keys
from samovar_storage.apikeys import ApiKeys, new_token, object_key, split_token
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
        message = subscription.get_message(timeout=5)
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


@pytest.mark.parametrize(
    "token", ["", "sv_", "sv_abc_def", "xx_" + "0" * 12 + "_" + "s" * 40, "sv_" + "0" * 12 + "_short"]
)
def test_a_malformed_token_is_refused_without_repeating_it(token: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        split_token(token)
    assert not token or len(token) < 5 or token not in caught.value.detail
