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
from samovar_instance.engines.generation.weights import MAX_ROWS, TiledLinear, num_columns, tile

ROOMY = 1 << 20
TILED_BYTES = 4 * (5 * 128 + 128 * 96)  # of the layers that can be cut


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


@torch.inference_mode()
def test_few_rows_are_computed_from_the_tiles_and_one_or_many_from_the_weight() -> None:
    model = Model()
    tile(model, ROOMY)
    assert isinstance(model.narrow, TiledLinear)
    model.narrow.tiles.zero_()
    seen = {num_rows: bool(model.narrow(torch.ones(1, num_rows, 128)).any()) for num_rows in (1, 2, MAX_ROWS, 161)}
    assert seen == {1: True, 2: False, MAX_ROWS: False, 161: True}


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
    [(576, 192), (49_152, 192), (32_000, 160), (4_096, 128), (64, 64), (48, 0), (50_257, 0), (97, 0)],
)
def test_tiles_are_equal_and_of_whole_cache_lines(num_out: int, columns: int) -> None:
    assert num_columns(num_out) == columns


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
