"""How the weights of a model's products lie in memory: also in tiles, where that makes products of few rows faster.

    weight [out, in] as saved      one row, or many: read where it lies
    tiles  [tiles, in, columns]    2 to MAX_TILED_ROWS rows: a product of each tile, the library packs nothing anew
    one tile, [1, in, out]         2 to MAX_ROWS rows, of a weight that fits a core's cache
    gate, up, down in tiles        2 to MAX_ROWS rows: results stay in tiles from one product to the next

Measured with MKL, fp32, on one AVX-512 core: products of 2 to 16 rows take 15 to 35 % less time than with weights as
saved, of 32 to 128 rows 10 to 25 %, a gated layer of 256 rows 8 % (docs/generation.md has the table). Tiles are the
process's own memory, shared with its forks; the file's pages are shared with everybody and stay in use. This module
does not know what a model is for.
"""

from __future__ import annotations

import logging
import mmap
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

log = logging.getLogger(__name__)

MAX_ROWS, MAX_TILED_ROWS = 384, 160
ONE_TILE_BYTES = 3 << 19
MIN_COLUMNS, MAX_COLUMNS, MAX_GATED_COLUMNS = 64, 256, 96  # of a tile
ALIGNED = 16  # numbers in a cache line
TRIAL_ROWS = 4
TOLERANCE = 1e-3  # of results' spread; sums in another order are off by a millionth or so
_GATED = ("gate_proj", "up_proj", "down_proj")


