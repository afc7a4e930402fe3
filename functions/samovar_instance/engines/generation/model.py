"""One forward of many sequences: tokens in a row, attention by `attention.py`, logits where they are wanted.

A model is taken by trial: its layers say by themselves what they store, and its logits over a small paged cache have to
be those of its own attention, else `Unsupported` says why. This module does not know who is scheduled when.
"""

from __future__ import annotations

from collections.abc import Sequence as Row
from functools import partial
from typing import Any

import torch
from torch import Tensor

from samovar_instance.engines.generation import attention
from samovar_instance.engines.generation.attention import Part, Probe, Step
from samovar_instance.engines.generation.blocks import BlockTable
from samovar_instance.engines.generation.cache import LayerCache, LayerShape, allocate
from samovar_instance.engines.generation.contract import Sequence
from samovar_instance.engines.generation.layout import NO_PADDING, Layout, Padding
from samovar_instance.engines.generation.scheduler import Run, Segment
from samovar_instance.engines.generation.weights import TiledGated, TiledLinear, gated_layers, tile

LAYER_TYPES = {"full_attention", "sliding_attention"}
TRIAL_TOKENS = 24
TRIAL_TOLERANCE = 0.02  # of the logits' own spread; a layer that attends in another way is off by more than all of it
HALF_TOLERANCE = 0.3


class Unsupported(Exception):
    """Why a model cannot run over the paged cache."""


