"""Between JSON bytes and Python values: schemas, the decoder of inputs and the encoder of outputs.

Both are made once per version and then called per invocation, so everything that can be looked up before is.
Tensors and arrays are recognised by their `tolist`, never by importing torch or numpy.
This module does not know batching, sockets or the manifest.
"""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Callable
from operator import attrgetter
from typing import Any

import msgspec

from samovar.authoring import Definition
from samovar.errors import BadOutput, InvalidInput, RequestError

_PATH = re.compile(r"^(?P<message>.*?)(?: - at `(?P<path>[^`]*)`)?$", re.DOTALL)
_MISSING = re.compile(r"missing required field `([^`]+)`")
_ARRAYS = {("numpy", "ndarray"), ("torch", "Tensor")}


class Input:
    """Decodes what clients send and shapes it into the handler's arguments.

    Usage: `value = input.decode(body)`, then `handler(*input.invoke_args(value))`; with batching, values are the items:
    `handler(*input.invoke_args([value, …]))`. item: what makes a batch handler's item of a decoded body, None for none.
    """

    def __init__(self, definition: Definition) -> None:
        """Prepare for `definition`. Raises TypeError if its input type cannot be decoded from JSON."""
        signature = definition.signature
        self._decode = msgspec.json.Decoder(signature.input_type, dec_hook=_decode_array).decode
        self.item = _item_getter(definition)
        self._empty = _default_body(signature.input_type) if signature.style == "fields" else b""
        self.invoke_args: Callable[[Any], tuple[Any, ...]] = _args_of(definition)

    def decode(self, body: bytes) -> Any:
        """Return the value of `body`: one item for a batch handler, else what `invoke_args` takes.

        Raises: RequestError (400) if it is not JSON; InvalidInput (422) with `path` if it does not match the hints.
        """
        try:
            value = self._decode(body or self._empty)
        except msgspec.ValidationError as error:
            raise invalid(str(error)) from None
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            what = f"not valid JSON: {error}" if body else "empty, and the function needs an input"
            raise RequestError(f"the body is {what}") from None
        except RecursionError:
            raise RequestError("the body is nested too deeply") from None
        item = self.item
        return value if item is None else item(value)


class Output:
    """Encodes what a handler returns as JSON."""

    def __init__(self) -> None:
        self._encode = msgspec.json.Encoder(enc_hook=to_plain).encode

    def encode(self, value: Any) -> bytes:
        """Return `value` as JSON; tensors and arrays become nested lists.

        Raises: BadOutput for a type JSON has no place for, and for NaN or Infinity, with its path.
        """
        try:
            body = self._encode(value)
        except (TypeError, ValueError, OverflowError, RecursionError, msgspec.MsgspecError) as error:
            raise BadOutput(f"the function's output is not JSON: {error}") from error
        # msgspec writes NaN and Infinity as null: only an output with a null in it needs the slow look
        if b"null" in body:
            _refuse_non_finite(msgspec.to_builtins(value, enc_hook=to_plain), "$")
        return body


def to_plain(value: Any) -> Any:
    """Return a tensor, array or scalar of torch or numpy as plain Python. Raises TypeError for anything else."""
    tolist = getattr(value, "tolist", None)
    if tolist is None:
        raise TypeError(f"cannot turn {type(value).__module__}.{type(value).__qualname__} into JSON")
    return tolist()


def input_schema(definition: Definition) -> dict[str, Any]:
    """Return the JSON Schema (2020-12) of what a client sends. Raises TypeError for a type JSON cannot carry."""
    return _schema(definition.input_type, _array_schema)


def output_schema(definition: Definition) -> dict[str, Any]:
    """Return the JSON Schema of one answer, or of one line of a stream; {} where the hints do not say."""
    try:
        return _schema(definition.output_type, _open_schema)
    except (TypeError, ValueError):
        return {}


def _schema(hint: Any, hook: Callable[[type], dict[str, Any]]) -> dict[str, Any]:
    """Return the schema of `hint`, the top-level definition inlined unless it refers to itself."""
    schema = msgspec.json.schema(hint, schema_hook=hook)
    definitions: dict[str, Any] = schema.get("$defs", {})
    name = schema.get("$ref", "").removeprefix("#/$defs/")
    if name not in definitions or schema["$ref"].encode() in msgspec.json.encode(definitions):
        return schema
    others = {key: value for key, value in definitions.items() if key != name}
    top: dict[str, Any] = definitions[name]
    return top | ({"$defs": others} if others else {})


def _is_array(kind: type) -> bool:
    return (kind.__module__, kind.__name__) in _ARRAYS


def _array_schema(kind: type) -> dict[str, Any]:
    if _is_array(kind):
        return {"type": "array"}
    raise TypeError(f"{kind.__module__}.{kind.__qualname__} cannot be read from JSON")


def _open_schema(kind: type) -> dict[str, Any]:
    return {"type": "array"} if _is_array(kind) else {}


def _decode_array(kind: type, value: Any) -> Any:
    """Build the array a hint asks for; its library is there because the author's file imported it for the hint."""
    if not _is_array(kind):
        raise NotImplementedError(f"{kind.__module__}.{kind.__qualname__} cannot be read from JSON")
    make = sys.modules["torch"].tensor if kind.__name__ == "Tensor" else sys.modules["numpy"].asarray
    try:
        array = make(value)
    except (ValueError, TypeError) as error:
        raise ValueError(f"not an array of numbers: {error}") from error
    if kind.__name__ == "ndarray" and array.dtype.kind not in "biuf":
        raise ValueError("not an array of numbers")
    return array


def _default_body(input_type: Any) -> bytes:
    """Return what an empty body stands for: {} when every field has a default, else nothing."""
    return b"" if any(field.required for field in msgspec.structs.fields(input_type)) else b"{}"


def _item_getter(definition: Definition) -> Callable[[Any], Any] | None:
    if definition.batch is None or definition.input_style == "body":
        return None
    return attrgetter(definition.signature.fields[0])


def _args_of(definition: Definition) -> Callable[[Any], tuple[Any, ...]]:
    fields = definition.signature.fields
    if definition.batch is not None or definition.input_style == "body":
        return _one
    if not fields:
        return _none
    get = attrgetter(*fields)
    return get if len(fields) > 1 else lambda value: (get(value),)


def _one(value: Any) -> tuple[Any, ...]:
    return (value,)


def _none(value: Any) -> tuple[Any, ...]:
    return ()


def invalid(text: str) -> InvalidInput:
    """Return the error for what msgspec says of a value, with its path."""
    match = _PATH.match(text)
    message, path = (match["message"], match["path"] or "$") if match else (text, "$")
    missing = _MISSING.search(message)
    if missing:
        path = f"{path}.{missing[1]}"
    return InvalidInput(f"{path}: {message}", path=path)


def _refuse_non_finite(value: Any, path: str) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        raise BadOutput(f"the function's output has {value} at {path}, which JSON cannot carry", path=path)
    if isinstance(value, dict):
        for key, item in value.items():
            _refuse_non_finite(item, f"{path}.{key}")
    elif isinstance(value, list | tuple):
        for index, item in enumerate(value):
            _refuse_non_finite(item, f"{path}[{index}]")
