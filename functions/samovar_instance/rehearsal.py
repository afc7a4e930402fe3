"""What a fork does while nobody needs it, so that what it will be needed for is quicker.

A fork shares its parent's pages and pays for each at first use, some microseconds a page. In a blank, a load and a call
of a tiny model touch most of what the real ones will, and the heap is grown by what a load usually takes. In a fork of
a template it is a call of the version itself. This module does not know claims or frames.
"""

from __future__ import annotations

from samovar_instance import devices, loader, serving
from samovar_instance.loader import Loaded

HEAP_BYTES = 14 * 1024 * 1024  # a vocabulary of 30,000 words takes 12 MB


def rehearse() -> None:
    """Load and run a tiny model and grow the heap, 0.05 s of work; nothing of it can be seen later but its speed."""
    devices.warm_cpu()
    _grow_heap()


def rehearse_call(loaded: Loaded) -> None:
    """Answer the version's example, if it has one, and start and end a serving thread.

    Of ours, nothing of it can be seen later but its speed: random numbers go on as if it had not been. User code sees
    one more warm-up. Raises whatever the handler raises.
    """
    with devices.random_state_kept():
        loader.answer_example(loaded)
    serving.rehearse()


def _grow_heap() -> None:
    """Leave HEAP_BYTES of touched, free memory in malloc's heap, which keeps it (see the zygote)."""
    b"." * HEAP_BYTES