class Runner:
    """A model and its cache. `allocate` comes before `forward`."""

    def __init__(self, model: Any, max_tiled_bytes: int = 0) -> None:
        """Take the model over: it attends over pages from now on. Raises: Unsupported, the model as it was.

        max_tiled_bytes: of weights that may be copied in tiles, once there is a cache; see `weights.py`.
        """
        self.model = model
        self.device = str(model.device)
        self.num_vocabulary: int = model.get_input_embeddings().num_embeddings
        self._block_tokens = 0
        self._max_tiled_bytes = 0  # a model that is tried stays as it is
        self._padding = Padding() if self.device == "cpu" else NO_PADDING
        self._layers: dict[int, LayerCache] = {}
        self._last: TiledGated | None = None
        unknown = set(getattr(model.config.get_text_config(), "layer_types", None) or ()) - LAYER_TYPES
        if unknown or model.config.is_encoder_decoder:
            raise Unsupported(f"it has layers of the type {', '.join(sorted(unknown)) or 'encoder'}")
        own = model.config._attn_implementation
        try:
            self.shapes = self._try(own)
        except Exception as error:
            model.set_attn_implementation(own)
            raise (
                error if isinstance(error, Unsupported) else Unsupported(f"{type(error).__name__}: {error}")
            ) from error
        self._max_tiled_bytes = max_tiled_bytes

    @property
    def manner(self) -> str:
        """How it runs, in words."""
        return "in batches over pages"

    @property
    def token_bytes(self) -> int:
        """Bytes that the cache takes per token."""
        return sum(shape.token_bytes for shape in self.shapes.values())

    def allocate(self, num_blocks: int, block_tokens: int) -> None:
        """Make the cache; then, where memory is left, cut the weights into tiles."""
        self._block_tokens = block_tokens
        self._layers = allocate(self.shapes, num_blocks + 1, block_tokens, self.device)  # one for what is padded
        if self.device == "cpu" and tile(self.model, self._max_tiled_bytes):
            head_is_tiled = type(self.model.get_output_embeddings()) is TiledLinear
            self._padding = NO_PADDING if head_is_tiled else Padding(rows=NO_PADDING.rows)
        self._last = self._last_gated(num_blocks)

    @torch.inference_mode()
    def forward(self, segments: Row[Segment]) -> Tensor:
        """Compute segments; their keys and values are stored.

        Args:
            segments: in any order; blocks for their tokens are in their tables.
        Returns: float32 [rows, vocabulary], the last `num_logits` rows of each segment, in order.
        """
        layout = Layout(segments, self._block_tokens, self._padding)
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
        places = torch.tensor(blocks, dtype=torch.int64, device=self.device) + 1  # the first one is the padding's
        for layer in self._layers.values():
            layer.clear(places)

    def _logits(self, tokens: Tensor, positions: Tensor, rows: Tensor, step: Step | Probe) -> Tensor:
        if self._last is not None:
            self._last.wanted = rows
        try:
            out = self.model(
                input_ids=tokens[None],
                position_ids=positions[None],
                use_cache=False,
                logits_to_keep=rows,
                **{attention.KEYWORD: step},
            )
        finally:
            if self._last is not None:
                self._last.wanted = None
        logits: Tensor = out.logits[0].float()
        return logits

    def _last_gated(self, num_blocks: int) -> TiledGated | None:
        """Return the last layer's products, if all that follows them is each row's own: tried over the empty cache."""
        gated = gated_layers(self.model)
        num_tokens = min(TRIAL_TOKENS, num_blocks * self._block_tokens)
        if not gated or len(gated) != len(self._layers) or num_tokens < 2:
            return None
        blocks = [*range(-(-num_tokens // self._block_tokens))]
        run = Run(_NOBODY, [token % self.num_vocabulary for token in range(num_tokens)], BlockTable(blocks))
        logits = []
        for self._last in (None, gated[-1]):
            logits.append(self.forward([Segment(run, 0, num_tokens, 1)]))
        self.clear(blocks)
        plain, narrow = logits
        return gated[-1] if (narrow - plain).abs().max() <= TRIAL_TOLERANCE * plain.std() else None

    @torch.inference_mode()
    def _try(self, own: str) -> dict[int, LayerShape]:
        """Return what the layers store, once two steps over a paged cache gave the logits of one plain forward."""
        places = torch.arange(TRIAL_TOKENS, device=self.device)
        tokens = places % self.num_vocabulary
        last = TRIAL_TOKENS - 1
        plain = self.model(input_ids=tokens[None], use_cache=False).logits[0, -2:].float()
        self.model.set_attn_implementation(attention.NAME)
        probe = Probe()
        self._logits(tokens, places, places[-1:], probe)
        self.shapes = probe.shapes
        if not probe.shapes:
            raise Unsupported("its layers do not ask the registry for attention")
        if _has_windows(self.model) and probe.windows == {None}:
            raise Unsupported("its layers have a window and do not say so")
        self.allocate(2 * TRIAL_TOKENS, 1)
        chunked = Run(_NOBODY, tokens.tolist(), BlockTable([*range(TRIAL_TOKENS)]))
        decoded = Run(_NOBODY, tokens.tolist(), BlockTable([*range(2 * TRIAL_TOKENS - 1, last, -1)]))
        self.forward([Segment(chunked, 0, 8, 0), Segment(decoded, 0, last, 0)])
        paged = self.forward([Segment(chunked, 8, last - 8, 1), Segment(decoded, last, 1, 1)])
        self._layers = {}
        error = float((paged - plain).abs().max() / plain.std())
        if error > tolerance(self.model):
            raise Unsupported(f"its logits over pages differ from its own by {error:.2g} of their spread")
        return probe.shapes


_NOBODY = Sequence(prompt=[], max_tokens=1, sampling=None, listener=None)  # type: ignore[arg-type]


def _has_windows(model: Any) -> bool:
    """Return whether layers see the last tokens only, which prompts of a trial may be too short to show."""
    config = model.config.get_text_config()
    types = getattr(config, "layer_types", None) or ["sliding_attention"]
    return bool(getattr(config, "sliding_window", None)) and "sliding_attention" in types


def tolerance(model: Any) -> float:
    """Return how far logits may be off, in their spreads: models in few bits round by whatever else is in the step."""
    is_quantized = any(type(module).__module__.startswith(("torch.ao", "torchao")) for module in model.modules())
    if is_quantized:
        return float("inf")
    return TRIAL_TOLERANCE if model.dtype == torch.float32 else HALF_TOLERANCE
