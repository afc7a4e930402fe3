"""Who calls, and whether they may: API keys, `Authorization: Bearer sv_<key id>_<secret>`.

Only SHA-256 hashes of secrets are known here; a header that was verified once is remembered as a whole, so the next
call with it costs one dictionary lookup. Every change of a key forgets what was remembered.
This module does not know HTTP routes or where keys are stored.
"""

from __future__ import annotations

import hashlib
import hmac
from collections.abc import Iterable
from dataclasses import dataclass

from samovar.errors import Forbidden, Unauthenticated, Unavailable
from samovar_storage.records import ApiKeyRecord

MAX_REMEMBERED = 10_000
_NOBODY = hashlib.sha256(b"").hexdigest()


@dataclass(frozen=True, slots=True)
class Principal:
    """Whoever holds a key. functions: names it is bound to, None = all. may_invoke: has scope admin or invoke."""

    key_id: str
    scopes: frozenset[str]
    functions: frozenset[str] | None
    may_invoke: bool

    def require(self, scope: str, function: str | None = None) -> None:
        """Raise Forbidden unless the key has `scope` (admin has all) and, if bound, covers `function`."""
        if scope not in self.scopes and "admin" not in self.scopes:
            raise Forbidden(f"this key lacks the scope {scope!r}", scope=scope)
        if self.functions is not None and (function is None or function not in self.functions):
            raise Forbidden("this key is bound to other functions", functions=sorted(self.functions))


class KeyTable:
    """Every key by id. loaded: it was filled at least once."""

    def __init__(self) -> None:
        self.loaded = False
        self._records: dict[str, ApiKeyRecord] = {}
        self._remembered: dict[bytes, Principal] = {}

    def replace(self, records: Iterable[ApiKeyRecord]) -> None:
        """These are all the keys there are."""
        self._records = {record.key_id: record for record in records}
        self._remembered.clear()
        self.loaded = True

    def authenticate(self, header: bytes | None) -> Principal:
        """Return who sent this Authorization header. Raises Unauthenticated; Unavailable until keys are known."""
        principal = self._remembered.get(header)  # type: ignore[arg-type]
        if principal is None:
            if not self.loaded:
                raise Unavailable("this gateway is starting and does not know the API keys yet", retry_after_s=1.0)
            principal = self._verify(header or b"")
            if len(self._remembered) >= MAX_REMEMBERED:
                self._remembered.clear()
            self._remembered[header or b""] = principal
        return principal

    def _verify(self, header: bytes) -> Principal:
        scheme, _, token = header.partition(b" ")
        if scheme.lower() != b"bearer":
            raise Unauthenticated("send an API key as 'Authorization: Bearer sv_<key id>_<secret>'")
        prefix, _, rest = token.strip().partition(b"_")
        key_id, _, secret = rest.partition(b"_")
        record = self._records.get(key_id.decode("latin-1"))
        expected = record.secret_sha256 if record else _NOBODY
        # hashed and compared also when the id is unknown, so that both take the same time
        matches = hmac.compare_digest(hashlib.sha256(secret).hexdigest(), expected)
        if record is None or not matches or not secret or prefix != b"sv":
            raise Unauthenticated("the API key is not valid")
        scopes = frozenset(record.scopes)
        functions = frozenset(record.functions) if record.functions else None
        return Principal(record.key_id, scopes, functions, may_invoke=bool(scopes & {"admin", "invoke"}))