class Room:
    """Memory for tiles: of this process and its forks; huge pages, where there are some, save 3 % of a step."""

    def __init__(self, num_bytes: int) -> None:
        """Raises: OSError where the process may not have so much."""
        memory = mmap.mmap(-1, num_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        if hasattr(mmap, "MADV_HUGEPAGE"):
            memory.madvise(mmap.MADV_HUGEPAGE)
        self._free = torch.frombuffer(memory, dtype=torch.float32)

    def tiles(self, weight: Tensor, columns: int) -> Tensor:
        """Return the tiles of a weight, [out, in] -> [tiles, in, columns]; each begins with a cache line.

        columns: a divisor of `out`, and with `in` or by itself whole cache lines.
        """
        num_in, num_all = weight.shape[1], weight.numel()
        tiles = self._free[:num_all].view(-1, num_in, columns)
        tiles.copy_(weight.detach().reshape(-1, columns, num_in).transpose(1, 2))
        self._free = self._free[num_all:]
        return tiles


class TiledLinear(nn.Linear):
    """A linear layer that has its weight in tiles, too: float32 [tiles, in, columns]."""

    tiles: Tensor

    def forward(self, input: Tensor) -> Tensor:
        """Return what `nn.Linear` does, to rounding. input: float32 [.., in]."""
        num_rows, num_tiles = input.numel() // self.in_features, len(self.tiles)
        if not 2 <= num_rows <= (MAX_ROWS if num_tiles == 1 else MAX_TILED_ROWS):
            return functional.linear(input, self.weight, self.bias)
        rows = input.reshape(num_rows, self.in_features)
        if num_tiles == 1:
            out = rows @ self.tiles[0]
        else:
            out = torch.bmm(rows.expand(num_tiles, -1, -1), self.tiles).transpose(0, 1)
        out = out.reshape(*input.shape[:-1], self.out_features)
        return out if self.bias is None else out + self.bias


class TiledGated:
    """The forward of a layer `down(act(gate(x)) * up(x))`, from tiles: what is between the products is never put in
    order, and each tile of it takes part in the last product where it lies.

    gate, up: float32 [tiles, in, columns]. down: [tiles, columns, out]. wanted: int64 [..], rows whose results anybody
    reads, None = all; the others are 0.
    """

    def __init__(self, layer: Any, room: Room) -> None:
        """layer: whose weights are cut, and whose forward is called where there are too few or too many rows."""
        gate, up, down = _products(layer)
        self._own = layer.forward
        self._act = layer.act_fn
        self._num_in = gate.in_features
        columns = num_columns(gate.out_features, MAX_GATED_COLUMNS)
        self.gate, self.up = room.tiles(gate.weight, columns), room.tiles(up.weight, columns)
        self.down = room.tiles(down.weight, self._num_in).view(-1, columns, self._num_in)
        self.wanted: Tensor | None = None

    def __call__(self, input: Tensor) -> Tensor:
        """Return what the layer does, to rounding. input: float32 [.., in]."""
        rows = input.reshape(-1, self._num_in)
        if self.wanted is None or len(self.wanted) >= len(rows):
            return self._down(rows).view(input.shape)
        out = torch.zeros_like(rows)
        if len(self.wanted):
            out[self.wanted] = self._down(rows[self.wanted])
        return out.view(input.shape)

    def _down(self, rows: Tensor) -> Tensor:
        if not 2 <= len(rows) <= MAX_ROWS:
            own: Tensor = self._own(rows)
            return own
        batch = rows.expand(len(self.gate), -1, -1)
        gate = torch.bmm(batch, self.gate)
        gate = functional.silu(gate, inplace=True) if type(self._act) is nn.SiLU else self._act(gate)
        return torch.addbmm(rows, gate.mul_(torch.bmm(batch, self.up)), self.down, beta=0)


def num_columns(num_out: int, most: int = MAX_COLUMNS) -> int:
    """Return the columns of a tile of `num_out` outputs, 0 if they cannot be cut into equal tiles of a good size."""
    sizes = range(most, MIN_COLUMNS - 1, -ALIGNED)
    return next((size for size in sizes if num_out % size == 0), 0)


def columns_of(weight: Tensor) -> int:
    """Return the columns of a linear layer's tiles: all of them if that is little, 0 if it cannot be cut."""
    num_out, num_in = weight.shape
    is_little = num_out * num_in * torch.float32.itemsize <= ONE_TILE_BYTES and num_out % ALIGNED == 0
    return num_out if is_little else num_columns(num_out)


def tile(model: Any, max_bytes: int) -> bool:
    """Give a model's float32 linear layers their weights in tiles, too; no parameter changes.

    A layer that cannot be cut stays as it is; so do all if weights are of another type, the tiles were above
    `max_bytes`, or the process may not allocate them. What has tiles already keeps them.
    Args:
        model: on a CPU. max_bytes: >= 0.
    Returns: whether all layers but the head read their weights fast now (GPT-2's do as they are saved).
    """
    in_gated = {each for module in model.modules() if _is_tiled(module) for each in _products(module)}
    plain = [module for module in model.modules() if type(module) is nn.Linear and module not in in_gated]
    if all(type(each.weight) is nn.Parameter and each.weight.dtype == torch.float32 for each in plain):
        gated = _gated_to_cut(model)
        within = {each for module in gated for each in _products(module)}
        layers = [each for each in plain if each not in within and columns_of(each.weight)]
        num_bytes = sum(each.weight.numel() for each in (*layers, *within)) * torch.float32.itemsize
        if 0 < num_bytes <= max_bytes and _cut(layers, gated, num_bytes):
            in_gated |= within
    head = model.get_output_embeddings() if hasattr(model, "get_output_embeddings") else None
    return all(type(each) is TiledLinear or each is head or each in in_gated for each in plain)


def gated_layers(model: Any) -> list[TiledGated]:
    """Return the gated layers that are computed from tiles, in the model's order."""
    return [module.forward for module in model.modules() if _is_tiled(module)]


def _gated_to_cut(model: Any) -> list[Any]:
    """Return the layers that `TiledGated` can compute; one of each kind is tried."""
    is_known: dict[object, bool] = {}
    found = []
    for layer in filter(_looks_gated, model.modules()):
        kind = (type(layer), layer.gate_proj.weight.shape, type(layer.act_fn), getattr(layer.act_fn, "__name__", ""))
        if kind not in is_known:
            is_known[kind] = _computes_gated(layer)
        if is_known[kind]:
            found.append(layer)
    return found


def _looks_gated(layer: Any) -> bool:
    if _is_tiled(layer) or {name for name, _ in layer.named_children()} - {"act_fn"} != set(_GATED):
        return False
    gate, up, down = products = _products(layer)
    return (
        all(type(each) is nn.Linear and each.bias is None for each in products)
        and gate.weight.shape == up.weight.shape == down.weight.shape[::-1]
        and num_columns(gate.out_features, MAX_GATED_COLUMNS) > 0
        and callable(getattr(layer, "act_fn", None))
    )


@torch.no_grad()
def _computes_gated(layer: Any) -> bool:
    """Return whether a layer computes `down(act_fn(gate(x)) * up(x))`, act_fn of each number by itself.

    layer: with three float32 products so named.
    """
    gate, up, down = _products(layer)
    rows = torch.randn(TRIAL_ROWS, gate.in_features, generator=torch.Generator().manual_seed(0))
    own = layer(rows)
    activated = layer.act_fn(gate(rows).t()[None])[0].t()  # in another shape and order
    return bool((down(activated * up(rows)) - own).abs().max() <= TOLERANCE * own.std())


def _products(layer: Any) -> list[nn.Linear]:
    return [getattr(layer, name) for name in _GATED]


def _is_tiled(layer: Any) -> bool:
    return isinstance(layer.__dict__.get("forward"), TiledGated)


def _cut(layers: list[nn.Linear], gated: list[Any], num_bytes: int) -> bool:
    try:
        room = Room(num_bytes)
    except OSError as error:
        log.info("weights have no tiles: %s", error)
        return False
    for layer in layers:
        tiles = room.tiles(layer.weight, columns_of(layer.weight))
        layer.__class__ = TiledLinear
        layer.tiles = tiles
    for layer in gated:
        layer.forward = TiledGated(layer, room)
    return True
