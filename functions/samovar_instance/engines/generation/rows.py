"""Rows of the caches that models of transformers make: joined to batches, and taken out again.

    row of 5 tokens     · · k k k k k      attention: keys and values padded on the left, so that ends are level
    row of 7 tokens     k k k k k k k
    states              one of each row     convolutions, recurrences: no padding, they have no length

What a kind of layer holds is known here; layers of other kinds are `Unjoinable`. This module does not know models,
masks or sequences.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional
from transformers.cache_utils import (
    Cache,
    DummyLayer,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionAndSlidingWindowAttentionLayer,
    LinearAttentionLayer,
)

JOINABLE = {
    DummyLayer,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionAndSlidingWindowAttentionLayer,
    LinearAttentionLayer,
}

States = dict[int, Tensor | None]


class Unjoinable(Exception):
    """Why rows of a cache cannot be put together."""


def join(cache: Any, other: Any, num_tokens: int) -> Any:
    """Return a cache with the rows of both; `cache` itself, if it is more than a list of tensors.

    Args:
        cache, other: of the same model; a `Cache`, or a list of tensors [rows, ...].
        num_tokens: of the longest row of both, counting what a window no longer shows.
    Raises: Unjoinable.
    """
    if _is_list(cache):
        return [torch.cat(pair) for pair in zip(cache, other, strict=True)]
    for layer, more in zip(_layers(cache), _layers(other), strict=True):
        if isinstance(layer, DynamicLayer) and layer.is_initialized:
            _align(layer, num_tokens)
            _align(more, num_tokens)
            layer.keys = torch.cat([layer.keys, more.keys])
            layer.values = torch.cat([layer.values, more.values])
        if isinstance(layer, LinearAttentionLayer):
            for mine, theirs in zip(_states(layer), _states(more), strict=True):
                mine.update({key: torch.cat([state, more]) for key, state, more in _pairs(mine, theirs)})
    return cache


def select(cache: Any, rows: list[int], num_tokens: int) -> Any:
    """Return a cache with these rows only, by index; `cache` itself, if it is more than a list of tensors.

    num_tokens: of the longest of them; what is padding in all of them is cut off.
    """
    if _is_list(cache):
        return [tensor[rows] for tensor in cache]
    for layer in _layers(cache):
        if isinstance(layer, DynamicLayer) and layer.is_initialized:
            layer.keys, layer.values = layer.keys[rows], layer.values[rows]
            _align(layer, num_tokens)
        if isinstance(layer, LinearAttentionLayer):
            for states in _states(layer):
                states.update({key: state[rows] for key, state in states.items() if state is not None})
    return cache


def has_lengths(cache: Any) -> bool:
    """Return whether rows of different lengths are padded: whether any layer keeps something for each token."""
    return isinstance(cache, Cache) and any(isinstance(layer, DynamicLayer) for layer in cache.layers)


def num_bytes(kept: Any) -> int:
    """Return the bytes of all tensors within what a model keeps, whatever it is made of."""
    return sum(tensor.nbytes for tensor in _tensors(kept, set()))


def _align(layer: Any, num_tokens: int) -> None:
    """Cut or pad the layer on its left for rows of at most `num_tokens` tokens."""
    num_columns = num_tokens
    if isinstance(layer, DynamicSlidingWindowLayer):
        num_columns = min(num_tokens, layer.sliding_window - 1)
        layer.cumulative_length = num_tokens
    num_more = num_columns - layer.keys.shape[-2]
    # a negative padding cuts
    layer.keys = functional.pad(layer.keys, (0, 0, num_more, 0))
    layer.values = functional.pad(layer.values, (0, 0, num_more, 0))


def _pairs(mine: States, theirs: States) -> Iterator[tuple[int, Tensor, Tensor]]:
    for key, state in mine.items():
        other = theirs[key]
        if state is not None and other is not None:
            yield key, state, other


def _states(layer: LinearAttentionLayer) -> tuple[States, States]:
    return layer.conv_states, layer.recurrent_states


def _layers(cache: Any) -> list[Any]:
    if not isinstance(cache, Cache):
        raise Unjoinable(f"its cache is a {type(cache).__name__}")
    unknown = {type(layer).__name__ for layer in cache.layers if type(layer) not in JOINABLE}
    if unknown:
        raise Unjoinable(f"its cache has layers of the type {', '.join(sorted(unknown))}")
    layers: list[Any] = cache.layers
    return layers


def _is_list(cache: Any) -> bool:
    return isinstance(cache, list | tuple) and all(isinstance(item, Tensor) for item in cache)


def _tensors(kept: Any, seen: set[int]) -> Iterator[Tensor]:
    if isinstance(kept, Tensor):
        yield kept
        return
    if id(kept) in seen:
        return
    seen.add(id(kept))
    for value in _parts(kept):
        yield from _tensors(value, seen)


def _parts(kept: Any) -> Iterable[Any]:
    if isinstance(kept, dict):
        return kept.values()
    if isinstance(kept, list | tuple):
        return kept
    return vars(kept).values() if hasattr(kept, "__dict__") and not isinstance(kept, type) else ()
