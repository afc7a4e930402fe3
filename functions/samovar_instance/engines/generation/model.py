"""One forward of many sequences: tokens in a row, attention by `attention.py`, logits where they are wanted.

A model is taken by trial: it says by itself what its layers store, and its logits over the paged cache have to be those
of its own attention, else `Unsupported` says why. This module does not know how steps are made up.
"""

from __future__ import annotations

from collections.abc import Sequence as Row
from itertools import chain
from typing import Any

import torch
from torch import Tensor

from samovar_instance.engines.generation import attention
from samovar_instance.engines.generation.attention import Part, Probe, Step
from samovar_instance.engines.generation.cache import LayerShape, allocate
from samovar_instance.engines.generation.scheduler import Segment


class Unsupported(Exception):
    """Why a model cannot run over the paged cache."""


class Runner:
    """A model and its cache. `allocate` comes before `forward`."""

    def __init__(self, model: Any) -> None:
        """Learn what the model's layers store. Raises: Unsupported."""
        self.model = model
        self.device = str(model.device)
        self.num_vocabulary: int = model.get_input_embeddings().num_embeddings
        self._block_tokens = 0
        self._layers: dict[int, Any] = {}
        model.set_attn_implementation(attention.NAME)
        self.shapes = self._probe()

    @property
    def token_bytes(self) -> int:
        """Bytes that the cache takes per token."""
        return sum(shape.token_bytes for shape in self.shapes.values())

    def allocate(self, num_blocks: int, block_tokens: int) -> None:
        """Make the cache."""
        self._block_tokens = block_tokens
        self._layers = allocate(self.shapes, num_blocks, block_tokens, self.device)

    @torch.inference_mode()
    def forward(self, segments: Row[Segment]) -> Tensor:
        """Compute segments; their keys and values are stored.

        Args:
            segments: those of one token first.
        Returns: float32 [rows, vocabulary], the last `num_logits` rows of each segment, in order.
        """
        tokens: list[int] = []
        positions: list[int] = []
        rows: list[int] = []
        for segment in segments:
            end = segment.start + segment.count
            tokens += segment.run.tokens[segment.start : end]
            positions += range(segment.start, end)
            rows += range(len(tokens) - segment.num_logits, len(tokens))
        step = self._step(segments, positions)
        return self._logits(tokens, positions, rows, step)

    def _step(self, segments: Row[Segment], positions: list[int]) -> Step:
        tables = [segment.run.table.blocks for segment in segments]
        size = self._block_tokens
        slots = [
            table[place // size] * size + place % size
            for segment, table in zip(segments, tables, strict=True)
            for place in range(segment.start, segment.start + segment.count)
        ]
        lengths = self._ids(positions) + 1
        num_decodes = sum(segment.count == 1 for segment in segments)
        decodes, chunks = [], []
        if num_decodes:
            rows = slice(0, num_decodes)
            decodes.append(Part(rows, self._tables(tables[:num_decodes]), lengths[rows]))
        first = num_decodes
        for segment, table in zip(segments[num_decodes:], tables[num_decodes:], strict=True):
            rows = slice(first, first + segment.count)
            chunks.append(Part(rows, self._tables([table]) if segment.start else None, lengths[rows]))
            first = rows.stop
        return Step(self._layers, self._ids(slots), decodes, chunks)

    def _tables(self, tables: list[list[int]]) -> Tensor:
        longest = max(map(len, tables))
        return self._ids([*chain.from_iterable(t + [t[0]] * (longest - len(t)) for t in tables)]).view(-1, longest)

    def _ids(self, values: list[int]) -> Tensor:
        return torch.tensor(values, dtype=torch.int64, device=self.device)

    def _logits(self, tokens: list[int], positions: list[int], rows: list[int], step: Step | Probe) -> Tensor:
        out = self.model(
            input_ids=self._ids(tokens)[None],
            position_ids=self._ids(positions)[None],
            use_cache=False,
            logits_to_keep=self._ids(rows),
            **{attention.KEYWORD: step},
        )
        logits: Tensor = out.logits[0].float()
        return logits

    @torch.inference_mode()
    def _probe(self) -> dict[int, LayerShape]:
        probe = Probe()
        self._logits([1, 2, 3], [0, 1, 2], [2], probe)
        return probe.shapes
