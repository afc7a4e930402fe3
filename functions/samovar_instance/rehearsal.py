"""What a blank does while nobody needs it, so that the load it will be claimed for is quicker.

A fork shares its parent's pages and pays for each at first use, some microseconds a page. A load and a call of a tiny
model touch most of what the real ones will, and the heap is grown by what a load usually takes.
This module does not know versions, claims or frames.
"""

from __future__ import annotations

from samovar_instance import devices

HEAP_BYTES = 14 * 1024 * 1024  # a vocabulary of 30,000 words takes 12 MB


def rehearse() -> None:
    """Load and run a tiny model and grow the heap, 0.05 s of work; nothing of it can be seen later but its speed."""
    devices.warm_cpu()
    _grow_heap()


def _grow_heap() -> None:
    """Leave HEAP_BYTES of touched, free memory in malloc's heap, which keeps it (see the zygote)."""
    b"." * HEAP_BYTES
