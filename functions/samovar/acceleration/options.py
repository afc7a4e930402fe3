"""What authors declare about how their models are run, which of it goes together, and what a build found.

This module does not know torch, files or devices.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from samovar.acceleration.speculation import Speculation
from samovar.errors import DeployRefused
from samovar.values import Struct, require

PrecisionName = Literal["fp32", "fp16", "bf16", "int8", "int8-weight"]
CompileName = Literal["", "inductor"]
EngineName = Literal["", "onnx", "tensorrt"]
AttentionName = Literal["", "sdpa", "eager", "flash_attention_2", "flash_attention_3"]

FOLDER = ".samovar"  # of what was built, beside the weights
TORCHAO = "torchao>=0.10"


class Precision(Struct, frozen=True):
    """What a model computes in. The error against fp32 is measured at deploy, on the version's example.

    name: "fp32" · "fp16", "bf16": weights and activations · "int8": weights, and activations by the range of each
    batch · "int8-weight": weights only, half the memory of bf16.
    """

    name: PrecisionName


class Acceleration(Struct, frozen=True, kw_only=True):
    """How a version's models are run. All empty: as the author's code makes them.

    precision: see Precision. compile: "inductor" makes machine code of the model, once, at deploy. engine: another
    runtime for the model's forward. attention: the kernel that transformers uses. speculation: drafts of a text that is
    generated, None = none.
    """

    precision: PrecisionName | Literal[""] = ""
    compile: CompileName = ""
    engine: EngineName = ""
    attention: AttentionName = ""
    speculation: Speculation | None = None

    @property
    def is_built(self) -> bool:
        """Whether something is made at deploy that goes up with the version."""
        return bool(self.compile or self.engine)


class Kind(Struct, frozen=True, kw_only=True):
    """The kind of machine that something was built for. device: "cpu" or the GPU's name; isa: vector instructions."""

    device: str
    machine: str
    isa: str
    torch: str


class Difference(Struct, frozen=True, kw_only=True):
    """The answer to the example against that of the same code in fp32. cosine, max_abs: over all its numbers, None if
    it has none or not as many; same: it is the same JSON. speedup: time of fp32 by its time, where it was built."""

    cosine: float | None
    max_abs: float | None
    same: bool
    speedup: float


class Built(Struct, frozen=True, kw_only=True):
    """What a build found. kind: where. difference: None without an example."""

    kind: Kind
    difference: Difference | None = None


_ISA_RANK = ("DEFAULT", "AVX2", "AVX512")


def check(acceleration: Acceleration, *, num_gpus: int, has_example: bool) -> None:
    """Return if what is declared can be done. Raises: DeployRefused with the reason.

    Args: num_gpus: of one instance. has_example: the function says how it is called.
    """
    if acceleration.is_built:
        what = f'compile="{acceleration.compile}"' if acceleration.compile else f'engine="{acceleration.engine}"'
        require(has_example, f"{what} needs example=: that call is what the model is built from")
    require(
        not (acceleration.compile and acceleration.engine),
        "compile= and engine= are two ways to run the model: take one",
    )
    if acceleration.engine == "tensorrt":
        require(num_gpus > 0, 'engine="tensorrt" runs on GPUs: sv.Resources(gpus=1), or --gpus 1')
    if acceleration.attention.startswith("flash"):
        require(num_gpus > 0, f'attention="{acceleration.attention}" runs on GPUs; on CPUs "sdpa" is the fast one')
    if acceleration.precision == "int8" and acceleration.compile:
        raise DeployRefused('precision "int8" and compile="inductor" do not go together; engine="onnx" does')
    if acceleration.precision == "int8-weight" and acceleration.is_built:
        raise DeployRefused('precision "int8-weight" is for models that torch runs: leave compile= and engine= out')


def requirements(acceleration: Acceleration, num_gpus: int) -> list[str]:
    """Return the pip requirements of what is declared; they come as a layer of the version's own."""
    by_torchao = acceleration.precision == "int8-weight" or (acceleration.precision == "int8" and num_gpus > 0)
    needed = [TORCHAO] if by_torchao and not acceleration.engine else []
    return needed + {"onnx": ["onnxruntime>=1.20"], "tensorrt": ["torch-tensorrt"], "": []}[acceleration.engine]


def mismatch(built: Kind, here: Kind) -> str:
    """Return why what was built for one kind of machine does not run on another, "" if it does."""
    for field in ("device", "machine", "torch"):
        ours, theirs = getattr(here, field), getattr(built, field)
        if ours != theirs:
            return f"it was built for {field} {theirs}, and here it is {ours}: deploy from a machine of this kind"
    if _rank(built.isa) > _rank(here.isa):
        return f"it was built for {built.isa}, and this machine has {here.isa}: deploy from a machine of this kind"
    return ""


def _rank(isa: str) -> int:
    return _ISA_RANK.index(isa) if isa in _ISA_RANK else 0


def difference(reference: bytes, answer: bytes, speedup: float) -> Difference:
    """Return how `answer` differs from `reference`, both JSON."""
    ours, theirs = (list(_numbers(msgspec.json.decode(body))) for body in (answer, reference))
    is_alike = bool(ours) and len(ours) == len(theirs)
    return Difference(
        cosine=_cosine(ours, theirs) if is_alike else None,
        max_abs=max(abs(a - b) for a, b in zip(ours, theirs, strict=True)) if is_alike else None,
        same=answer == reference,
        speedup=speedup,
    )


def _numbers(value: object) -> list[float]:
    if isinstance(value, bool) or value is None or isinstance(value, str):
        return []
    if isinstance(value, int | float):
        return [float(value)]
    items = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return [number for item in items for number in _numbers(item)]


def _cosine(a: list[float], b: list[float]) -> float:
    norms = sum(x * x for x in a) ** 0.5 * sum(y * y for y in b) ** 0.5
    return sum(x * y for x, y in zip(a, b, strict=True)) / norms if norms else float(a == b)
