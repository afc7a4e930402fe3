"""How two answers differ: equal as JSON, numbers within a tolerance, else the paths that differ. Pure.

| call's answer             | copy's answer             | differs at
|---------------------------|---------------------------|---------------
| {"a": 1, "b": [1, 2]}     | {"b": [1.0, 2], "a": 1}   | nowhere
| {"score": 0.5}            | {"score": 0.50001}        | nowhere (0.1 %)
| {"items": [{"id": 1}]}    | {"items": [{"id": 2}]}    | $.items[*].id
| {"items": [1]}            | {"items": [1, 2]}         | $.items
| not JSON                  | other bytes               | $
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import msgspec

RELATIVE, ABSOLUTE = 1e-3, 1e-6
MAX_PATHS = 20
MAX_DEPTH = 32


def differences(answer: bytes, copy: bytes) -> list[str]:
    """Return the JSON paths, at most MAX_PATHS and each once, at which the answers differ; empty if they are equal."""
    if answer == copy:
        return []
    try:
        one, other = msgspec.json.decode(answer), msgspec.json.decode(copy)
    except (msgspec.DecodeError, UnicodeDecodeError):
        return ["$"]
    found: dict[str, None] = {}
    for path in _differing(one, other, "$", 0):
        found[path] = None
        if len(found) >= MAX_PATHS:
            break
    return [*found]


def _differing(one: Any, other: Any, path: str, depth: int) -> Iterator[str]:
    if isinstance(one, dict) and isinstance(other, dict) and depth < MAX_DEPTH:
        for key in one.keys() ^ other.keys():
            yield f"{path}.{key}"
        for key in one.keys() & other.keys():
            yield from _differing(one[key], other[key], f"{path}.{key}", depth + 1)
    elif isinstance(one, list) and isinstance(other, list) and len(one) == len(other) and depth < MAX_DEPTH:
        for left, right in zip(one, other, strict=True):
            yield from _differing(left, right, f"{path}[*]", depth + 1)
    elif not _is_same(one, other):
        yield path


def _is_same(one: Any, other: Any) -> bool:
    if _is_number(one) and _is_number(other):
        return math.isclose(one, other, rel_tol=RELATIVE, abs_tol=ABSOLUTE)
    return type(one) is type(other) and bool(one == other)


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
