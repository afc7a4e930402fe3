"""API keys at rest: `sv_<key id>_<secret>`, of which only the SHA-256 of the secret is kept.

Object storage holds `keys/<key id>.json`, Redis the index that gateways mirror. Scopes: `admin` may do everything;
`deploy` may change functions; `invoke` may call them. `deploy` does not imply `invoke`: a CI job that deploys has
no business calling models; ask for both where both are meant. A key bound to functions reaches only those.
Every change replaces the mark `sv:apikeys:edition` in the same transaction: who mirrors the keys need only compare it.
This module does not know how a header is verified (`samovar_gateway/auth.py`).
"""

from __future__ import annotations

import hashlib
import re
import secrets
import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import msgspec
import redis as redis_sync
import redis.asyncio as redis_async

from samovar.errors import DeployRefused, InvalidInput, NotFound
from samovar.policies import MAX_BURST, parse_rate
from samovar.values import NAME_PATTERN, Struct
from samovar_storage import keys
from samovar_storage.failures import translating
from samovar_storage.objects import ObjectStore, put_or_same
from samovar_storage.readable import readable_rows
from samovar_storage.records import ApiKeyRecord, dumps, loads

SCOPES = ("admin", "deploy", "invoke")
PRIORITIES = ("high", "normal", "low")
MAX_OVERLAP_S = 30 * 86_400.0
_TOKEN = re.compile(r"^sv_([0-9a-f]{12})_([0-9A-Za-z_-]{20,})\Z")
_KEY_ID = re.compile(r"^[0-9a-f]{12}\Z")


def new_token() -> str:
    """Return a fresh key: 48 bits of id, 192 bits of secret."""
    return f"sv_{secrets.token_hex(6)}_{secrets.token_hex(24)}"


def split_token(token: str) -> tuple[str, str]:
    """Return (key id, SHA-256 of the secret, hex) of a key. Raises InvalidInput, without repeating it."""
    found = _TOKEN.match(token)
    if found is None:
        raise InvalidInput("an API key has the form sv_<12 hex digits>_<secret of 20 or more characters>")
    return found[1], hashlib.sha256(found[2].encode()).hexdigest()


class KeyTerms(Struct, frozen=True, kw_only=True):
    """How a key may be used.

    rate: limit of its calls, such as "20/s", "" = none. burst: calls at once after a pause, 0 = one second's worth.
    max_priority: high, normal or low. expires_at_s: unix seconds, 0 = never.
    """

    rate: str = ""
    burst: int = 0
    max_priority: str = "high"
    expires_at_s: float = 0.0


NO_TERMS = KeyTerms()


