"""Weights that lie transposed: the same values in the same parameters, and nothing copied that may not be."""

from __future__ import annotations

import resource
from typing import Any

import pytest
import torch
from torch import nn

from samovar_instance.engines.generation.contract import Sequence
from samovar_instance.engines.generation.layout import NO_PADDING, Layout, Padding
from samovar_instance.engines.generation.scheduler import Run, Segment
from samovar_instance.engines.generation.weights import transpose

ROOMY = 1 << 20


class Model(nn.Module):
    """Two linear layers, a head that is the embedding, and what is no product of rows."""

    def __init__(self, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.embedding = nn.Embedding(7, 5)
        self.wide = nn.Linear(5, 9)
        self.narrow = nn.Linear(9, 5, bias=False)
        self.head = nn.Linear(5, 7, bias=False)
        self.head.weight = self.embedding.weight
        self.to(dtype)

    def forward(self, ids: torch.Tensor) -> Any:
        return self.head(self.narrow(self.wide(self.embedding(ids)).relu()))


def lie_transposed(model: Model) -> list[bool]:
    return [module.weight.t().is_contiguous() for module in (model.wide, model.narrow, model.head)]


@torch.inference_mode()
def test_weights_of_layers_lie_transposed_and_are_the_same() -> None:
    model = Model()
    parameters, before = dict(model.named_parameters()), {k: v.clone() for k, v in model.state_dict().items()}
    ids = torch.arange(7)
    logits = model(ids)
    assert transpose(model, ROOMY)
    assert lie_transposed(model) == [True, True, False]  # the head is the embedding
    assert all(parameters[name] is parameter for name, parameter in model.named_parameters())
    assert all(torch.equal(before[name], tensor) for name, tensor in model.state_dict().items())
    assert all(module.weight.data_ptr() % 64 == 0 for module in (model.wide, model.narrow))
    torch.testing.assert_close(model(ids), logits)


def test_what_lies_transposed_is_not_copied_again() -> None:
    model = Model()
    transpose(model, ROOMY)
    places = [module.weight.data_ptr() for module in (model.wide, model.narrow)]
    assert transpose(model, 0)
    assert places == [module.weight.data_ptr() for module in (model.wide, model.narrow)]


def test_copies_are_bounded_and_of_float32_alone() -> None:
    large, half = Model(), Model(torch.bfloat16)
    num_bytes = 2 * 48 * 4  # two weights of 45 numbers, each from a cache line on
    assert not transpose(large, num_bytes - 1)
    assert lie_transposed(large) == [False, False, False]
    assert transpose(large, num_bytes)
    assert not transpose(half, ROOMY)
    assert lie_transposed(half) == [False, False, False]
    assert transpose(nn.Embedding(3, 4), 0)  # there is nothing to do


def test_weights_stay_where_the_process_may_not_have_the_copy() -> None:
    model = Model()
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    resource.setrlimit(resource.RLIMIT_DATA, (1, hard))
    try:
        is_transposed = transpose(model, ROOMY)
    finally:
        resource.setrlimit(resource.RLIMIT_DATA, (soft, hard))
    assert not is_transposed
    assert lie_transposed(model) == [False, False, False]


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
