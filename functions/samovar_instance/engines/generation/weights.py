"""How the weights of a model's products lie in memory: transposed, where that makes products faster.

    row = hidden @ weight.T        weight [out, in] as saved: each step reorders what it reads
                                   the same numbers lying as [in, out]: read as they lie

Measured with MKL, fp32, on one AVX-512 core: 10 to 25 % of the time of products of 10 to 15 and of 24 to 128 rows,
nothing at 16 and little at 256; those of 5 to 15 rows need no padding. The copy is the process's own memory, shared
with its forks, where the file's pages would be shared with everybody; the file's are not read again. This module does
not know what a model is used for.
"""

from __future__ import annotations

import logging
import mmap
from collections import Counter
from typing import Any

import torch
from torch import Tensor, nn

log = logging.getLogger(__name__)

ALIGNED = 16  # numbers: a cache line


def transpose(model: Any, max_bytes: int) -> bool:
    """Let the float32 weights of a model's linear layers lie transposed in memory; their values stay.

    Weights that something else uses too, such as an embedding, stay as they lie; so do all, if some are of another
    type, the copy were above `max_bytes`, or the process may not allocate it.
    Args:
        model: on a CPU. max_bytes: >= 0.
    Returns: whether the layers' products are of the faster kind now.
    """
    uses = Counter(id(parameter) for _, parameter in model.named_parameters(remove_duplicate=False))
    own = [module.weight for module in model.modules() if type(module) is nn.Linear and uses[id(module.weight)] == 1]
    if any(type(weight) is not nn.Parameter or weight.dtype != torch.float32 for weight in own):
        return False  # of 8 bits they are of a class of their own
    rows = [weight for weight in own if not weight.t().is_contiguous()]
    num_bytes = sum(map(_room, rows)) * torch.float32.itemsize
    if not rows or num_bytes > max_bytes:
        return not rows  # GPT-2's are saved like that
    try:
        memory = _huge_pages(num_bytes)
    except OSError as error:
        log.info("weights stay as they lie in their file: %s", error)
        return False
    _move(rows, torch.frombuffer(memory, dtype=torch.float32))
    return True


def _move(weights: list[Any], room: Tensor) -> None:
    first = 0
    for weight in weights:
        num_out, num_in = weight.shape
        place = room[first : first + weight.numel()].view(num_in, num_out)
        place.copy_(weight.detach().t())
        weight.data = place.t()
        first += _room(weight)


def _room(weight: Tensor) -> int:
    """Return how many numbers lie from this weight to the next."""
    return -(-weight.numel() // ALIGNED) * ALIGNED


def _huge_pages(num_bytes: int) -> mmap.mmap:
    """Return memory of this process and its forks; huge pages, where there are some, save 3 % of a step."""
    memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory
