"""What a version of a function looks like as a model of the Open Inference Protocol. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from samovar import __version__
from samovar.errors import InvalidInput, RequestError
from samovar.spec import Manifest, streams
from samovar.tensor_codec import TensorValue
from samovar.tensor_plain import flatten, pack
from samovar.tensors import TensorSpec

PLATFORM = "samovar"
_DATA_TYPES = {"BYTES": "TYPE_STRING"}
EXTENSIONS = ("binary_tensor_data", "model_repository", "statistics", "generate")


def server_metadata() -> dict[str, Any]:
    """Return what the server says of itself."""
    return {"name": PLATFORM, "version": __version__, "extensions": [*EXTENSIONS]}


def model_metadata(manifest: Manifest, versions: Iterable[int]) -> dict[str, Any]:
    """Return name, versions and tensors of a model. versions: all that the route has."""
    return {
        "name": manifest.name,
        "versions": [str(number) for number in sorted(versions)],
        "platform": PLATFORM,
        "inputs": [tensor_metadata(spec) for spec in manifest.inputs],
        "outputs": [tensor_metadata(spec) for spec in manifest.outputs],
    }


def model_config(manifest: Manifest) -> dict[str, Any]:
    """Return a model's configuration: its tensors, the batch dimension among the others, and whether it streams."""
    return {
        "name": manifest.name,
        "platform": PLATFORM,
        "max_batch_size": 0,
        "input": [_tensor_config(spec) for spec in manifest.inputs],
        "output": [_tensor_config(spec) for spec in manifest.outputs],
        "model_transaction_policy": {"decoupled": streams(manifest)},
    }


def _tensor_config(spec: TensorSpec) -> dict[str, Any]:
    return {
        "name": spec.name,
        "data_type": _DATA_TYPES.get(spec.datatype, f"TYPE_{spec.datatype}"),
        "dims": [*spec.shape],
    }


def tensor_metadata(spec: TensorSpec) -> dict[str, Any]:
    """Return one tensor as metadata has it: what may have any number of dimensions is shown with one."""
    return {"name": spec.name, "datatype": spec.datatype, "shape": [*spec.shape]}


def index_entry(manifest: Manifest) -> dict[str, str]:
    """Return a version as the repository index lists it. One that sleeps is ready, one without tensors is not."""
    state = "READY" if manifest.inputs else "UNAVAILABLE"
    return {"name": manifest.name, "version": str(manifest.version), "state": state, "reason": _why_none(manifest)}


def require_tensors(manifest: Manifest) -> None:
    """Return if a version can be asked by tensors. Raises: RequestError saying why it cannot."""
    if not manifest.inputs:
        told = f"{manifest.ref} cannot be asked by tensors: {_why_none(manifest)}; its native route takes JSON"
        raise RequestError(told)


def required(manifest: Manifest) -> list[str]:
    """Return the inputs that may not be missing. With batching the one field, or those of the one item."""
    named = manifest.input_schema.get("required", ())
    return [spec.name for spec in manifest.inputs if spec.name in named]


def check_outputs(manifest: Manifest, names: Sequence[str]) -> None:
    """Return if a version has these outputs. Raises: InvalidInput naming one that it has not."""
    known = [spec.name for spec in manifest.outputs]
    for name in names:
        if name not in known:
            told = f"{name[:100]}: there is no output of this name; there is {', '.join(known)}"
            raise InvalidInput(told, path=name[:100])


def wanted(outputs: Sequence[TensorValue], names: Sequence[str]) -> list[TensorValue]:
    """Return the outputs that were asked for, in that order; all of them if none were named."""
    if not names:
        return [*outputs]
    found = {output.name: output for output in outputs}
    return [found[name] for name in names if name in found]


def from_plain(value: Any, manifest: Manifest) -> list[TensorValue]:
    """Return one answer that is JSON as the tensors of `manifest`, without a batch dimension: what stands in for an
    answer may be a value. Raises: InvalidInput if it is not of its types."""
    is_batch = manifest.batch is not None
    tensors = []
    for spec in manifest.outputs:
        field = value.get(spec.name) if isinstance(value, dict) else value
        if field is None:
            continue
        shape = spec.shape[1:] if is_batch else spec.shape
        if not is_batch and not isinstance(field, list):
            field = [field]
        sizes, flat = flatten(spec.name, field, len(shape))
        tensors.append(TensorValue(spec.name, spec.datatype, tuple(sizes), pack(spec.name, spec.datatype, flat)))
    return tensors


def _why_none(manifest: Manifest) -> str:
    if manifest.inputs:
        return ""
    return manifest.no_tensors or "it was deployed before types were read as tensors: deploy it again"
