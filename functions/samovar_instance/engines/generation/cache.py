"""Keys and values of all sequences: one tensor each per layer, of equal blocks.

Memory is anonymous and private: it is zero, and takes room only where a sequence wrote. A template that is forked
shares with its forks what it wrote itself, and what nobody wrote exists nowhere.
This module does not know who owns which block.
"""

from __future__ import annotations

import mmap
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True)
class LayerShape:
    """What one layer stores for a token."""

    num_heads: int
    key_dim: int
    value_dim: int
    dtype: torch.dtype

    @property
    def token_bytes(self) -> int:
        """Bytes of one token's keys and values."""
        return self.num_heads * (self.key_dim + self.value_dim) * self.dtype.itemsize


@dataclass(frozen=True, slots=True)
class LayerCache:
    """One layer. keys, values: [blocks * tokens of a block, heads, dim]."""

    keys: Tensor
    values: Tensor
    block_tokens: int

    def write(self, slots: Tensor, keys: Tensor, values: Tensor) -> None:
        """Store keys and values, [tokens, heads, dim], at slots, int64 [tokens]."""
        self.keys.index_copy_(0, slots, keys)
        self.values.index_copy_(0, slots, values)

    def read(self, blocks: Tensor) -> tuple[Tensor, Tensor]:
        """Return keys and values of blocks, int64 [rows, blocks], each as [rows, heads, tokens, dim]."""
        return self._gather(self.keys, blocks), self._gather(self.values, blocks)

    def clear(self, blocks: Tensor) -> None:
        """Make blocks, int64 [blocks], zero: what is not finite would reach whoever is given them next."""
        for flat in (self.keys, self.values):
            flat.view(-1, self.block_tokens, *flat.shape[1:]).index_fill_(0, blocks, 0)

    def _gather(self, flat: Tensor, blocks: Tensor) -> Tensor:
        heads, dim = flat.shape[1:]
        pages = flat.view(-1, self.block_tokens * heads * dim).index_select(0, blocks.flatten())
        return pages.view(len(blocks), -1, heads, dim).transpose(1, 2)


def allocate(shapes: dict[int, LayerShape], num_blocks: int, block_tokens: int, device: str) -> dict[int, LayerCache]:
    """Return empty caches, by layer, of `num_blocks` blocks each, all of it zero."""
    num_slots = num_blocks * block_tokens
    return {
        layer: LayerCache(
            _zeros((num_slots, shape.num_heads, shape.key_dim), shape.dtype, device),
            _zeros((num_slots, shape.num_heads, shape.value_dim), shape.dtype, device),
            block_tokens,
        )
        for layer, shape in shapes.items()
    }


def _zeros(shape: tuple[int, int, int], dtype: torch.dtype, device: str) -> Tensor:
    if device != "cpu":
        return torch.zeros(shape, dtype=dtype, device=device)
    num_bytes = shape[0] * shape[1] * shape[2] * dtype.itemsize
    memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    return torch.frombuffer(memory, dtype=dtype).view(shape)
