"""The audit log: what was changed by whom, as JSON lines under `audit/date=YYYY-MM-DD/` in object storage.

Entries wait in memory, bounded, until they are flushed: at most a second's worth is lost with the process. While the
store is away they are kept up to a cap; what does not fit is counted, and the count becomes an entry of its own. So is
what strangers ask beyond MAX_STRANGERS a flush: nobody without a key may fill the store.
Objects are named by the time of their flush and never rewritten. This module does not know what is worth an entry.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from threading import Lock
from typing import Any

import msgspec

from samovar.values import Struct
from samovar_storage.objects import ObjectStore

MAX_WAITING_BYTES = 8 << 20
MAX_STRANGERS = 100  # entries a flush of callers without a good key
DAY_S = 86_400.0
_PREFIX = "audit/"


class AuditEntry(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One call that changed something, or was refused. at_s: unix seconds. key_id: of the caller's API key, "" if it
    had none that is good. path: what was called. change: what was asked for, without secrets. gateway: who noted it."""

    at_s: float
    key_id: str
    method: str
    path: str
    status: int
    change: Any = None
    request_id: str = ""
    gateway: str = ""


class AuditLog:
    """One gateway's part of the log. `note` is for the event loop, `flush` and `read` block; safe between threads."""

    def __init__(self, store: ObjectStore, gateway_id: str, clock: Callable[[], float] = time.time) -> None:
        self.num_dropped = 0
        self._store = store
        self._gateway = gateway_id
        self._clock = clock
        self._waiting: list[bytes] = []
        self._num_bytes = 0
        self._num_strangers = 0  # since the last flush
        self._untold = 0  # dropped since the last entry that says so
        self._lock = Lock()
        self._flushing = Lock()
        self._num_objects = 0

    def note(self, entry: AuditEntry) -> None:
        """The entry waits to be flushed, or is dropped and counted if too much waits. Never raises, never waits."""
        line = msgspec.json.encode(msgspec.structs.replace(entry, gateway=self._gateway), enc_hook=str) + b"\n"
        with self._lock:
            is_stranger = not entry.key_id
            if self._num_bytes + len(line) > MAX_WAITING_BYTES or self._num_strangers + is_stranger > MAX_STRANGERS:
                self.num_dropped += 1
                self._untold += 1
                return
            self._num_strangers += is_stranger
            self._waiting.append(line)
            self._num_bytes += len(line)

    def is_empty(self) -> bool:
        """Return whether nothing waits."""
        return not self._waiting

    def flush(self) -> int:
        """Everything noted so far is in object storage; return how many entries went there.

        Raises StoreUnavailable; then all of it still waits, and a later flush may store some of it twice.
        """
        with self._flushing:
            with self._lock:
                lines, untold = [*self._waiting], self._untold
            if not lines:
                return 0
            if untold:
                lines.append(self._dropped(untold))
            self._store.put(self._name(), b"".join(lines))
            with self._lock:
                taken = lines[: len(lines) - bool(untold)]
                del self._waiting[: len(taken)]
                self._num_bytes -= sum(map(len, taken))
                self._untold -= untold
                self._num_strangers = 0
            return len(lines)

    def read(self, since_s: float, limit: int) -> list[AuditEntry]:
        """Return the newest `limit` entries of all gateways from unix second `since_s` on, oldest first.

        What other gateways noted in the last second may be missing. Raises StoreUnavailable.
        """
        found: list[AuditEntry] = []
        for key in self._names_since(since_s):
            if len(found) == limit and key < f"{_PREFIX}{_stamp(found[0].at_s)}":
                break  # whatever was flushed before the oldest of enough entries is older still
            lines = self._store.get(key)[0].splitlines()
            entries = (msgspec.json.decode(line, type=AuditEntry) for line in lines)
            found += (entry for entry in entries if entry.at_s >= since_s)
            found = sorted(found, key=lambda entry: entry.at_s)[-limit:]
        return found

    def _names_since(self, since_s: float) -> Iterator[str]:
        """Yield the objects that were flushed since then, newest first."""
        day_s, oldest = self._clock(), _stamp(since_s)
        while _date(day_s) >= _date(since_s):
            names = [info.key for info in self._store.list(f"{_PREFIX}date={_date(day_s)}/")]
            yield from (name for name in reversed(names) if name > f"{_PREFIX}{oldest}")
            day_s -= DAY_S

    def _name(self) -> str:
        self._num_objects += 1
        return f"{_PREFIX}{_stamp(self._clock())}-{self._gateway}-{self._num_objects}.jsonl"

    def _dropped(self, count: int) -> bytes:
        change = {"dropped": count, "why": "object storage was away for too long, or too many came without a good key"}
        entry = AuditEntry(
            at_s=self._clock(), key_id="", method="", path="", status=0, change=change, gateway=self._gateway
        )
        return msgspec.json.encode(entry) + b"\n"


def _date(unix_s: float) -> str:
    return time.strftime("%Y-%m-%d", time.gmtime(unix_s))


def _stamp(unix_s: float) -> str:
    """Return a name that sorts by time: its date's folder and the time of day to the millisecond."""
    return f"date={_date(unix_s)}/{time.strftime('%H%M%S', time.gmtime(unix_s))}{int(unix_s * 1000) % 1000:03d}"
