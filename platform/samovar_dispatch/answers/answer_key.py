"""When two inputs count as the same, as a hash: the identity of an answer that is kept.

| input                                     | what is hashed
|-------------------------------------------|-------------------------------------------------------------------
| JSON up to MAX_CANONICAL_BYTES            | its value, keys sorted: neither order, white space nor escapes matter
| … with key paths declared                 | the values at those paths alone; a missing one is not null
| anything else: broken JSON, larger        | the bytes as they came

What a client calls its body does not matter: handlers get JSON whatever the Content-Type says (`curl -d` says that it
is a form). 1 and 1.0 are different inputs, because to a handler they are; 1e2 and 100.0 are not. Of a key given twice
the last value counts, as it does for the handler. Large bodies are not parsed: it would hold up the event loop; that
two of them differ although they mean the same costs a hit, never a wrong answer. This module does not know whose
answers are kept.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from hashlib import sha256
from typing import Any

import msgspec

MAX_CANONICAL_BYTES = 64 * 1024
_STEP = re.compile(r"\.([A-Za-z_][A-Za-z0-9_-]*)|\[(\d+|\*)\]")

Path = tuple[str | int, ...]


def parse_path(text: str) -> Path:
    """Return the steps of a JSON path that `policies.check_json_path` let through; "*" in brackets is every item."""
    found = _STEP.findall(text)
    return tuple(f".{name}" if name else ("*" if index == "*" else int(index)) for name, index in found)


def select(value: Any, path: Path) -> list[Any]:
    """Return every value at `path`, in order; empty if there is none."""
    found = [value]
    for step in path:
        if isinstance(step, int):
            found = [v[step] for v in found if isinstance(v, list) and step < len(v)]
        elif step == "*":
            found = [item for v in found if isinstance(v, list) for item in v]
        else:
            found = [v[step[1:]] for v in found if isinstance(v, dict) and step[1:] in v]
    return found


def input_digest(body: bytes, paths: Sequence[Path] = ()) -> bytes:
    """Return 32 bytes that are equal for equal inputs, as the module's table says."""
    if len(body) <= MAX_CANONICAL_BYTES:
        try:
            return sha256(b"json\0" + canonical(body, paths)).digest()
        except (msgspec.DecodeError, RecursionError, UnicodeDecodeError):
            pass
    return sha256(b"raw\0" + body).digest()


def canonical(body: bytes, paths: Sequence[Path] = ()) -> bytes:
    """Return the one way to write this JSON, or what is at `paths`. Raises msgspec.DecodeError, RecursionError."""
    value = msgspec.json.decode(body)
    if paths:
        value = [select(value, path) for path in paths]
    return msgspec.json.encode(value, order="sorted")
