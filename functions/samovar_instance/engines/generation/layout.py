"""How the tokens of one step lie in a row, and which rows attend together.

    row     [ decodes, by how much they see | chunk | chunk | padding ]
    decodes  in groups of like length: what is gathered fits a core's cache, and little of it is padding

Measured on one AVX-512 core (MKL, fp32): gathering 32 sequences of 200-640 tokens as one batch took 4 times as long as
in groups; a product of some rows takes longer than one of 16 (`Padding`). This module knows no tensors or models.
"""

from __future__ import annotations

from collections.abc import Sequence as Row
from dataclasses import dataclass

from samovar_instance.engines.generation.scheduler import Segment

MAX_GROUP_TOKENS = 2048
MAX_GROUP_STRETCH = 1.5  # longest over shortest of a group


@dataclass(frozen=True, slots=True)
class Padding:
    """Numbers of rows that are padded to the end of their range, because a product of so many rows is faster: of the
    layers' products, and of the logits'."""

    rows: range = range(9, 16)
    logits: range = range(7, 16)


NO_PADDING = Padding(range(0), range(0))


class Layout:
    """The layout of some segments.

    tokens, positions, slots: one of each per row. decodes: rows and tables of blocks, all of a group equally long.
    chunks: rows and table, empty if nothing precedes the chunk. logit_rows: the last `num_logits` rows of each segment,
    in the order of segments, then padding; num_logits: without it. Block `0` of tables is the padding's, those of
    sequences start at 1.
    """

    def __init__(self, segments: Row[Segment], block_tokens: int, padding: Padding) -> None:
        self.tokens: list[int] = []
        self.positions: list[int] = []
        self.slots: list[int] = []
        self.logit_rows: list[int] = []
        self.chunks: list[tuple[slice, list[int]]] = []
        self._block_tokens = block_tokens
        firsts: dict[Segment, int] = {}
        ordered = sorted(segments, key=lambda segment: (segment.count > 1, len(segment.run.table.blocks)))
        for segment in ordered:
            firsts[segment] = len(self.tokens)
            self._append(segment)
        for segment in segments:
            end = firsts[segment] + segment.count
            self.logit_rows += range(end - segment.num_logits, end)
        self.num_logits = len(self.logit_rows)
        self.decodes = _groups([segment for segment in ordered if segment.count == 1], block_tokens)
        self._pad(padding)

    def _append(self, segment: Segment) -> None:
        first, size = len(self.tokens), self._block_tokens
        places = range(segment.start, segment.start + segment.count)
        table = _shifted(segment)
        self.tokens += segment.tokens
        self.positions += places
        self.slots += [table[place // size] * size + place % size for place in places]
        if segment.count > 1:
            self.chunks.append((slice(first, len(self.tokens)), table if segment.start else []))

    def _pad(self, padding: Padding) -> None:
        num_rows = len(self.tokens)
        if num_rows in padding.rows:
            num_more = padding.rows.stop - num_rows
            for row in (self.tokens, self.positions, self.slots):
                row += [0] * num_more
        if self.num_logits in padding.logits:
            self.logit_rows += self.logit_rows[:1] * (padding.logits.stop - self.num_logits)


def _groups(decodes: Row[Segment], block_tokens: int) -> list[tuple[slice, list[list[int]]]]:
    """Return groups of decodes, which are sorted by their number of blocks."""
    groups: list[list[list[int]]] = []
    for table in map(_shifted, decodes):
        group = groups[-1] if groups else []
        num_tokens = (len(group) + 1) * len(table) * block_tokens
        if group and num_tokens <= MAX_GROUP_TOKENS and len(table) <= MAX_GROUP_STRETCH * len(group[0]) + 1:
            group.append(table)
        else:
            groups.append([table])
    first, placed = 0, []
    for group in groups:
        longest = len(group[-1])
        padded = [table + [0] * (longest - len(table)) for table in group]
        placed.append((slice(first, first + len(group)), padded))
        first += len(group)
    return placed


def _shifted(segment: Segment) -> list[int]:
    return [block + 1 for block in segment.run.table.blocks]
