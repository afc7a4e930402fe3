"""A model run by ONNX Runtime: exported at deploy, on the best provider the machine has.

Providers are tried in order: TensorRT, CUDA, CPU. Tensors go in and come out without a copy on the CPU. This module
does not know functions.
"""

from __future__ import annotations

import logging
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import torch

from samovar.acceleration.models import Call, Runner
from samovar.acceleration.options import PrecisionName
from samovar.acceleration.tracing import exported

PROVIDERS = ("TensorrtExecutionProvider", "CUDAExecutionProvider", "CPUExecutionProvider")


def build(model: Any, call: Call, tensors: list[torch.Tensor], path: Path, precision: PrecisionName | str) -> None:
    """Write the model to `path`, an .onnx file, quantized for precision "int8". Raises what the exporter raises."""
    names = call.outputs or ["output"]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of torch about torch
        logging.getLogger("torch.onnx").setLevel(logging.ERROR)
        program = torch.onnx.export(exported(model, call, tensors), output_names=names, dynamo=True, verbose=False)
    assert program is not None
    if precision != "int8":
        program.save(str(path))
        return
    whole = path.with_name(f"whole-{path.name}")
    program.save(str(whole))
    _quantize(whole, path)
    whole.unlink()


def _quantize(whole: Path, path: Path) -> None:
    from onnxruntime.quantization import QuantType, quantize_dynamic

    logging.getLogger().setLevel(logging.ERROR)  # it advises, at the root, on steps that are not needed here
    # reduce_range: CPUs without VNNI saturate on 8 bits times 8 bits
    quantize_dynamic(str(whole), str(path), per_channel=True, reduce_range=True, weight_type=QuantType.QInt8)


def open_model(path: Path, device: str, num_threads: int) -> Runner:
    """Return what runs the model at `path`. Raises ImportError without ONNX Runtime."""
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = num_threads
    options.inter_op_num_threads = 1
    options.log_severity_level = 3
    wanted = PROVIDERS if device.startswith("cuda") else PROVIDERS[-1:]
    providers = [name for name in wanted if name in onnxruntime.get_available_providers()]
    session = onnxruntime.InferenceSession(str(path), options, providers=providers)
    names = [item.name for item in session.get_inputs()]
    outputs = [item.name for item in session.get_outputs()]
    run = session.run

    def runner(tensors: list[torch.Tensor]) -> Sequence[torch.Tensor]:
        arrays = [tensor.detach().cpu().numpy() for tensor in tensors]
        answers = run(outputs, dict(zip(names, arrays, strict=True)))
        return [torch.from_numpy(answer).to(device) for answer in answers]

    return runner
