"""A recorded call of a model as a graph of torch.export: what compilers and other runtimes are given.

Sizes that the example has may be others later: every dimension of every input is free, as far as the model's own code
leaves it. This module does not know what is made of the graph.
"""

from __future__ import annotations

from typing import Any

import torch

from samovar.acceleration.models import Call


class _Positional(torch.nn.Module):
    """The model with its tensors in order, and its outputs as a tuple."""

    def __init__(self, model: Any, call: Call) -> None:
        super().__init__()
        self.model = model
        self._call = call

    def forward(self, *tensors: torch.Tensor) -> Any:
        named = dict(zip(self._call.inputs, tensors, strict=True))
        answer = self.model(**named, **self._call.constants)
        return tuple(answer[name] for name in self._call.outputs) if self._call.outputs else (answer,)


def exported(model: Any, call: Call, tensors: list[torch.Tensor]) -> torch.export.ExportedProgram:
    """Return the graph of a recorded call. Raises whatever torch.export raises for a model that it cannot follow."""
    inputs = tuple(at_least_two(tensors))
    free = torch.export.Dim.AUTO
    shapes = {"tensors": tuple({axis: free for axis in range(tensor.dim())} for tensor in inputs)}
    with torch.no_grad():
        return torch.export.export(_Positional(model, call), inputs, dynamic_shapes=shapes, strict=False)


def at_least_two(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
    """Return the tensors of a batch of two if they are one of one: a size of 1 would be built in as a constant."""
    is_single = all(tensor.dim() > 0 and tensor.shape[0] == 1 for tensor in tensors)
    return [torch.cat([tensor, tensor]) for tensor in tensors] if is_single else tensors
