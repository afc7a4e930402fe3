"""One forward of many sequences: tokens in a row, attention by `attention.py`, logits where they are wanted.

A model is taken by trial: it says by itself what its layers store, and its logits over the paged cache have to be those
of its own attention, else `Unsupported` says why. This module does not know how steps are made up.
"""

from __future__ import annotations

from collections.abc import Sequence as Row
from functools import partial
from typing import Any

import torch
from torch import Tensor

from samovar_instance.engines.generation import attention
from samovar_instance.engines.generation.attention import Part, Probe, Step
from samovar_instance.engines.generation.cache import LayerShape, allocate
from samovar_instance.engines.generation.layout import Layout
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
        self._layers = allocate(self.shapes, num_blocks + 1, block_tokens, self.device)  # one for what is padded

    @torch.inference_mode()
    def forward(self, segments: Row[Segment]) -> Tensor:
        """Compute segments; their keys and values are stored.

        Args:
            segments: in any order; blocks for their tokens are in their tables.
        Returns: float32 [rows, vocabulary], the last `num_logits` rows of each segment, in order.
        """
        layout = Layout(segments, self._block_tokens, pads=self.device == "cpu")
        ids = partial(torch.tensor, dtype=torch.int64, device=self.device)
        lengths = ids(layout.positions) + 1
        step = Step(
            self._layers,
            ids(layout.slots),
            [Part(rows, ids(tables), lengths[rows]) for rows, tables in layout.decodes],
            [Part(rows, ids([table]) if table else None, lengths[rows]) for rows, table in layout.chunks],
        )
        logits = self._logits(ids(layout.tokens), ids(layout.positions), ids(layout.logit_rows), step)
        return logits[: layout.num_logits]

    @torch.inference_mode()
    def clear(self, blocks: list[int]) -> None:
        """Make the contents of blocks zero."""
        for layer in self._layers.values():
            layer.clear(torch.tensor(blocks, dtype=torch.int64, device=self.device))

    def _logits(self, tokens: Tensor, positions: Tensor, rows: Tensor, step: Step | Probe) -> Tensor:
        out = self.model(
            input_ids=tokens[None],
            position_ids=positions[None],
            use_cache=False,
            logits_to_keep=rows,
            **{attention.KEYWORD: step},
        )
        logits: Tensor = out.logits[0].float()
        return logits

    @torch.inference_mode()
    def _probe(self) -> dict[int, LayerShape]:
        probe = Probe()
        places = torch.arange(3, device=self.device)
        self._logits(places, places, places[-1:], probe)
        return probe.shapes
