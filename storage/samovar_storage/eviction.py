"""What leaves the node cache when room is needed: least recently used first, pinned never. Pure.

This module does not know files, locks or clocks.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Entry:
    """One evictable item. name: as pins spell it. used_at_s: when it was last wanted."""

    name: str
    size_bytes: int
    used_at_s: float


def choose(
    entries: Sequence[Entry], pinned: Collection[str], used_bytes: int, needed_bytes: int, max_bytes: int
) -> list[Entry] | None:
    """Return what to evict, oldest first, so that `needed_bytes` more fit under `max_bytes`.

    Args:
        used_bytes: what the cap counts now, the entries included.
    Returns: an empty list when there is room already; None when even everything unpinned is not enough.
    Source: least recently used by bytes, ties by name.
    """
    excess_bytes = used_bytes + needed_bytes - max_bytes
    chosen: list[Entry] = []
    for entry in sorted(entries, key=lambda entry: (entry.used_at_s, entry.name)):
        if excess_bytes <= 0:
            return chosen
        if entry.name not in pinned:
            chosen.append(entry)
            excess_bytes -= entry.size_bytes
    return chosen if excess_bytes <= 0 else None
