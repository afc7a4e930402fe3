"""Attention over the paged cache, for any model of transformers that asks its registry for attention.

    one forward = one row of tokens: [ decode decode decode | chunk of a prompt | chunk of another ]
                                       batches over gathered    each over its own blocks, causal
                                       blocks, padded

The step travels as a keyword of the model's forward. No mask function is registered under NAME, which tells
transformers not to make a mask. This module knows tensors, and nothing of sequences.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, cast

import torch
from torch import Tensor
from torch.nn import functional
from transformers import AttentionInterface

from samovar_instance.engines.generation.cache import LayerCache, LayerShape

NAME = "samovar_paged"
KEYWORD = "samovar_step"


@dataclass(frozen=True, slots=True)
class Part:
    """Rows of a step that attend together: one of each of many sequences, or a chunk of one.

    rows: which. blocks: int64 [sequences, blocks], None if the chunk is all there is of its sequence. lengths: int64
    [rows], tokens that each row sees, itself the last of them. masks: by window, made by the first layer that needs it.
    """

    rows: slice
    blocks: Tensor | None
    lengths: Tensor
    masks: dict[int | None, Tensor] = field(default_factory=dict)

    def mask(self, num_keys: int, window: int | None, dtype: torch.dtype) -> Tensor:
        """Return what is added to scores, [rows, num_keys]: 0 where a row sees a token; the same for all layers."""
        if window not in self.masks:
            places = torch.arange(num_keys, device=self.lengths.device)
            ends = self.lengths[:, None]
            seen = places < ends
            if window is not None:
                seen &= places >= ends - window
            self.masks[window] = torch.zeros(seen.shape, dtype=dtype, device=seen.device).masked_fill_(
                ~seen, float("-inf")
            )
        return self.masks[window]


@dataclass(frozen=True, slots=True)
class Step:
    """All of one forward. slots: int64 [tokens], where each token's keys and values go."""

    layers: dict[int, LayerCache]
    slots: Tensor
    decodes: list[Part]
    chunks: list[Part]


@dataclass(frozen=True, slots=True)
class Probe:
    """Takes a step's place to learn what the layers store, and their windows: attention is plain and causal."""

    shapes: dict[int, LayerShape] = field(default_factory=dict)
    windows: set[int | None] = field(default_factory=set)


def paged_attention(
    module: torch.nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **keywords: Any,
) -> tuple[Tensor, None]:
    """Attend for one layer; what was registered as NAME.

    Args:
        query: [1, heads, tokens, dim]; key, value: [1, key heads, tokens, dim], of this step's tokens.
        attention_mask: None. scaling, softcap: of scores. sliding_window: tokens a row sees, itself included.
        s_aux: [heads], sinks: scores that take part in the softmax and give nothing.
        keywords: KEYWORD, the Step; a Probe or nothing, if all tokens are one sequence without a past.
    Returns: [1, tokens, heads, dim], and no weights.
    """
    step: Step | Probe = keywords.get(KEYWORD) or Probe()
    layer: int = cast(Any, module).layer_idx
    rule = _Rule(scaling, sliding_window, softcap, s_aux)
    if isinstance(step, Probe):
        step.shapes[layer] = LayerShape(key.shape[1], key.shape[3], value.shape[3], key.dtype)
        step.windows.add(sliding_window)
        lengths = torch.arange(1, query.shape[2] + 1, device=query.device)
        return _chunk(Part(slice(None), None, lengths), rule, query, key, value).transpose(1, 2), None
    cache = step.layers[layer]
    cache.write(step.slots, key[0].transpose(0, 1), value[0].transpose(0, 1))
    out = query.new_empty(1, query.shape[2], query.shape[1], value.shape[3])
    for part in step.decodes:
        assert part.blocks is not None
        out[0, part.rows] = _decode(part, rule, query[0, :, part.rows], *cache.read(part.blocks))
    for part in step.chunks:
        if part.blocks is None:
            stored = key[:, :, part.rows], value[:, :, part.rows]
        else:
            stored = cache.read(part.blocks)
        out[:, part.rows] = _chunk(part, rule, query[:, :, part.rows], *stored).transpose(1, 2)
    num_rows = max((part.rows.stop for part in (*step.decodes, *step.chunks)), default=0)
    out[:, num_rows:] = 0  # of the padding, if there is some
    return out, None


@dataclass(frozen=True, slots=True)
class _Rule:
    """How a layer attends."""

    scaling: float | None
    window: int | None
    softcap: float | None
    sinks: Tensor | None

    @property
    def is_plain(self) -> bool:
        """Whether each row sees all before it, by scores as they are."""
        return self.window is None and self.softcap is None and self.sinks is None

    def attend(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor | None) -> Tensor:
        """Return what queries see; mask None: all is causal, and query and key are the same tokens."""
        if mask is not None and (self.softcap is not None or self.sinks is not None):
            key, value = _repeated(key, query.shape[1]), _repeated(value, query.shape[1])
            scores = query @ key.transpose(2, 3) * (self.scaling or query.shape[-1] ** -0.5)
            if self.softcap is not None:
                scores = torch.tanh(scores / self.softcap) * self.softcap
            return self._weights(scores + mask).to(value.dtype) @ value
        return functional.scaled_dot_product_attention(
            query,
            key,
            value,
            attn_mask=mask,
            is_causal=mask is None,
            scale=self.scaling,
            enable_gqa=query.shape[1] != key.shape[1],
        )

    def _weights(self, scores: Tensor) -> Tensor:
        """Return the softmax of scores, [.., heads, .., rows, keys] float32, with a sink of each head beside them."""
        if self.sinks is None:
            return scores.softmax(-1, dtype=torch.float32)
        sinks = self.sinks.view(1, scores.shape[1], -1, 1).to(scores.dtype).expand(*scores.shape[:-1], 1)
        return torch.cat([scores, sinks], dim=-1).softmax(-1, dtype=torch.float32)[..., :-1]


def _repeated(heads: Tensor, num_heads: int) -> Tensor:
    """Return keys or values, [.., heads, tokens, dim], once for each query head that uses them."""
    groups = num_heads // heads.shape[1]
    return heads.repeat_interleave(groups, 1) if groups > 1 else heads


def _decode(part: Part, rule: _Rule, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """One query of each sequence, [heads, rows, dim] → [rows, heads, dim]; heads that share keys attend as one."""
    heads, rows, dim = query.shape
    packed = query.transpose(0, 1).reshape(rows, key.shape[1], heads // key.shape[1], dim)
    mask = part.mask(key.shape[2], rule.window, query.dtype)[:, None, None]
    return rule.attend(packed, key, value, mask).reshape(rows, heads, -1)


def _chunk(part: Part, rule: _Rule, query: Tensor, key: Tensor, value: Tensor) -> Tensor:
    """Many queries of one sequence, [1, heads, rows, dim] → the same."""
    is_plain = part.blocks is None and rule.is_plain
    return rule.attend(query, key, value, None if is_plain else part.mask(key.shape[2], rule.window, query.dtype))


AttentionInterface.register(NAME, paged_attention)
