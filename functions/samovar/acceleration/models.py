"""One loaded model, made what is declared: the last step of `load_pretrained`, and `accelerate` for other models.

    record      how its forward is called with the example: names, tensors, the type of the answer
    serve       precision, then the model itself, or what was built of it behind the same call

A call that is not as the recorded one (other arguments) is answered by the model as torch runs it, and the log says so
once. This module does not know functions, versions or deploys.
"""

from __future__ import annotations

import inspect
import logging
import platform
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import msgspec
import torch

from samovar.acceleration import session as sessions
from samovar.acceleration.options import Acceleration, Kind, mismatch

logger = logging.getLogger("samovar.torch")

Runner = Callable[[list[torch.Tensor]], Sequence[torch.Tensor]]

DTYPES = {"fp16": torch.float16, "bf16": torch.bfloat16, "fp32": torch.float32}


class Call(msgspec.Struct, frozen=True, kw_only=True):
    """How a model is called. inputs: names of its tensors; constants: other arguments, as JSON; outputs: names of what
    it gives, none for one tensor; output_class: of transformers, "" for a dict, a tuple or a tensor."""

    inputs: list[str]
    constants: dict[str, Any]
    outputs: list[str]
    output_class: str


class Recorder:
    """A model that notes its first call. Everything else about it is the model's own."""

    def __init__(self, model: Any) -> None:
        self.model = model
        self.call: Call | None = None
        self.tensors: list[torch.Tensor] = []

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return the model's answer."""
        answer = self.model(*args, **kwargs)
        if self.call is None:
            named = bind(self.model, args, kwargs)
            tensors = {name: value for name, value in named.items() if isinstance(value, torch.Tensor)}
            constants = {name: value for name, value in named.items() if name not in tensors}
            self.tensors = list(tensors.values())
            self.call = Call(
                inputs=list(tensors),
                constants=constants,
                outputs=output_names(answer),
                output_class=type(answer).__name__ if hasattr(answer, "to_tuple") else "",
            )
        return answer

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)


class Substitute:
    """What was built of a model, called like the model. Everything else about it is the model's own."""

    def __init__(self, model: Any, call: Call, run: Runner) -> None:
        self.model = model
        self._call = call
        self._run = run
        self._class = _output_class(call.output_class)
        self._has_warned = False

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Return what the model would: by what was built of it if the call is as the recorded one."""
        named = bind(self.model, args, kwargs)
        tensors = [named.pop(name, None) for name in self._call.inputs]
        if named != self._call.constants or not all(isinstance(tensor, torch.Tensor) for tensor in tensors):
            self._warn(named)
            return self.model(*args, **kwargs)
        outputs = self._run(tensors)
        if not self._call.outputs:
            return outputs[0]
        return self._class(**dict(zip(self._call.outputs, outputs, strict=True)))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.model, name)

    def _warn(self, named: dict[str, Any]) -> None:
        if not self._has_warned:
            self._has_warned = True
            others = ", ".join(sorted(named)) or "fewer tensors"
            logger.warning("called otherwise than in the example (%s): torch runs such calls, as they are", others)


def bind(model: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments of a call by name, those that are None left out."""
    bound = inspect.signature(model.forward).bind(*args, **kwargs).arguments
    extra = bound.pop("kwargs", {})
    return {name: value for name, value in (bound | extra).items() if value is not None}


def output_names(answer: Any) -> list[str]:
    """Return the names of an answer's tensors, none for a single tensor. Raises TypeError for what cannot be built."""
    if isinstance(answer, torch.Tensor):
        return []
    if isinstance(answer, dict):  # transformers' outputs are
        return [name for name, value in answer.items() if isinstance(value, torch.Tensor)]
    raise TypeError(f"the model gives {type(answer).__name__}: a tensor or named tensors can be built")


def _output_class(name: str) -> Callable[..., Any]:
    from transformers import modeling_outputs

    return getattr(modeling_outputs, name, dict) if name else dict


def declared_now() -> Acceleration:
    """Return what is declared for the load that is going on: all empty if nothing is."""
    session = sessions.current()
    if session is None:
        return Acceleration()
    is_reference = session.mode == "reference"
    return Acceleration(precision="fp32") if is_reference else session.acceleration


def dtype_of(acceleration: Acceleration) -> torch.dtype | None:
    """Return the dtype that weights are loaded in, None if nothing is declared."""
    return DTYPES.get(acceleration.precision)


def accelerate(model: Any, device: str) -> Any:
    """Return a loaded model as the version declares it; without anything declared, the model itself.

    Models are told apart by their order: a `load` makes them in the same order each time.
    Raises: RuntimeError if what was built does not fit this machine.
    """
    session = sessions.current()
    if session is None:
        return model
    made = _made(model, device, session)
    session.models.append(made)
    return made


def _made(model: Any, device: str, session: sessions.Session) -> Any:
    declared = session.acceleration
    if session.mode == "reference":
        return model
    if declared.engine != "onnx" and declared.precision.startswith("int8"):
        from samovar.acceleration.int8 import quantized

        model = quantized(model, device, declared.precision)
    if not declared.is_built:
        return model
    return Recorder(model) if session.mode == "record" else _substitute(model, device, session)


def _substitute(model: Any, device: str, session: sessions.Session) -> Any:
    if session.kind is not None and (reason := mismatch(session.kind, kind_of(device))):
        raise RuntimeError(f"the model cannot run as it was built: {reason}")
    assert session.folder is not None
    at = session.folder / f"model-{len(session.models)}"
    call = msgspec.json.decode(at.with_suffix(".json").read_bytes(), type=Call)
    return Substitute(model, call, _runner(session.acceleration, model, at, device, session.num_threads))


def _runner(declared: Acceleration, model: Any, at: Path, device: str, num_threads: int) -> Runner:
    if declared.engine == "onnx":
        from samovar.acceleration.onnx import open_model

        return open_model(at.with_suffix(".onnx"), device, num_threads)
    if declared.engine == "tensorrt":
        from samovar.acceleration.tensorrt import open_model as open_tensorrt

        return open_tensorrt(at.with_suffix(".ep"))
    from samovar.acceleration.inductor import open_model as open_compiled

    return open_compiled(at.with_suffix(".pt2"), model, device)


def kind_of(device: str) -> Kind:
    """Return what kind of machine this is for models on `device`."""
    name = torch.cuda.get_device_name(device) if device.startswith("cuda") else "cpu"
    isa = torch.backends.cpu.get_cpu_capability() if name == "cpu" else ""
    return Kind(device=name, machine=platform.machine(), isa=isa, torch=str(torch.__version__))
