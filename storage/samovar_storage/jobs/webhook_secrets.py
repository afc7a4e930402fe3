"""The secrets that webhooks are signed with, one for each API key: `webhook-secrets/<key id>.json` in object storage.

A secret is made when it is first asked for, by whoever asks first, and replaced with an overlap in which deliveries
carry both signatures. Unlike an API key's it is kept as it is: signing needs it. It never prints.
This module does not know who may see a secret.
"""

from __future__ import annotations

import base64
import secrets
import time
from collections.abc import Callable

import msgspec

from samovar.errors import Conflict, InvalidInput, NotFound
from samovar.values import Struct
from samovar.webhooks import PREFIX
from samovar_storage.apikeys import MAX_OVERLAP_S
from samovar_storage.objects import ObjectStore
from samovar_storage.records import dumps, loads

SECRET_BYTES = 24


class WebhookSecret(Struct, frozen=True, kw_only=True):
    """secret: `whsec_<base64>`. previous: the one before, good until `previous_until_s` (unix seconds), "" = none."""

    key_id: str
    secret: str
    created_at_s: float
    previous: str = ""
    previous_until_s: float = 0.0

    def in_force(self, now_s: float) -> list[str]:
        """Return the secrets to sign with at unix second `now_s`, the newest first."""
        return [self.secret, *([self.previous] if self.previous and now_s < self.previous_until_s else [])]

    def __repr__(self) -> str:
        return f"WebhookSecret({self.key_id})"


class WebhookSecrets:
    """Makes, reads and replaces secrets. Blocking: for worker threads. Raises StoreUnavailable."""

    def __init__(self, store: ObjectStore, clock: Callable[[], float] = time.time) -> None:
        self._store = store
        self._clock = clock

    def get(self, key_id: str) -> WebhookSecret:
        """Return the secret of an API key; it is made if there is none."""
        try:
            return self._read(key_id)[0]
        except NotFound:
            made = WebhookSecret(key_id=key_id, secret=_new(), created_at_s=self._clock())
        try:
            self._store.put(object_key(key_id), dumps(made), if_absent=True)
        except Conflict:
            return self._read(key_id)[0]
        return made

    def rotate(self, key_id: str, overlap_s: float) -> WebhookSecret:
        """The key has a new secret; the one before signs, too, for `overlap_s` seconds (0 to 30 days).

        Raises: InvalidInput; Conflict when somebody else replaced it at the same time.
        """
        if not 0 <= overlap_s <= MAX_OVERLAP_S:
            raise InvalidInput("the overlap is 0 seconds to 30 days", path="$.overlap_s")
        self.get(key_id)
        old, etag = self._read(key_id)
        now_s = self._clock()
        made = msgspec.structs.replace(
            old,
            secret=_new(),
            created_at_s=now_s,
            previous=old.secret if overlap_s else "",
            previous_until_s=now_s + overlap_s if overlap_s else 0.0,
        )
        self._store.put(object_key(key_id), dumps(made), if_match=etag)
        return made

    def _read(self, key_id: str) -> tuple[WebhookSecret, str]:
        data, etag = self._store.get(object_key(key_id))
        return loads(data, WebhookSecret), etag


def object_key(key_id: str) -> str:
    """Return where the secret of an API key is in object storage."""
    return f"webhook-secrets/{key_id}.json"


def _new() -> str:
    return PREFIX + base64.b64encode(secrets.token_bytes(SECRET_BYTES)).decode()
