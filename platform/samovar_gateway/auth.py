"""Who calls, and whether they may: API keys, `Authorization: Bearer sv_<key id>_<secret>`.

Only SHA-256 hashes of secrets are known here; a header that was verified once is remembered as a whole with the instant
until which it holds, so the next call with it costs one dictionary lookup. Every change of a key forgets what was
remembered. What another key owns does not exist for a key that is bound to functions.
This module does not know HTTP routes or where keys are stored.
"""

from __future__ import annotations

import hashlib
import hmac
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from samovar.errors import DeployRefused, Forbidden, FunctionNotFound, Unauthenticated, Unavailable
from samovar_dispatch.ask import HIGH, PRIORITIES
from samovar_dispatch.rates.gcra import Rate, rate_of
from samovar_storage.records import ApiKeyRecord

log = logging.getLogger(__name__)

MAX_REMEMBERED, MAX_REMEMBERED_BYTES = 10_000, 256  # a key takes about 70; white space may make a header longer
FOREVER_S = float("inf")
_NOBODY = hashlib.sha256(b"").hexdigest()


@dataclass(frozen=True, slots=True)
class Principal:
    """Whoever holds a key. functions: names it is bound to, None = all. may_invoke: has scope admin or invoke.

    until_s: unix seconds after which the header that was sent is no good. rate: limit of the key's calls, None = none.
    max_priority: no call of it is more important (`ask.HIGH` … `ask.LOW`; a larger number is less important).
    """

    key_id: str
    scopes: frozenset[str]
    functions: frozenset[str] | None
    may_invoke: bool
    until_s: float = FOREVER_S
    rate: Rate | None = None
    max_priority: int = HIGH

    def sees(self, function: str) -> bool:
        """Return whether the key covers a function, whatever its scopes."""
        return self.functions is None or function in self.functions

    def require_sight(self, function: str) -> None:
        """Raise FunctionNotFound unless the key covers `function`: nobody learns what others have."""
        if not self.sees(function):
            raise FunctionNotFound(f"there is no function named {function[:100]!r}")

    def require(self, scope: str, function: str | None = None) -> None:
        """Raise FunctionNotFound unless the key covers `function`, if given; Forbidden unless it has `scope`.

        Admin has all scopes.
        """
        if function is not None:
            self.require_sight(function)
        if scope not in self.scopes and "admin" not in self.scopes:
            raise Forbidden(f"this key lacks the scope {scope!r}", scope=scope)
        if function is None and self.functions is not None:
            raise Forbidden("this key is bound to some functions", functions=sorted(self.functions))


class KeyTable:
    """Every key by id. loaded: it was filled at least once. edition: of what it was filled with."""

    def __init__(self, clock: Callable[[], float] = time.time) -> None:
        self.loaded = False
        self.edition = b""
        self._clock = clock
        self._records: dict[str, ApiKeyRecord] = {}
        self._remembered: dict[bytes, Principal] = {}
        self._used: dict[str, float] = {}

    def replace(self, records: Iterable[ApiKeyRecord], edition: bytes = b"") -> None:
        """These are all the keys there are."""
        self._records = {record.key_id: record for record in records}
        self._remembered.clear()
        self.edition = edition
        self.loaded = True

    def authenticate(self, header: bytes | None) -> Principal:
        """Return who sent this Authorization header. Raises Unauthenticated; Unavailable until keys are known."""
        now_s = self._clock()
        principal = self._remembered.get(header)  # type: ignore[arg-type]
        if principal is None or principal.until_s <= now_s:
            if not self.loaded:
                raise Unavailable("this gateway is starting and does not know the API keys yet", retry_after_s=1.0)
            principal = self._verify(header or b"", now_s)
            self._remember(header or b"", principal)
        self._used[principal.key_id] = now_s
        return principal

    def _remember(self, header: bytes, principal: Principal) -> None:
        if len(header) > MAX_REMEMBERED_BYTES:
            return
        if len(self._remembered) >= MAX_REMEMBERED:
            self._remembered.clear()
        self._remembered[header] = principal

    def used(self) -> dict[str, float]:
        """Return what `take_used` would."""
        return dict(self._used)

    def take_used(self) -> dict[str, float]:
        """Return key id → when it was last used (unix seconds), of those used since the last time this was asked."""
        used, self._used = self._used, {}
        return used

    def _verify(self, header: bytes, now_s: float) -> Principal:
        scheme, _, token = header.partition(b" ")
        if scheme.lower() != b"bearer":
            raise Unauthenticated("send an API key as 'Authorization: Bearer sv_<key id>_<secret>'")
        prefix, _, rest = token.strip().partition(b"_")
        key_id, _, secret = rest.partition(b"_")
        record = self._records.get(key_id.decode("latin-1"))
        digest = hashlib.sha256(secret).hexdigest()
        # hashed and compared also when the id is unknown, so that both take the same time
        is_current = hmac.compare_digest(digest, record.secret_sha256 if record else _NOBODY)
        is_previous = hmac.compare_digest(digest, (record.previous_sha256 if record else "") or _NOBODY)
        if record is None or not (is_current or is_previous) or not secret or prefix != b"sv":
            raise Unauthenticated("the API key is not valid")
        until_s = record.expires_at_s or FOREVER_S
        if now_s >= until_s:
            raise Unauthenticated(f"the API key expired at {_utc(until_s)}: ask for another")
        if not is_current:
            until_s = min(until_s, record.previous_until_s)
            if now_s >= until_s:
                raise Unauthenticated(f"the API key was replaced; this old one ended at {_utc(until_s)}")
        return _principal(record, until_s)


def _principal(record: ApiKeyRecord, until_s: float) -> Principal:
    scopes = frozenset(record.scopes)
    return Principal(
        key_id=record.key_id,
        scopes=scopes,
        functions=frozenset(record.functions) if record.functions else None,
        may_invoke=bool(scopes & {"admin", "invoke"}),
        until_s=until_s,
        rate=_rate(record),
        max_priority=PRIORITIES.get(record.max_priority.encode(), HIGH),
    )


def _rate(record: ApiKeyRecord) -> Rate | None:
    try:
        return rate_of(record.rate, record.burst)
    except DeployRefused:
        log.error("API key %s has a rate that cannot be read; it is not limited", record.key_id)
        return None


def _utc(unix_s: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M UTC", time.gmtime(unix_s))
