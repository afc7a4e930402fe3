"""API keys at rest: `sv_<key id>_<secret>`, of which only the SHA-256 of the secret is kept.

Object storage holds `keys/<key id>.json`, Redis the index that gateways mirror. Scopes: `admin` may do everything;
`deploy` may change functions; `invoke` may call them. `deploy` does not imply `invoke`: a CI job that deploys has
no business calling models; ask for both where both are meant. A key bound to functions reaches only those.
This module does not know how a header is verified (`samovar_gateway/auth.py`).
"""

from __future__ import annotations

import hashlib
import re
import secrets
import time
from collections.abc import Callable, Sequence

import msgspec
import redis as redis_sync

from samovar.errors import InvalidInput, NotFound
from samovar.values import NAME_PATTERN
from samovar_storage import keys
from samovar_storage.failures import translating
from samovar_storage.objects import ObjectStore, put_or_same
from samovar_storage.records import ApiKeyRecord, dumps, loads

SCOPES = ("admin", "deploy", "invoke")
_TOKEN = re.compile(r"^sv_([0-9a-f]{12})_([0-9A-Za-z_-]{20,})$")
_KEY_ID = re.compile(r"^[0-9a-f]{12}$")


def new_token() -> str:
    """Return a fresh key: 48 bits of id, 192 bits of secret."""
    return f"sv_{secrets.token_hex(6)}_{secrets.token_hex(24)}"


def split_token(token: str) -> tuple[str, str]:
    """Return (key id, SHA-256 of the secret, hex) of a key. Raises InvalidInput, without repeating it."""
    found = _TOKEN.match(token)
    if found is None:
        raise InvalidInput("an API key has the form sv_<12 hex digits>_<secret of 20 or more characters>")
    return found[1], hashlib.sha256(found[2].encode()).hexdigest()


class ApiKeys:
    """Creates, lists and revokes keys. Blocking: for worker threads."""

    def __init__(self, store: ObjectStore, redis: redis_sync.Redis, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._redis = redis
        self._clock = clock

    def create(
        self, name: str, scopes: Sequence[str], functions: Sequence[str] = (), token: str | None = None
    ) -> tuple[ApiKeyRecord, str]:
        """A key exists afterwards and gateways know it. Return its record and the key itself, shown this once.

        Args:
            scopes: some of admin, deploy, invoke. functions: names it is bound to, empty = all.
            token: a key made before (`new_token`), such as the one in the data folder's secrets; creating the same
                one again changes nothing.
        Raises: InvalidInput.
        """
        _check(name, scopes, functions)
        token = token or new_token()
        key_id, secret_sha256 = split_token(token)
        record = ApiKeyRecord(
            key_id=key_id,
            name=name,
            secret_sha256=secret_sha256,
            scopes=sorted(set(scopes)),
            functions=sorted(set(functions)),
            created_at_s=self._clock(),
        )
        if not put_or_same(self._store, object_key(key_id), dumps(record)):
            record = loads(self._store.get(object_key(key_id))[0], ApiKeyRecord)
            if record.secret_sha256 != secret_sha256:
                raise InvalidInput("another API key has this id")
        self._index(record)
        return record, token

    def list(self) -> list[ApiKeyRecord]:
        """Return every key, oldest first, from the index."""
        with translating("the API keys"):
            rows = self._redis.hgetall(keys.API_KEYS)
        records = (loads(data, ApiKeyRecord) for data in rows.values())
        return sorted(records, key=lambda record: (record.created_at_s, record.key_id))

    def revoke(self, key_id: str) -> None:
        """The key exists nowhere and gateways have been told. Raises NotFound."""
        if not _KEY_ID.match(key_id) or self._store.head(object_key(key_id)) is None:
            raise NotFound(f"no API key with the id {key_id!r}")
        self._store.delete(object_key(key_id))
        with translating("the API keys"), self._redis.pipeline(transaction=True) as pipe:
            pipe.hdel(keys.API_KEYS, key_id)
            pipe.publish(keys.CHANNEL_API_KEYS, key_id)
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
            pipe.publish(keys.CHANNEL_API_KEYS, "")
            pipe.execute()
        return len(found)

    def _index(self, record: ApiKeyRecord) -> None:
        with translating("the API keys"), self._redis.pipeline(transaction=True) as pipe:
            pipe.hset(keys.API_KEYS, record.key_id, dumps(record))
            pipe.publish(keys.CHANNEL_API_KEYS, record.key_id)
            pipe.execute()


def object_key(key_id: str) -> str:
    """Return where a key's record is in object storage."""
    return f"keys/{key_id}.json"


def _check(name: str, scopes: Sequence[str], functions: Sequence[str]) -> None:
    if not 1 <= len(name) <= 100 or not name.isprintable():
        raise InvalidInput("a key's name has 1-100 printable characters", path="$.name")
    if not scopes or not set(scopes) <= set(SCOPES):
        raise InvalidInput(f"scopes are some of {', '.join(SCOPES)}", path="$.scopes")
    for function in functions:
        if not NAME_PATTERN.match(function):
            raise InvalidInput(f"{function!r} cannot be a function's name", path="$.functions")
    if "admin" in scopes and functions:
        raise InvalidInput("an admin key cannot be bound to functions", path="$.functions")
