"""Linear layers in 8 bits, as torch runs them.

    int8          CPU: torch's dynamic quantization, per channel: the only one that is faster than fp32 in eager mode
                  GPU: torchao, weights and activations
    int8-weight   torchao, weights only: a quarter of fp32's memory at a small error, slower on CPUs without a compiler

Source: measured per method on MiniLM and SmolLM2 (docs/acceleration.md). This module does not know functions.
"""

from __future__ import annotations

import logging
import warnings
from typing import Any

import torch

from samovar.errors import DeployRefused


def quantized(model: Any, device: str, precision: str) -> Any:
    """Return `model` with its linear layers in 8 bits, itself changed where possible.

    Raises: DeployRefused if torchao is needed and not installed.
    """
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # upstream will move what we call; the tests say when
        if precision == "int8" and not device.startswith("cuda"):
            spec = {torch.nn.Linear: torch.ao.quantization.per_channel_dynamic_qconfig}
            return torch.ao.quantization.quantize_dynamic(  # type: ignore[no-untyped-call]
                model, spec, dtype=torch.qint8
            )
        _torchao(model, precision)
    return model


def _torchao(model: Any, precision: str) -> None:
    logging.getLogger("torchao").setLevel(logging.ERROR)  # it warns of every kernel for a device that is not here
    try:
        from torchao.quantization import Int8DynamicActivationInt8WeightConfig, Int8WeightOnlyConfig, quantize_
    except ImportError as error:
        raise DeployRefused(
            f'precision "{precision}" needs the package torchao where it is deployed from, and in a layer: {error}'
        ) from error
    quantize_(model, Int8WeightOnlyConfig() if precision == "int8-weight" else Int8DynamicActivationInt8WeightConfig())
