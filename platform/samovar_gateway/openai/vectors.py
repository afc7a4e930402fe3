"""Embedding requests and answers: inputs out of a request, vectors into an answer. Pure.

| field           | what becomes of it
|-----------------|--------------------------------------------------------------------------------------------------
| input           | a text or a list; token ids only for functions that take arrays; 1 to MAX_INPUTS, none empty
| encoding_format | float (numbers) or base64 (little-endian float32); numbers go through as the function wrote them
| dimensions      | told to a function that has such a field; else cut to so many and scaled to length one

This module does not know models.
"""

from __future__ import annotations

import math
import sys
from array import array
from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import msgspec

from samovar.errors import BadOutput
from samovar.tasks.checks import takes, text_field
from samovar.tasks.generation import refusal
from samovar_gateway.openai import fields as table

MAX_INPUTS = 2048
MAX_DIMENSIONS = 1 << 20
DIMENSIONS = "dimensions"


@dataclass(frozen=True)
class Wanted:
    """What an embedding request asks for. inputs: texts or lists of token ids."""

    inputs: Sequence[str | list[int]]
    is_base64: bool
    dimensions: int | None


class Given(msgspec.Struct):
    """What a function answers to one input. embedding: as it wrote it."""

    embedding: msgspec.Raw
    num_tokens: int | None = None


def wanted(fields: Mapping[str, Any]) -> Wanted:
    """Return what a request asks for. fields: without nulls. Raises: RequestError with `param`."""
    given = table.honoured(fields, table.EMBEDDING, table.EMBEDDING_RULES)
    encoding, dimensions = given.get("encoding_format", "float"), given.get(DIMENSIONS)
    if encoding not in ("float", "base64"):
        raise refusal("encoding_format", "encoding_format is float or base64")
    if dimensions is not None and (type(dimensions) is not int or not 1 <= dimensions <= MAX_DIMENSIONS):
        raise refusal(DIMENSIONS, f"dimensions is a number from 1 to {MAX_DIMENSIONS}")
    return Wanted(inputs_of(given.get("input")), encoding == "base64", dimensions)


def inputs_of(value: Any) -> Sequence[str | list[int]]:
    """Return the inputs, each a text or token ids. Raises: RequestError if there is none, too many, or an empty one."""
    inputs: Any = [value] if isinstance(value, str) else value
    if isinstance(inputs, list) and inputs and all(type(token) is int for token in inputs):
        inputs = [inputs]
    if not isinstance(inputs, list) or not all(map(_is_input, inputs)):
        raise refusal("input", "input is a text, a list of token ids, or a list of texts or of lists of token ids")
    if not 0 < len(inputs) <= MAX_INPUTS:
        raise refusal("input", f"input has 1 to {MAX_INPUTS} texts, not {len(inputs)}")
    empty = next((place for place, one in enumerate(inputs) if len(one) == 0), None)
    if empty is not None:
        raise refusal("input" if len(inputs) == 1 else f"input[{empty}]", "input has an empty text")
    return inputs


def _is_input(value: Any) -> bool:
    return isinstance(value, str) or (isinstance(value, list) and all(type(token) is int for token in value))


def bodies(wish: Wanted, schema: dict[str, Any]) -> list[bytes]:
    """Return what a function is sent, for each input. schema: of its input.

    Raises: RequestError if it does not take such inputs.
    """
    name = text_field(schema)
    if name is None:
        raise refusal("model", "this function does not take one text")
    if not takes(schema, name, "array") and not all(isinstance(one, str) for one in wish.inputs):
        raise refusal("input", "this model takes texts, not token ids")
    more = {DIMENSIONS: wish.dimensions} if has_dimensions(schema) and wish.dimensions is not None else {}
    return [msgspec.json.encode({name: one, **more}) for one in wish.inputs]


def has_dimensions(schema: Mapping[str, Any]) -> bool:
    """Return whether a function with this input schema is told how many numbers are wanted."""
    return DIMENSIONS in schema.get("properties", {})


def item(place: int, body: bytes, wish: Wanted) -> tuple[dict[str, Any], int]:
    """Return one embedding of the answer, and how many tokens it took (0 if the function does not say).

    body: what the function answered. Raises: RequestError if it has fewer numbers than are wanted; BadOutput.
    """
    try:
        given = _decode(body)
        vector: Any = given.embedding
        if wish.is_base64 or wish.dimensions is not None:
            vector = _numbers(given.embedding)
    except (msgspec.MsgspecError, UnicodeDecodeError) as error:
        raise BadOutput(f"the function's answer is no embedding: {error}") from None
    if wish.dimensions is not None:
        vector = _cut(vector, wish.dimensions)
    shown = _base64(vector) if wish.is_base64 else vector
    return {"object": "embedding", "index": place, "embedding": shown}, given.num_tokens or 0


def answer(items: Sequence[dict[str, Any]], model: str, num_tokens: int) -> bytes:
    """Return the whole answer."""
    usage = {"prompt_tokens": num_tokens, "total_tokens": num_tokens}
    return msgspec.json.encode({"object": "list", "data": items, "model": model, "usage": usage})


def _cut(vector: list[float], dimensions: int) -> list[float]:
    """Return the first numbers, scaled to length one; the vector itself if it has so many."""
    if dimensions > len(vector):
        raise refusal(DIMENSIONS, f"the model's embeddings have {len(vector)} numbers, not {dimensions}")
    if dimensions == len(vector):
        return vector
    first = vector[:dimensions]
    length = math.hypot(*first) or 1.0
    return [number / length for number in first]


def _base64(vector: list[float]) -> str:
    packed = array("f", vector)
    if sys.byteorder == "big":
        packed.byteswap()
    return b64encode(packed.tobytes()).decode()


_decode = msgspec.json.Decoder(Given).decode
_numbers = msgspec.json.Decoder(list[float]).decode
