"""Which block of the cache holds which tokens: tables of blocks, shared by content, the least recently used given away.

    take ──► held (by 1 … n tables) ──► released ──► idle, if its content has a key: found again, or given away last
                                             └─────► free, if not

A block's key is a hash over all tokens up to its end, chained block by block, so that equal keys mean equal prefixes. A
chain begins with the table's salt: tables with other salts find nothing of each other.
Only full blocks have keys, and a full block is never written again: sharing needs no copying.
Source: PagedAttention (Kwon et al. 2023) and vLLM's automatic prefix caching. This module knows no tensors or models.
"""

from __future__ import annotations

import hashlib
from array import array
from collections.abc import Sequence
from dataclasses import dataclass, field


@dataclass(eq=False, slots=True)
class BlockTable:
    """The blocks of one sequence, in order. num_tokens: whose keys and values are stored; keys: of full blocks; salt:
    the same for those who may share blocks."""

    blocks: list[int] = field(default_factory=list)
    keys: list[bytes] = field(default_factory=list)
    num_tokens: int = 0
    salt: bytes = b""


class Blocks:
    """All blocks of a cache.

    Args:
        num_blocks: >= 1. block_tokens: tokens of one block, >= 1. shares: find blocks by content.
    """

    def __init__(self, num_blocks: int, block_tokens: int, *, shares: bool = True) -> None:
        self.num_blocks = num_blocks
        self.block_tokens = block_tokens
        self._shares = shares
        self._free: list[int] = [
            *range(num_blocks - 1, -1, -1)
        ]  # a stack: what was used is used again, memory stays untouched
        self._idle: dict[int, None] = {}  # the longest unused first
        self._num_holders = [0] * num_blocks
        self._key_of: dict[int, bytes] = {}
        self._block_of: dict[bytes, int] = {}

    @property
    def num_free(self) -> int:
        """Blocks that can be taken: never used ones, and those whose content nobody uses now."""
        return len(self._free) + len(self._idle)

    @property
    def num_held(self) -> int:
        """Blocks that are part of some table, each counted once."""
        return self.num_blocks - self.num_free

    def num_missing(self, table: BlockTable, num_tokens: int) -> int:
        """Return how many blocks the table needs to hold `num_tokens` tokens."""
        return max(0, -(-num_tokens // self.block_tokens) - len(table.blocks))

    def can_grow(self, table: BlockTable, num_tokens: int) -> bool:
        """Return whether there are blocks for a table of `num_tokens` tokens."""
        return self.num_missing(table, num_tokens) <= self.num_free

    def grow(self, table: BlockTable, num_tokens: int) -> None:
        """Add the blocks that a table of `num_tokens` tokens lacks; `can_grow` was asked."""
        for _ in range(self.num_missing(table, num_tokens)):
            table.blocks.append(self._take())

    def trim(self, table: BlockTable) -> None:
        """Give back blocks beyond the tokens that are stored: what was written there counts for nothing."""
        num_needed = -(-table.num_tokens // self.block_tokens)
        while len(table.blocks) > num_needed:
            self._release(table.blocks.pop())

    def advance(self, table: BlockTable, tokens: Sequence[int], num_tokens: int) -> None:
        """Keys and values of the first `num_tokens` tokens are stored now: blocks that got full can be found.

        Args:
            tokens: all of the sequence, at least `num_tokens`.
        """
        num_full = table.num_tokens // self.block_tokens
        table.num_tokens = num_tokens
        if not self._shares:
            return
        for index in range(num_full, num_tokens // self.block_tokens):
            key, block = self.key(table, tokens, index), table.blocks[index]
            if key not in self._block_of:
                self._block_of[key] = block
                self._key_of[block] = key

    def adopt(self, table: BlockTable, tokens: Sequence[int]) -> int:
        """Append blocks that hold the tokens that come next, all but the last one; return how many tokens these are.

        The last token of all is never adopted: what follows it has to be computed. A table that ends within a block
        adopts nothing.
        """
        before = table.num_tokens
        for block in self._known(table, tokens):
            self._hold(block)
            table.blocks.append(block)
            table.num_tokens += self.block_tokens
        return table.num_tokens - before

    def num_adoptable(self, table: BlockTable, tokens: Sequence[int]) -> int:
        """Return how many blocks `adopt` would append that others hold: they cost no free block."""
        return sum(self._num_holders[block] > 0 for block in self._known(table, tokens))

    def release(self, table: BlockTable) -> None:
        """Give all blocks back; the table is empty then. Ends go first, so that beginnings are found the longest."""
        for block in reversed(table.blocks):
            self._release(block)
        table.blocks.clear()
        table.num_tokens = 0

    def forget(self, table: BlockTable) -> list[int]:
        """Let nobody find the contents of this table any more; return its blocks that no other table has."""
        for block in table.blocks:
            self._drop_key(block)
        return [block for block in table.blocks if self._num_holders[block] == 1]

    def key(self, table: BlockTable, tokens: Sequence[int], index: int) -> bytes:
        """Return the key of the sequence's block `index`, which is full of `tokens`; 16 bytes."""
        size = self.block_tokens
        while len(table.keys) <= index:
            start = len(table.keys) * size
            before = table.keys[-1] if table.keys else table.salt
            content = array("q", tokens[start : start + size]).tobytes()
            table.keys.append(hashlib.blake2b(before + content, digest_size=16).digest())
        return table.keys[index]

    def _known(self, table: BlockTable, tokens: Sequence[int]) -> list[int]:
        known: list[int] = []
        if not self._shares or table.num_tokens != len(table.blocks) * self.block_tokens:
            return known
        for index in range(len(table.blocks), (len(tokens) - 1) // self.block_tokens):
            block = self._block_of.get(self.key(table, tokens, index))
            if block is None:
                break
            known.append(block)
        return known

    def _take(self) -> int:
        if self._free:
            block = self._free.pop()
        else:
            block = next(iter(self._idle))
            del self._idle[block]
            self._drop_key(block)
        self._num_holders[block] = 1
        return block

    def _hold(self, block: int) -> None:
        self._idle.pop(block, None)
        self._num_holders[block] += 1

    def _release(self, block: int) -> None:
        self._num_holders[block] -= 1
        if self._num_holders[block]:
            return
        if block in self._key_of:
            self._idle[block] = None
        else:
            self._free.append(block)

    def _drop_key(self, block: int) -> None:
        key = self._key_of.pop(block, None)
        if key is not None:
            del self._block_of[key]
