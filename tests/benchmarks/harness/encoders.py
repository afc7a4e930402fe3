"""MiniLM in several runtimes, side by side in this process: each takes padded ids and a mask, and returns embeddings.

A runtime that is not installed here, or cannot be built, says why instead. This module does not know the platform.
"""

from __future__ import annotations

import copy
import shutil
import tempfile
import time
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from harness import minilm
from harness.example import Example
from samovar.options import resolve_weights
from samovar.tokenizer import load_tokenizer

Batch: TypeAlias = tuple[Tensor, Tensor]  # ids and mask, int64 [texts, tokens]
Runtime: TypeAlias = Callable[[Tensor, Tensor], Tensor]  # to float32 [texts, width], rows of length one


@dataclass(frozen=True)
class Built:
    """A runtime that works here. build_s: seconds it took to make."""

    run: Runtime
    build_s: float


def load_model() -> Any:
    """Return MiniLM with float32 weights, on the CPU."""
    from transformers import BertModel

    from samovar.torch import load_pretrained

    return load_pretrained(_weights(), BertModel)


def load_tokens() -> Tokenizer:
    """Return its tokenizer."""
    return load_tokenizer(_weights())


def _weights() -> Path:
    weights = Example(minilm.APP).definition.weights
    assert weights is not None
    return resolve_weights(weights, minilm.APP.parent)


def padded(rows: Sequence[Sequence[int]]) -> Batch:
    """Return ids, padded to the longest row, and the mask of what is no padding."""
    tensors = [torch.tensor(row) for row in rows]
    ids = pad_sequence(tensors, batch_first=True)
    return ids, pad_sequence([torch.ones_like(row) for row in tensors], batch_first=True)


def eager(model: Any) -> Runtime:
    """The model as it is."""
    return lambda ids, mask: pooled(model(input_ids=ids, attention_mask=mask).last_hidden_state, mask)


def int8(model: Any) -> Runtime:
    """Its linear layers with int8 weights, activations quantized as they come (torch's own, eager)."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        quantized = torch.ao.quantization.quantize_dynamic(  # type: ignore[no-untyped-call]
            copy.deepcopy(model), {torch.nn.Linear}, dtype=torch.qint8
        )
    return eager(quantized)


def inductor(model: Any) -> Runtime:
    """Compiled for any shape, with the system's C++ compiler."""
    if shutil.which("g++") is None and shutil.which("clang++") is None:
        raise RuntimeError("there is no C++ compiler here")
    return eager(torch.compile(copy.deepcopy(model), dynamic=True))


def onnx(model: Any) -> Runtime:
    """Exported once and run by ONNX Runtime on one thread."""
    return _session(model, lambda path: path)


def onnx_int8(model: Any) -> Runtime:
    """The same with int8 weights, activations quantized as they come (ONNX Runtime's own)."""

    def quantize(path: Path) -> Path:
        from onnxruntime.quantization import QuantType, quantize_dynamic

        quantized = path.with_name("int8.onnx")
        quantize_dynamic(path, quantized, weight_type=QuantType.QInt8, op_types_to_quantize=["MatMul"])
        return quantized

    return _session(model, quantize)


RUNTIMES: Mapping[str, Callable[[Any], Runtime]] = {
    "eager": eager,
    "int8": int8,
    "onnx": onnx,
    "onnx_int8": onnx_int8,
    "inductor": inductor,
}


def build(name: str, model: Any, batches: Sequence[Batch]) -> Built | str:
    """Return a runtime that has run every batch once, or why there is none."""
    started_s = time.perf_counter()
    try:
        runtime = RUNTIMES[name](model)
        built = Built(runtime, 0.0)
        outputs(built, batches)
    except Exception as error:  # noqa: BLE001 (a runtime may fail in ways of its own; then its row says so)
        return f"{type(error).__name__}: {str(error).splitlines()[0][:200] if str(error) else ''}"
    return replace(built, build_s=time.perf_counter() - started_s)


@torch.inference_mode()
def outputs(built: Built, batches: Sequence[Batch]) -> list[Tensor]:
    """Return the embeddings of every batch."""
    return [built.run(*batch) for batch in batches]


def pooled(hidden: Tensor, mask: Tensor) -> Tensor:
    """Return the mean over each text's tokens, of length one. hidden: [texts, tokens, width]."""
    total = (hidden * mask.unsqueeze(-1)).sum(1) / mask.sum(1, keepdim=True)
    return torch.nn.functional.normalize(total, dim=1)


def min_cosine(outputs: Sequence[Tensor], expected: Sequence[Tensor]) -> float:
    """Return the worst cosine between the embeddings of two runtimes."""
    return min(float((a * b).sum(1).min()) for a, b in zip(outputs, expected, strict=True))


class _Hidden(torch.nn.Module):
    """The model with what it is asked for as positions, and one tensor as its answer: what exporters take."""

    def __init__(self, model: Any) -> None:
        super().__init__()
        self.model = model

    def forward(self, ids: Tensor, mask: Tensor) -> Tensor:
        hidden: Tensor = self.model(input_ids=ids, attention_mask=mask).last_hidden_state
        return hidden


def _session(model: Any, transform: Callable[[Path], Path]) -> Runtime:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    with tempfile.TemporaryDirectory(prefix="samovar-bench-") as folder:
        path = transform(_exported(model, Path(folder) / "model.onnx"))
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])

    def run(ids: Tensor, mask: Tensor) -> Tensor:
        hidden: np.ndarray[Any, Any] = session.run(None, {"ids": ids.numpy(), "mask": mask.numpy()})[0]
        return pooled(torch.from_numpy(hidden), mask)

    return run


def _exported(model: Any, path: Path) -> Path:
    # of different lengths: a mask that hides nothing would be left out of what is exported
    ids, mask = padded([[101, 2000, 102], [101, 2000, 2001, 2002, 102]])
    texts, tokens = torch.export.Dim("texts"), torch.export.Dim("tokens", max=512)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the exporter about itself
        torch.onnx.export(
            _Hidden(model).eval(),
            (ids, mask),
            path,
            input_names=["ids", "mask"],
            dynamic_shapes=({0: texts, 1: tokens}, {0: texts, 1: tokens}),
            dynamo=True,
            external_data=False,
            verbose=False,
        )
    return path
