"""Rows of the caches that models of transformers make: joined to batches, and taken out again.

    row of 5 tokens     · · k k k k k      attention: keys and values padded on the left, so that ends are level
    row of 7 tokens     k k k k k k k
    states              one of each row     convolutions, recurrences: no padding, they have no length

What a kind of layer holds is known here; layers of other kinds are `Unjoinable`. This module does not know models,
masks or sequences.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
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

ROOM_COLUMNS = 16  # of a batch: so many tokens of each row are written before its keys and values are copied again

States = dict[int, Tensor | None]


class Room:
    """A tensor [rows, heads, columns, size] with room for columns to come."""

    def __init__(self) -> None:
        self._buffer: Tensor | None = None
        self._given: Tensor | None = None

    def append(self, held: Tensor, more: Tensor) -> Tensor:
        """Return `held` and `more` behind it; what was given last is not copied as long as there is room."""
        start, end = held.shape[-2], held.shape[-2] + more.shape[-2]
        if self._buffer is None or held is not self._given or end > self._buffer.shape[-2]:
            self._buffer = held.new_empty((*held.shape[:-2], end + ROOM_COLUMNS, held.shape[-1]))
            self._buffer[..., :start, :] = held
        self._buffer[..., start:end, :] = more
        self._given = self._buffer[..., :end, :]
        return self._given


class RoomyLayer(DynamicLayer):  # type: ignore[misc]
    """A layer of a batch: a step writes its columns, where the usual layer copies all that it holds."""

    keys: Tensor
    values: Tensor

    def __init__(self, layer: DynamicLayer) -> None:
        """Take over what a layer holds."""
        super().__init__()
        self.__dict__.update(vars(layer))
        self._rooms = (Room(), Room())

    def update(self, key_states: Tensor, value_states: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Append keys and values [rows, heads, tokens, size]; return all of them."""
        self.keys = self._rooms[0].append(self.keys, key_states)
        self.values = self._rooms[1].append(self.values, value_states)
        return self.keys, self.values


JOINABLE = {
    DummyLayer,
    DynamicLayer,
    DynamicSlidingWindowLayer,
    LinearAttentionAndFullAttentionLayer,
    LinearAttentionAndSlidingWindowAttentionLayer,
    LinearAttentionLayer,
    RoomyLayer,
}


class Unjoinable(Exception):
    """Why rows of a cache cannot be put together."""


def join(caches: Sequence[Any], num_tokens: int) -> Any:
    """Return a cache with the rows of all; the first one itself, if it is more than a list of tensors.

    Args:
        caches: of the same model; each a `Cache`, or a list of tensors [rows, ...].
        num_tokens: of the longest row of all, counting what a window no longer shows.
    Raises: Unjoinable.
    """
    cache = caches[0]
    if _is_list(cache):
        return [torch.cat(tensors) for tensors in zip(*caches, strict=True)]
    all_layers = zip(*map(_layers, caches), strict=True)
    cache.layers = [_joined(layers, num_tokens) for layers in all_layers]
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


def has_states(cache: Any) -> bool:
    """Return whether rows hold something that has no length, through which padding would run: not known to be none."""
    return not isinstance(cache, Cache) or any(isinstance(layer, LinearAttentionLayer) for layer in cache.layers)


def num_bytes(kept: Any) -> int:
    """Return the bytes of all tensors within what a model keeps, whatever it is made of."""
    return sum(tensor.nbytes for tensor in _tensors(kept, set()))


def _joined(layers: Sequence[Any], num_tokens: int) -> Any:
    """Return a layer with the rows of all, the first one or in its place."""
    layer = layers[0]
    if isinstance(layer, DynamicLayer) and layer.is_initialized:
        for each in layers:
            _align(each, num_tokens)
        layer.keys = torch.cat([each.keys for each in layers])
        layer.values = torch.cat([each.values for each in layers])
    if isinstance(layer, LinearAttentionLayer):
        for mine, *others in zip(*map(_states, layers), strict=True):
            mine.update({key: torch.cat(states) for key, states in _alike(mine, others)})
    return RoomyLayer(layer) if type(layer) is DynamicLayer and layer.is_initialized else layer


def _align(layer: Any, num_tokens: int) -> None:
    """Cut or pad the layer on its left for rows of at most `num_tokens` tokens."""
    num_columns = num_tokens
    if isinstance(layer, DynamicSlidingWindowLayer):
        num_columns = min(num_tokens, layer.sliding_window - 1)
        layer.cumulative_length = num_tokens
    num_more = num_columns - layer.keys.shape[-2]
    if not num_more:
        return
    # a negative padding cuts
    layer.keys = functional.pad(layer.keys, (0, 0, num_more, 0))
    layer.values = functional.pad(layer.values, (0, 0, num_more, 0))


def _alike(mine: States, others: Sequence[States]) -> Iterator[tuple[int, list[Tensor]]]:
    for key, state in mine.items():
        states = [state, *(other[key] for other in others)]
        known = [state for state in states if state is not None]
        if len(known) == len(states):
            yield key, known


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
