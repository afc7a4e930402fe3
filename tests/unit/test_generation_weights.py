"""Weights in tiles: the same products to rounding, parameters as they were, nothing copied that may not be."""

from __future__ import annotations

import resource
from typing import Any

import pytest
import torch
from torch import nn

from samovar_instance.engines.generation.contract import Sequence
from samovar_instance.engines.generation.layout import NO_PADDING, Layout, Padding
from samovar_instance.engines.generation.scheduler import Run, Segment
from samovar_instance.engines.generation.weights import (
    MAX_ROWS,
    MAX_TILED_ROWS,
    TiledGated,
    TiledLinear,
    columns_of,
    num_columns,
    tile,
)

ROOMY = 1 << 23
TILED_BYTES = 4 * (5 * 128 + 128 * 96)  # of the layers that can be cut
GATED_BYTES = 3 * 4 * 48 * 192


class Model(nn.Module):
    """Two linear layers that can be cut, and a head that is the embedding and cannot."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 5)
        self.wide = nn.Linear(5, 128)
        self.narrow = nn.Linear(128, 96, bias=False)
        self.back = nn.Embedding(96, 5)
        self.head = nn.Linear(5, 7, bias=False)
        self.head.weight = self.embedding.weight
        self.to(dtype)

    def forward(self, ids: torch.Tensor) -> Any:
        return self.head(self.narrow(self.wide(self.embedding(ids)).relu()) @ self.back.weight)

    def get_output_embeddings(self) -> nn.Module:
        return self.head


def are_tiled(model: Model) -> list[bool]:
    return [type(module) is TiledLinear for module in (model.wide, model.narrow, model.head)]


@pytest.mark.parametrize("shape", [(1,), (2,), (3, 5), (1, 16), (1, MAX_ROWS), (1, MAX_ROWS + 1)])
@torch.inference_mode()
def test_products_by_tiles_are_the_same(shape: tuple[int, ...]) -> None:
    model = Model()
    parameters, before = dict(model.named_parameters()), {k: v.clone() for k, v in model.state_dict().items()}
    ids = torch.randint(7, shape)
    logits = model(ids)
    assert tile(model, ROOMY)
    assert are_tiled(model) == [True, True, False]
    assert all(parameters[name] is parameter for name, parameter in model.named_parameters())
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    tiled = [module for module in model.modules() if isinstance(module, TiledLinear)]
    assert [module.tiles.data_ptr() % 64 for module in tiled] == [0, 0]
    torch.testing.assert_close(model(ids), logits)


class Gated(nn.Module):
    """What most decoders have between their attentions."""

    def __init__(self, act: Any, *, bias: bool = False, num_inner: int = 192) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(48, num_inner, bias=bias)
        self.up_proj = nn.Linear(48, num_inner, bias=bias)
        self.down_proj = nn.Linear(num_inner, 48, bias=bias)
        self.act_fn = act

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        down: torch.Tensor = self.down_proj(self.act_fn(self.gate_proj(x)) * self.up_proj(x))
        return down


class Clamped(Gated):
    """The same names, and something else."""

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return super().forward(x).clamp(max=0.01)


def is_gated(layer: nn.Module) -> bool:
    return isinstance(layer.__dict__.get("forward"), TiledGated)


@pytest.mark.parametrize("num_out", [128, 4096], ids=["one tile", "many"])
@torch.inference_mode()
def test_few_rows_are_computed_from_the_tiles_and_one_or_many_from_the_weight(num_out: int) -> None:
    model = nn.Sequential(nn.Linear(128, num_out))
    most = MAX_ROWS if num_out == 128 else MAX_TILED_ROWS
    assert tile(model, ROOMY)
    layer = model[0]
    assert isinstance(layer, TiledLinear)
    rows = torch.randn(most + 1, 128)
    own = nn.functional.linear(rows, layer.weight, layer.bias)
    for num_rows in (1, 2, 7, most, most + 1):
        torch.testing.assert_close(layer(rows[:num_rows]), own[:num_rows])
    layer.tiles.zero_()
    assert layer.bias is not None
    uses_tiles = {num: bool(torch.equal(layer(rows[:num])[0], layer.bias)) for num in (1, 2, most, most + 1)}
    assert uses_tiles == {1: False, 2: True, most: True, most + 1: False}


@pytest.mark.parametrize("act", [nn.SiLU(), nn.GELU(approximate="tanh"), torch.relu], ids=["silu", "gelu", "relu"])
@pytest.mark.parametrize("shape", [(1, 1), (2,), (3, 5), (1, MAX_ROWS), (1, MAX_ROWS + 1)])
@torch.inference_mode()
def test_a_gated_layer_computes_the_same_from_tiles(shape: tuple[int, ...], act: Any) -> None:
    model = nn.Sequential(Gated(act), Gated(act))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    x = torch.randn(*shape, 48)
    own = model(x)
    assert tile(model, 2 * GATED_BYTES)
    assert [is_gated(layer) for layer in model] == [True, True]
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    kept = x.clone()
    torch.testing.assert_close(model(x), own)
    assert torch.equal(x, kept)
    assert tile(model, 0)  # it has them already
    tiles = model[0].forward
    assert isinstance(tiles, TiledGated)
    tiles.gate.zero_()
    uses_tiles = 2 <= x.numel() // 48 <= MAX_ROWS
    assert bool(model[0](x).any()) != uses_tiles


@pytest.mark.parametrize("wanted", [[], [3], [0, 4], [4, 0, 4], [0, 1, 2, 3, 4]])
@torch.inference_mode()
def test_rows_that_nobody_wants_are_zero(wanted: list[int]) -> None:
    model = nn.Sequential(Gated(nn.SiLU()))
    x = torch.randn(1, 5, 48)
    own = model(x)
    assert tile(model, GATED_BYTES)
    tiles = model[0].forward
    assert isinstance(tiles, TiledGated)
    tiles.wanted = torch.tensor(wanted, dtype=torch.int64)
    out = model(x)[0]
    torch.testing.assert_close(out[wanted], own[0, wanted])
    assert not out[[row for row in range(5) if row not in wanted]].any()


@torch.inference_mode()
def test_what_is_not_finite_in_one_row_stays_in_it() -> None:
    model = nn.Sequential(Gated(nn.SiLU()))
    x = torch.randn(6, 48)
    own = model(x)
    assert tile(model, GATED_BYTES)
    x[2, 3] = torch.nan
    out = model(x)
    assert out[2].isnan().all()
    torch.testing.assert_close(torch.cat([out[:2], out[3:]]), torch.cat([own[:2], own[3:]]))


@pytest.mark.parametrize(
    "layer",
    [
        Clamped(nn.SiLU()),
        Gated(nn.Softmax(-1)),
        Gated(nn.SiLU(), bias=True),
        Gated(nn.SiLU(), num_inner=50),
    ],
    ids=["something else", "across numbers", "with biases", "not to be cut"],
)
@torch.inference_mode()
def test_what_only_looks_like_a_gated_layer_stays_one_of_its_own(layer: Gated) -> None:
    x = torch.randn(1, 5, 48)
    own = layer(x)
    tile(layer, ROOMY)
    assert not is_gated(layer)
    torch.testing.assert_close(layer(x), own)


def test_what_has_tiles_keeps_them() -> None:
    model = Model()
    tile(model, ROOMY)
    assert isinstance(model.wide, TiledLinear)
    place = model.wide.tiles.data_ptr()
    assert tile(model, 0)
    assert model.wide.tiles.data_ptr() == place


def test_tiles_are_bounded_and_of_float32_alone() -> None:
    large, half = Model(), Model(torch.bfloat16)
    assert not tile(large, TILED_BYTES - 1)
    assert are_tiled(large) == [False, False, False]
    assert tile(large, TILED_BYTES)
    assert not tile(half, ROOMY)
    assert are_tiled(half) == [False, False, False]
    assert tile(nn.Embedding(3, 4), 0)  # there is nothing to do


@pytest.mark.parametrize(
    ("num_out", "columns"),
    [(576, 192), (49_152, 256), (32_000, 256), (4_096, 256), (64, 64), (48, 0), (50_257, 0), (97, 0)],
)
def test_tiles_are_equal_and_of_whole_cache_lines(num_out: int, columns: int) -> None:
    assert num_columns(num_out) == columns
    assert columns_of(torch.empty(num_out, 1 << 20, device="meta")) == columns


@pytest.mark.parametrize(
    ("shape", "columns"),
    [((576, 576), 576), ((48, 16), 48), ((47, 16), 0), ((1024, 1024), 256)],
    ids=["fits a cache", "small", "no cache lines", "too large"],
)
def test_a_weight_that_fits_a_cache_is_one_tile(shape: tuple[int, int], columns: int) -> None:
    assert columns_of(torch.empty(shape)) == columns


def test_weights_have_no_tiles_where_the_process_may_not_have_the_memory() -> None:
    model = Model()
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (1, hard))
    try:
        is_tiled = tile(model, ROOMY)
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
    assert not is_tiled
    assert are_tiled(model) == [False, False, False]


@pytest.mark.parametrize(
    ("num_decodes", "padding", "num_rows", "num_logit_rows"),
    [
        (8, Padding(), 8, 16),
        (9, Padding(), 16, 16),
        (16, Padding(), 16, 16),
        (9, NO_PADDING, 9, 9),
        (6, Padding(), 6, 6),
    ],
)
def test_rows_are_padded_to_numbers_that_are_faster(
    num_decodes: int, padding: Padding, num_rows: int, num_logit_rows: int
) -> None:
    runs = [Run(Sequence([1], 1, None, None), [1]) for _ in range(num_decodes)]  # type: ignore[arg-type]
    for run in runs:
        run.table.blocks.append(0)
    layout = Layout([Segment(run, 0, 1, 1) for run in runs], 4, padding)
    assert (len(layout.tokens), len(layout.slots), len(layout.logit_rows)) == (num_rows, num_rows, num_logit_rows)
    assert layout.num_logits == num_decodes
