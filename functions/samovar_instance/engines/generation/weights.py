"""How the weights of a model's products lie in memory: also in tiles, where that makes products of few rows faster.

    weight [out, in] as saved      one row, or many: read where it lies
    tiles  [tiles, in, columns]    2 to MAX_ROWS rows: a product of each tile, the library packs nothing anew

Measured with MKL, fp32, on one AVX-512 core: products of 2 to 16 rows take 15 to 35 % less time than with weights as
saved, of 32 to 128 rows 10 to 25 % (docs/generation.md has the table). Tiles are the process's own memory, shared with
its forks; the file's pages are shared with everybody and stay in use. This module does not know what a model is for.
"""

from __future__ import annotations

import logging
import mmap
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

log = logging.getLogger(__name__)

MAX_ROWS = 160
MIN_COLUMNS, MAX_COLUMNS, ALIGNED = 64, 192, 16  # of a tile; numbers in a cache line


class TiledLinear(nn.Linear):
    """A linear layer that has its weight in tiles, too: float32 [tiles, in, columns]."""

    tiles: Tensor

    def forward(self, input: Tensor) -> Tensor:
        """Return what `nn.Linear` does, to rounding. input: float32 [.., in]."""
        num_rows = input.numel() // self.in_features
        if not 2 <= num_rows <= MAX_ROWS:
            return functional.linear(input, self.weight, self.bias)
        rows = input.reshape(1, num_rows, self.in_features).expand(len(self.tiles), -1, -1)
        out = torch.bmm(rows, self.tiles).transpose(0, 1).reshape(*input.shape[:-1], self.out_features)
        return out if self.bias is None else out + self.bias


def num_columns(num_out: int) -> int:
    """Return the columns of a tile of `num_out` outputs, 0 if they cannot be cut into equal tiles of a good size."""
    sizes = range(MAX_COLUMNS, MIN_COLUMNS - 1, -ALIGNED)
    return next((size for size in sizes if num_out % size == 0), 0)


def tile(model: Any, max_bytes: int) -> bool:
    """Give a model's float32 linear layers their weights in tiles, too; no parameter changes.

    A layer that cannot be cut stays as it is; so do all if weights are of another type, the tiles were above
    `max_bytes`, or the process may not allocate them. What has tiles already keeps them.
    Args:
        model: on a CPU. max_bytes: >= 0.
    Returns: whether all layers but the head read their weights fast now (GPT-2's do as they are saved).
    """
    plain = [module for module in model.modules() if type(module) is nn.Linear]
    if all(type(each.weight) is nn.Parameter and each.weight.dtype == torch.float32 for each in plain):
        layers = [each for each in plain if num_columns(each.out_features)]
        num_bytes = sum(each.weight.numel() for each in layers) * torch.float32.itemsize
        if 0 < num_bytes <= max_bytes:
            _cut(layers, num_bytes)
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    return all(type(each) is TiledLinear or each is head for each in plain)


def _cut(layers: list[nn.Linear], num_bytes: int) -> None:
    try:
        memory = _huge_pages(num_bytes)
    except OSError as error:
        log.info("weights have no tiles: %s", error)
        return
    room, first = torch.frombuffer(memory, dtype=torch.float32), 0
    for layer in layers:
        columns = num_columns(layer.out_features)
        tiles = room[first : first + layer.weight.numel()].view(-1, layer.in_features, columns)
        tiles.copy_(layer.weight.detach().reshape(-1, columns, layer.in_features).transpose(1, 2))
        layer.__class__ = TiledLinear
        layer.tiles = tiles
        first += layer.weight.numel()  # columns of whole cache lines: the next one begins with one


def _huge_pages(num_bytes: int) -> mmap.mmap:
    """Return memory of this process and its forks; huge pages, where there are some, save 3 % of a step."""
    memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        memory.madvise(mmap.MADV_HUGEPAGE)
    return memory
