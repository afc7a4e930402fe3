"""The memory ledger: measured peaks per version and device, what live instances hold, and the check against the driver.

A declared size is only a guess; what an instance was seen to use is what the next one is expected to use. Process exit
is the only release: after it the driver must agree, and what it still counts stays unavailable until it does.
This module does not know NVML or /proc: numbers are passed in.
"""

from __future__ import annotations

from dataclasses import dataclass

SLACK_BYTES = 256 << 20  # driver pools that belong to nobody in particular
CONTEXT_BYTES = 768 << 20  # most that one process's device context takes beside what it allocates


@dataclass(frozen=True, slots=True)
class Discrepancy:
    """The driver counts `missing_bytes` more on `device` than the ledger's holders explain."""

    device: str
    driver_used_bytes: int
    held_bytes: int
    missing_bytes: int


class Ledger:
    """Peaks by (version, kind of device) and holdings by instance. kind is "cpu" or "gpu"."""

    def __init__(self) -> None:
        self._peaks: dict[tuple[str, str], int] = {}
        self._held: dict[str, dict[str, int]] = {}
        self._missing: dict[str, int] = {}
        self._foreign: dict[str, int] = {}

    def foreign(self, device: str, used_bytes: int) -> None:
        """Record what others used on `device` before we placed anything there."""
        self._foreign[device] = used_bytes

    def learn(self, ref: str, kind: str, used_bytes: int) -> None:
        """Record that an instance of `ref` was seen to use `used_bytes`; the peak only rises."""
        key = (ref, kind)
        self._peaks[key] = max(self._peaks.get(key, 0), used_bytes)

    def expected(self, ref: str, kind: str, declared_bytes: int) -> int:
        """Return what one more instance of `ref` is expected to use: the learned peak, else `declared_bytes`."""
        return self._peaks.get((ref, kind), declared_bytes)

    def hold(self, instance_id: str, ref: str, devices: tuple[str, ...], each_bytes: int) -> None:
        """Reserve `each_bytes` on every device for an instance, from placement until `release`."""
        self._held[instance_id] = {device: self.expected(ref, "gpu", each_bytes) for device in devices}

    def measured(self, instance_id: str, ref: str, used_bytes: int) -> None:
        """Replace an instance's reservation by what it was seen to use, if that is more."""
        self.learn(ref, "gpu", used_bytes)
        for device, held in self._held.get(instance_id, {}).items():
            self._held[instance_id][device] = max(held, used_bytes)

    def release(self, instance_id: str) -> tuple[str, ...]:
        """Drop an instance's reservations; return the devices whose driver must now be asked."""
        return tuple(self._held.pop(instance_id, {}))

    def held_bytes(self, device: str) -> int:
        """Return what live instances hold on `device`."""
        return sum(held.get(device, 0) for held in self._held.values())

    def check(self, device: str, driver_used_bytes: int, num_processes: int = 0) -> Discrepancy | None:
        """Compare with the driver; return the discrepancy, kept unavailable until a later check clears it, or None.

        num_processes: ours with a context there, blanks included.
        """
        held = self.held_bytes(device) + num_processes * CONTEXT_BYTES + self._foreign.get(device, 0)
        missing = driver_used_bytes - held
        if missing <= SLACK_BYTES:
            self._missing.pop(device, None)
            return None
        self._missing[device] = missing
        return Discrepancy(device, driver_used_bytes, held, missing)

    def free_bytes(self, device: str, total_bytes: int, driver_free_bytes: int) -> int:
        """Return what may be placed on `device`: the smaller of the driver's view and the ledger's."""
        own = total_bytes - self.held_bytes(device) - self._missing.get(device, 0)
        return max(0, min(own, driver_free_bytes))

    def forget(self, ref: str) -> None:
        """Drop what was learned about a version that no longer exists."""
        for key in [key for key in self._peaks if key[0] == ref]:
            del self._peaks[key]
