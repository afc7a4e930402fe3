"""Torch and its devices, seen from inside an instance: threads, random state, contexts, peaks, broken contexts.

Works without torch: then there is only the CPU. This module does not know placement, ledgers or the driver.
"""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

_STICKY = ("CUDA error", "device-side assert", "illegal memory access", "cuBLAS", "CUBLAS_STATUS", "CUDNN_STATUS")


def _torch() -> Any:
    """Return torch if it is imported here, else None."""
    return sys.modules.get("torch")


def warm_cpu() -> None:
    """Load and run a tiny model on one thread, so that what a first time sets up is there when it matters.

    In a zygote that is before the first fork; in a blank, before it is claimed: what a load writes to is its own then.
    """
    torch = _torch()
    if torch is None:
        return
    torch.set_num_threads(1)
    x = torch.ones(4, 4)
    torch.nn.functional.normalize(x @ x + x, dim=1).tolist()
    loading = sys.modules.get("samovar.torch")
    if loading is not None:
        loading.prepare()


def set_num_threads(num_threads: int) -> None:
    """Let torch use `num_threads` threads (>= 1) for one operation."""
    torch = _torch()
    if torch is not None:
        torch.set_num_threads(num_threads)


def bring_up(device: str) -> None:
    """Create the context of `device` ("cpu" needs none). Raises RuntimeError if it cannot be used."""
    torch = _torch()
    if device == "cpu":
        return
    if torch is None:
        raise RuntimeError(f"{device} needs torch, which is not installed")
    torch.cuda.set_device(device)
    torch.zeros(1, device=device)


def reseed(inherited_seed: int | None = None) -> int | None:
    """Give this process random numbers of its own and return torch's seed (None without torch).

    A fork repeats its parent's numbers otherwise. With `inherited_seed`, a seed that user code has set since is kept.
    """
    torch, numpy = _torch(), sys.modules.get("numpy")
    if numpy is not None and inherited_seed is None:
        numpy.random.seed(int.from_bytes(os.urandom(4), "little"))
    if torch is None:
        return None
    if inherited_seed is not None and torch.default_generator.initial_seed() != inherited_seed:
        return inherited_seed
    seed = int.from_bytes(os.urandom(7), "little")
    torch.default_generator.manual_seed(seed)
    return seed


@contextmanager
def random_state_kept() -> Iterator[None]:
    """Have the generators of Python, numpy and torch go on afterwards as if nothing had been drawn or seeded."""
    torch, numpy = _torch(), sys.modules.get("numpy")
    python_state = random.getstate()
    numpy_state = numpy.random.get_state() if numpy is not None else None
    torch_state = torch.get_rng_state() if torch is not None else None
    try:
        yield
    finally:
        random.setstate(python_state)
        if numpy is not None:
            numpy.random.set_state(numpy_state)
        if torch is not None:
            torch.set_rng_state(torch_state)


def peak_memory_bytes() -> int:
    """Return the most device memory torch has held here, 0 on CPU."""
    torch = _torch()
    if torch is None or not torch.cuda.is_initialized():
        return 0
    return int(torch.cuda.max_memory_reserved())


def is_out_of_memory(error: BaseException) -> bool:
    """Return whether `error` says that memory ran out, on the host or a device; the process itself is fine."""
    if isinstance(error, MemoryError):
        return True
    kind = type(error)
    if kind.__name__ == "OutOfMemoryError" and kind.__module__.startswith("torch"):
        return True
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)


def is_context_broken(error: BaseException) -> bool:
    """Return whether the device context is beyond use: every later call would fail, only a new process helps."""
    if is_out_of_memory(error) or not isinstance(error, RuntimeError):
        return False
    return type(error).__name__ == "AcceleratorError" or any(sign in str(error) for sign in _STICKY)
