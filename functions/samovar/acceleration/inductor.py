"""A model as machine code: compiled ahead of time at deploy (torch's AOTInductor), opened by instances.

Nothing is traced or compiled when it is opened, and no process is started: the sandbox allows none. The code holds no
weights: it uses those that were loaded, which stay mapped from their file. This module does not know sandboxes.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import torch

from samovar.acceleration.models import Call, Runner
from samovar.acceleration.tracing import exported

_PREFIX = "model."  # of the wrapper that was traced


def build(model: Any, call: Call, tensors: list[torch.Tensor], path: Path) -> None:
    """Write the compiled model to `path`, a .pt2 file. Raises whatever torch raises; without a C++ compiler that is
    one."""
    from torch._inductor import aoti_compile_and_package

    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch about torch
        graph = exported(model, call, tensors)
        aoti_compile_and_package(
            graph,
            package_path=str(path),
            inductor_configs={"aot_inductor.package_constants_in_so": False},
        )


def open_model(path: Path, model: Any, device: str) -> Runner:
    """Return what runs the compiled model at `path` with the weights of `model`. Raises RuntimeError.

    Not by `aoti_load_package`: that starts the compiler to ask for its version.
    """
    index = torch.device(device).index if device.startswith("cuda") else -1
    loader = torch._C._aoti.AOTIModelPackageLoader(str(path), "model", False, 1, -1 if index is None else index)
    values = dict(model.named_parameters()) | dict(model.named_buffers())
    names = loader.get_constant_fqns()
    constants = {name: values[name.removeprefix(_PREFIX)].detach() for name in names}
    loader.load_constants(constants, False, True, True)  # use_inactive, check_full_update, user_managed
    return loader.run
