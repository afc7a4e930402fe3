"""A model compiled by Torch-TensorRT for one kind of GPU: built at deploy, opened by instances on the same kind.

Needs the package torch-tensorrt and a GPU on both sides. This module does not know functions.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from samovar.acceleration.models import Call, Runner
from samovar.acceleration.tracing import exported
from samovar.errors import DeployRefused


def build(model: Any, call: Call, tensors: list[torch.Tensor], path: Path) -> None:
    """Write the compiled model to `path`. Raises: DeployRefused without a GPU or the package."""
    if not torch.cuda.is_available():
        raise DeployRefused('engine="tensorrt" is built on a GPU of the kind that serves it; this machine has none')
    try:
        import torch_tensorrt
    except ImportError:
        raise DeployRefused('engine="tensorrt" needs the package torch-tensorrt where it is deployed from') from None
    graph = exported(model, call, tensors)
    compiled = torch_tensorrt.dynamo.compile(
        graph, inputs=tensors, enabled_precisions={tensors[0].dtype, torch.float32}
    )
    torch_tensorrt.save(compiled, str(path), inputs=tensors)


def open_model(path: Path) -> Runner:
    """Return what runs the model at `path`. Raises ImportError without the package."""
    import torch_tensorrt

    module = torch_tensorrt.load(str(path)).module()

    def runner(tensors: list[torch.Tensor]) -> list[torch.Tensor]:
        answer = module(*tensors)
        return list(answer) if isinstance(answer, tuple | list) else [answer]

    return runner
