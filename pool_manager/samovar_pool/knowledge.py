"""What the manager remembers about versions between passes: scalers, learned sizes and boot times, back-off.

Losing it costs precision, never correctness: a new manager starts from defaults. No I/O; `now_s` is passed in.
This module does not know Redis or processes.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection

from samovar_pool.autoscaler import VersionScaler
from samovar_pool.backoff import Backoff
from samovar_pool.eviction import ThrashAlarm
from samovar_pool.ledger import Ledger

_SMOOTHING = 0.3
DEFAULT_BOOT_S = 1.0


class Knowledge:
    """Per version, by ref. claims: the times of recent claims of blanks, by device. to_prepare: versions just deployed
    that are to get a template before anybody calls them, oldest first. prepared: those that have one, uncalled.
    """

    def __init__(self) -> None:
        self.scalers: dict[str, VersionScaler] = {}
        self.ledger = Ledger()
        self.backoff = Backoff()
        self.thrash = ThrashAlarm()
        self.claims: dict[str, deque[float]] = {}
        self.missing_since_s: dict[str, float] = {}
        self.may_template: set[str] = set()
        self.to_prepare: dict[str, None] = {}
        self.prepared: dict[str, None] = {}
        self._boot_s: dict[str, float] = {}

    def scaler(self, ref: str, now_s: float) -> VersionScaler:
        """Return the version's scaler, made at first use."""
        if ref not in self.scalers:
            self.scalers[ref] = VersionScaler(now_s)
        return self.scalers[ref]

    def learn_boot(self, ref: str, boot_ms: dict[str, float]) -> None:
        """Blend one measured boot into the version's expected boot time."""
        seconds = sum(boot_ms.values()) / 1000
        known = self._boot_s.get(ref)
        self._boot_s[ref] = seconds if known is None else known + _SMOOTHING * (seconds - known)

    def boot_s(self, ref: str) -> float:
        """Return how long a boot of the version is expected to take."""
        return self._boot_s.get(ref, DEFAULT_BOOT_S)

    def has_booted(self, ref: str) -> bool:
        """Return whether the version has been ready on this node."""
        return ref in self._boot_s

    def claimed(self, device: str, now_s: float) -> None:
        """Count the claim of a blank of `device`."""
        self.claims.setdefault(device, deque()).append(now_s)

    def claim_ms(self, ref: str, now_s: float) -> float:
        """Return how long the version has been missing an instance, in milliseconds."""
        return max(0.0, now_s - self.missing_since_s.get(ref, now_s)) * 1000

    def forget(self, ref: str) -> None:
        """Drop everything about a version that is unrouted and has nothing left."""
        for known in (self.scalers, self._boot_s, self.missing_since_s):
            known.pop(ref, None)
        self.may_template.discard(ref)
        self.to_prepare.pop(ref, None)
        self.prepared.pop(ref, None)
        self.backoff.succeed(ref)
        self.ledger.forget(ref)

    def prune(self, now_s: float, running: Collection[str]) -> None:
        """Drop the scalers of versions that nobody wanted lately and that have nothing running: new ones would decide
        the same."""
        quiet = [ref for ref, scaler in self.scalers.items() if ref not in running and scaler.is_quiet(now_s)]
        for ref in quiet:
            del self.scalers[ref]
