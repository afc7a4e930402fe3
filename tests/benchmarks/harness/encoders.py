"""MiniLM in several runtimes, side by side in this process: each takes padded ids and a mask, and returns embeddings.

A runtime that is not installed here, or cannot be built, says why instead. This module does not know the platform.
"""

from __future__ import annotations

import copy
import shutil
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, TypeAlias

import torch
from tokenizers import Tokenizer
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from harness import minilm
from harness.example import Example
from samovar.acceleration.models import Call
from samovar.options import resolve_weights
from samovar.tokenizer import load_tokenizer

Batch: TypeAlias = tuple[Tensor, Tensor]  # ids and mask, int64 [texts, tokens]
Runtime: TypeAlias = Callable[[Tensor, Tensor], Tensor]  # to float32 [texts, width], rows of length one

CALL = Call(inputs=["input_ids", "attention_mask"], constants={}, outputs=["last_hidden_state"], output_class="")
EXAMPLE: Batch = (torch.tensor([[101, 2000, 102]]), torch.ones(1, 3, dtype=torch.long))


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


def bf16(model: Any) -> Runtime:
    """Weights and activations in 16 bits."""
    halved = eager(copy.deepcopy(model).to(torch.bfloat16))
    return lambda ids, mask: halved(ids, mask).float()


def int8(model: Any) -> Runtime:
    """`precision=sv.Precision("int8")`."""
    from samovar.acceleration.int8 import quantized

    return eager(quantized(copy.deepcopy(model), "cpu", "int8"))


def inductor(model: Any) -> Runtime:
    """`compile="inductor"`: compiled ahead of time for any shape, with the system's C++ compiler."""
    from samovar.acceleration import inductor as aot

    if shutil.which("g++") is None and shutil.which("clang++") is None:
        raise RuntimeError("there is no C++ compiler here")
    with tempfile.TemporaryDirectory(prefix="samovar-bench-") as folder:
        path = Path(folder) / "model.pt2"
        aot.build(model, CALL, [*EXAMPLE], path)
        return _of(aot.open_model(path, model, "cpu"))


def onnx(model: Any) -> Runtime:
    """`engine="onnx"`, on one thread."""
    return _by_onnx(model, "fp32")


def onnx_int8(model: Any) -> Runtime:
    """`engine="onnx", precision=sv.Precision("int8")`, on one thread."""
    return _by_onnx(model, "int8")


def _by_onnx(model: Any, precision: str) -> Runtime:
    from samovar.acceleration import onnx as ort

    with tempfile.TemporaryDirectory(prefix="samovar-bench-") as folder:
        path = Path(folder) / "model.onnx"
        ort.build(model, CALL, [*EXAMPLE], path, precision)
        return _of(ort.open_model(path, "cpu", 1))


def _of(runner: Callable[[list[Tensor]], Sequence[Tensor]]) -> Runtime:
    return lambda ids, mask: pooled(runner([ids, mask])[0], mask)


RUNTIMES: Mapping[str, Callable[[Any], Runtime]] = {
    "eager": eager,
    "bf16": bf16,
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
