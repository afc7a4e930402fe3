"""`python -m samovar_instance.build`: make what a version declares of its models, and measure what it costs and gains.

    reference   load and answer the example in fp32, as the code stands
    record      load as declared, answer the example, note how each model is called ─► compile or export each
    serve       load what was built, answer the example: the difference, and how much faster it is

One JSON line on stdin says what (`Task`), one on stdout what came of it (`Built`, or `{"error": …}`). In a process of
its own: it runs the author's code, and compilers. This module does not know deploys or the gateway.
"""

from __future__ import annotations

import os
import statistics
import sys
import time
from pathlib import Path

import msgspec

from samovar.acceleration.models import Recorder, kind_of
from samovar.acceleration.options import FOLDER, Built, Difference, difference
from samovar.acceleration.session import Mode, Session
from samovar.errors import DeployRefused
from samovar.spec import Manifest
from samovar.values import Struct
from samovar_instance import loader
from samovar_instance.loader import BootError, Loaded

NUM_TIMED = 7


class Task(Struct, frozen=True, kw_only=True):
    """weights: a folder with the version's weight files as `load` finds them; what is built goes into it, too. layers:
    folders of packages."""

    manifest: Manifest
    code: str
    weights: str
    layers: list[str] = msgspec.field(default_factory=list)


def build(task: Task) -> Built:
    """Make everything that `task` declares, in its weights folder. Raises: DeployRefused with the reason."""
    declared, device = task.manifest.acceleration, _device(task.manifest)
    folder = Path(task.weights) / FOLDER
    folder.mkdir(exist_ok=True)
    built = Built(kind=kind_of(device))
    plain = _loaded(task, device, "reference") if task.manifest.example is not None else None
    if declared.is_built:
        _write_models(task, device, folder)
    ours = _loaded(task, device, "serve", built)
    if plain is None:
        return built
    return msgspec.structs.replace(built, difference=_compare(plain, ours))


def _device(manifest: Manifest) -> str:
    import torch

    if not manifest.resources.gpus:
        return "cpu"
    if torch.cuda.is_available():
        return "cuda:0"
    if manifest.acceleration.is_built:
        raise DeployRefused(
            "it runs on GPUs, and what is declared is built for one kind of them: this machine has none"
        )
    return "cpu"  # rounding is the same there


def _loaded(task: Task, device: str, mode: Mode, built: Built | None = None) -> Loaded:
    """Load the version in one mode. Raises: DeployRefused with file and line of what raised."""
    session = Session(task.manifest.acceleration, mode, Path(task.weights) / FOLDER, kind=built.kind if built else None)
    try:
        return loader.load(task.manifest, task.code, task.layers, task.weights, device, warm=False, session=session)
    except BootError as error:
        raise DeployRefused(str(error), file=error.file, line=error.line) from error


def _write_models(task: Task, device: str, folder: Path) -> None:
    session = Session(task.manifest.acceleration, "record", folder)
    loaded = loader.load(task.manifest, task.code, task.layers, task.weights, device, warm=False, session=session)
    loader.answer_example(loaded)
    recorders = [model for model in session.models if isinstance(model, Recorder)]
    if not any(recorder.call is not None for recorder in recorders):
        raise DeployRefused(
            "nothing to build: load the model by samovar.torch.load_pretrained, or hand it to samovar.torch.accelerate"
        )
    for number, recorder in enumerate(recorders):
        if recorder.call is not None:
            _write_model(recorder, task, folder / f"model-{number}")


def _write_model(recorder: Recorder, task: Task, at: Path) -> None:
    declared, call = task.manifest.acceleration, recorder.call
    assert call is not None
    at.with_suffix(".json").write_bytes(msgspec.json.encode(call))
    if declared.engine == "onnx":
        from samovar.acceleration import onnx

        onnx.build(recorder.model, call, recorder.tensors, at.with_suffix(".onnx"), declared.precision)
    elif declared.engine == "tensorrt":
        from samovar.acceleration import tensorrt

        tensorrt.build(recorder.model, call, recorder.tensors, at.with_suffix(".ep"))
    else:
        from samovar.acceleration import inductor

        inductor.build(recorder.model, call, recorder.tensors, at.with_suffix(".pt2"))


def _compare(plain: Loaded, ours: Loaded) -> Difference:
    """Return the difference of their numbers, and of their times to answer the example, taken in turns."""
    reference, answer = _numbers_of(plain), _numbers_of(ours)
    times_s: tuple[list[float], list[float]] = ([], [])
    for _ in range(NUM_TIMED):
        for loaded, taken_s in zip((plain, ours), times_s, strict=True):
            started_s = time.perf_counter()
            loader.answer_example(loaded)
            taken_s.append(time.perf_counter() - started_s)
    return difference(reference, answer, statistics.median(times_s[0]) / statistics.median(times_s[1]))


def _numbers_of(loaded: Loaded) -> bytes:
    """Return the answer to the example, or what the engine has in its place, as JSON."""
    return msgspec.json.encode(loaded.probe()) if loaded.probe is not None else loader.answer_example(loaded)


def main() -> int:
    """Do the task on stdin and return the exit code; whatever the author's code prints goes to stderr."""
    answer_fd = os.dup(1)
    os.dup2(2, 1)
    try:
        answer: object = build(msgspec.json.decode(sys.stdin.buffer.read(), type=Task))
        code = 0
    except DeployRefused as refused:
        answer, code = {"error": {"detail": refused.detail, **refused.extra}}, 1
    except Exception as error:  # noqa: BLE001 (compilers and exporters raise anything)
        answer, code = {"error": {"detail": f"it cannot be built: {type(error).__name__}: {error}"[:2000]}}, 1
    with os.fdopen(answer_fd, "wb") as out:
        out.write(msgspec.json.encode(answer) + b"\n")
    return code


if __name__ == "__main__":
    exit_code = main()
    sys.stderr.flush()
    os._exit(exit_code)  # threads of compilers must not hold the deploy up