class ApiKeys:
    """Creates, lists, rotates and revokes keys. Blocking: for worker threads."""

    def __init__(self, store: ObjectStore, redis: redis_sync.Redis, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._redis = redis
        self._clock = clock

    def create(
        self,
        name: str,
        scopes: Sequence[str],
        functions: Sequence[str] = (),
        token: str | None = None,
        terms: KeyTerms = NO_TERMS,
    ) -> tuple[ApiKeyRecord, str]:
        """A key exists afterwards and gateways know it. Return its record and the key itself, shown this once.

        Args:
            scopes: some of admin, deploy, invoke. functions: names it is bound to, empty = all.
            token: a key made before (`new_token`), such as the one in the data folder's secrets; creating the same
                one again changes nothing, also after it was rotated.
        Raises: InvalidInput.
        """
        now_s = self._clock()
        _check(name, scopes, functions)
        _check_terms(terms, now_s)
        token = token or new_token()
        key_id, secret_sha256 = split_token(token)
        record = ApiKeyRecord(
            key_id=key_id,
            name=name,
            secret_sha256=secret_sha256,
            scopes=sorted(set(scopes)),
            functions=sorted(set(functions)),
            created_at_s=now_s,
            rate=terms.rate,
            burst=terms.burst,
            max_priority=terms.max_priority,
            expires_at_s=terms.expires_at_s,
        )
        if not put_or_same(self._store, object_key(key_id), dumps(record)):
            record = self.get(key_id)
            if record.secret_sha256 != secret_sha256 and not record.rotated_at_s:
                raise InvalidInput("another API key has this id")
        self._index(record)
        return record, token

    def get(self, key_id: str) -> ApiKeyRecord:
        """Return a key's record from object storage. Raises NotFound."""
        return self._read(key_id)[0]

    def rotate(self, key_id: str, overlap_s: float) -> tuple[ApiKeyRecord, str]:
        """The key has a new secret; the one before ends after `overlap_s` seconds (0 to 30 days), older ones at once.

        Returns: the record and the new key, shown this once. Raises: NotFound; InvalidInput; Conflict when somebody
        else changed the key at the same time.
        """
        if not 0 <= overlap_s <= MAX_OVERLAP_S:
            raise InvalidInput("the overlap is 0 seconds to 30 days", path="$.overlap_s")
        old, etag = self._read(key_id)
        token = f"sv_{key_id}_{secrets.token_hex(24)}"
        now_s = self._clock()
        record = msgspec.structs.replace(
            old,
            secret_sha256=split_token(token)[1],
            rotated_at_s=now_s,
            previous_sha256=old.secret_sha256 if overlap_s else "",
            previous_until_s=now_s + overlap_s if overlap_s else 0.0,
        )
        self._store.put(object_key(key_id), dumps(record), if_match=etag)
        self._index(record)
        return record, token

    def list(self) -> list[ApiKeyRecord]:
        """Return every key, oldest first, from the index."""
        with translating("the API keys"):
            rows = self._redis.hgetall(keys.API_KEYS)
        return sorted(
            readable_rows("API key", rows, ApiKeyRecord).values(),
            key=lambda record: (record.created_at_s, record.key_id),
        )

    def last_used(self) -> dict[str, float]:
        """Return key id → when it was last used, unix seconds, up to 10 s old; keys never used are left out."""
        with translating("the API keys"):
            rows = self._redis.hgetall(keys.API_KEYS_USED)
        return {_text(key_id): float(used_s) for key_id, used_s in rows.items()}

    def revoke(self, key_id: str) -> None:
        """The key exists nowhere and gateways have been told. Raises NotFound."""
        self._read(key_id)
        self._store.delete(object_key(key_id))
        with translating("the API keys"), self._redis.pipeline(transaction=True) as pipe:
            pipe.hdel(keys.API_KEYS, key_id)
            pipe.hdel(keys.API_KEYS_USED, key_id)
            _announce(pipe, key_id)
            pipe.execute()

    def rebuild(self) -> int:
        """The index mirrors object storage afterwards. Returns the number of keys."""
        found: dict[str, bytes] = {}
        for info in self._store.list("keys/"):
            try:
                data, _ = self._store.get(info.key)
                found[loads(data, ApiKeyRecord).key_id] = data
            except (NotFound, msgspec.MsgspecError):
                # revoked meanwhile, or not a key: nobody can use it either way
                continue
        with translating("the API keys"), self._redis.pipeline(transaction=True) as pipe:
            pipe.delete(keys.API_KEYS)
            if found:
                pipe.hset(keys.API_KEYS, items=[part for pair in found.items() for part in pair])
            _announce(pipe, "")
            pipe.execute()
        return len(found)

    def _read(self, key_id: str) -> tuple[ApiKeyRecord, str]:
        """Return a key's record and the etag of its object. Raises NotFound."""
        try:
            if not _KEY_ID.match(key_id):
                raise NotFound("an API key's id has 12 hex digits")
            data, etag = self._store.get(object_key(key_id))
        except NotFound as error:
            raise NotFound(f"no API key with the id {key_id[:100]!r}") from error
        return loads(data, ApiKeyRecord), etag

    def _index(self, record: ApiKeyRecord) -> None:
        with translating("the API keys"), self._redis.pipeline(transaction=True) as pipe:
            pipe.hset(keys.API_KEYS, record.key_id, dumps(record))
            _announce(pipe, record.key_id)
            pipe.execute()


def object_key(key_id: str) -> str:
    """Return where a key's record is in object storage."""
    return f"keys/{key_id}.json"


async def read(redis: redis_async.Redis) -> tuple[bool, bytes, list[ApiKeyRecord]]:
    """Return whether the index mirrors object storage, its mark, and every key in it. Raises StoreUnavailable."""
    with translating("the API keys"):
        async with redis.pipeline(transaction=True) as pipe:
            pipe.exists(keys.REGISTRY_BUILT)
            pipe.get(keys.API_KEYS_EDITION)
            pipe.hgetall(keys.API_KEYS)
            is_built, mark, rows = await pipe.execute()
    return bool(is_built), mark or b"", [*readable_rows("API key", rows, ApiKeyRecord).values()]


async def edition(redis: redis_async.Redis) -> bytes:
    """Return the mark that every change of a key replaces, empty if there is none. Raises StoreUnavailable."""
    with translating("the API keys"):
        mark: bytes | None = await redis.get(keys.API_KEYS_EDITION)  # type: ignore[assignment]
    return mark or b""


async def note_used(redis: redis_async.Redis, used: Mapping[str, float]) -> None:
    """Those keys were last used at these unix seconds. Raises StoreUnavailable."""
    if used:
        with translating("the API keys"):
            await redis.hset(keys.API_KEYS_USED, mapping={key_id: f"{at_s:.0f}" for key_id, at_s in used.items()})


def _announce(pipe: Any, key_id: str) -> None:
    """Let whoever mirrors the keys know, whether they listen or look."""
    pipe.set(keys.API_KEYS_EDITION, secrets.token_hex(8))
    pipe.publish(keys.CHANNEL_API_KEYS, key_id)


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value


def _check(name: str, scopes: Sequence[str], functions: Sequence[str]) -> None:
    if not 1 <= len(name) <= 100 or not name.isprintable():
        raise InvalidInput("a key's name has 1-100 printable characters", path="$.name")
    if not scopes or not set(scopes) <= set(SCOPES):
        raise InvalidInput(f"scopes are some of {', '.join(SCOPES)}", path="$.scopes")
    for function in functions:
        if not NAME_PATTERN.match(function):
            raise InvalidInput(f"{function[:100]!r} cannot be a function's name", path="$.functions")
    if "admin" in scopes and functions:
        raise InvalidInput("an admin key cannot be bound to functions", path="$.functions")


def _check_terms(terms: KeyTerms, now_s: float) -> None:
    if terms.max_priority not in PRIORITIES:
        raise InvalidInput(f"max_priority is one of {', '.join(PRIORITIES)}", path="$.max_priority")
    if terms.expires_at_s and terms.expires_at_s <= now_s:
        raise InvalidInput("the key would have expired already", path="$.expires_at_s")
    try:
        if terms.rate:
            parse_rate(terms.rate)
    except DeployRefused as error:
        raise InvalidInput(error.detail, path="$.rate") from error
    if not 0 <= terms.burst <= MAX_BURST or (terms.burst and not terms.rate):
        raise InvalidInput(f"a burst is 1 to {MAX_BURST} and needs a rate", path="$.burst")
