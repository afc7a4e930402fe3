"""What of a payload may be kept: values at JSON paths replaced, long ones cut, others hashed. Pure.

This module does not know functions, policies' storage or records.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from typing import Any, TypeAlias

import msgspec

from samovar_storage.requestlog.rows import CUT, HASH, WHOLE

REDACTED = "[redacted]"
MAX_REDACTED_BYTES = 1 << 20  # parsing more than this beside the calls would delay them

ANY = None
Step: TypeAlias = "str | int | None"
Path: TypeAlias = tuple[Step, ...]
_STEP = re.compile(r"\.([A-Za-z_][A-Za-z0-9_-]*)|\[(\d+|\*)\]")


def parse_path(text: str) -> Path:
    """Return the steps of a JSON path such as `$.items[*].text` (`policies.check_json_path`): key, index or ANY."""
    return tuple(
        name or (ANY if index == "*" else int(index))
        for name, index in (found.groups() for found in _STEP.finditer(text))
    )


def redact(value: Any, paths: Sequence[Path]) -> Any:
    """Return the decoded JSON `value`, changed in place, with what lies at any of `paths` replaced by REDACTED.

    Where a value is not what a path expects (an object for a list, text for an object), all of it is replaced: the
    caller has put things elsewhere than the author thought, perhaps the secret too. A missing key or index and null
    hold nothing.
    """
    for path in paths:
        value = _redact_one(value, path)
    return value


def _redact_one(value: Any, path: Path) -> Any:
    if value is None and path:
        return None
    if not path:
        return REDACTED
    step, rest = path[0], path[1:]
    if isinstance(step, str) and isinstance(value, dict):
        if step in value:
            value[step] = _redact_one(value[step], rest)
        return value
    if not isinstance(step, str) and isinstance(value, list):
        for index in range(len(value)) if step is ANY else (step,):
            if index < len(value):
                value[index] = _redact_one(value[index], rest)
        return value
    return REDACTED


def keep(data: bytes, max_bytes: int, paths: Sequence[Path]) -> tuple[bytes, int]:
    """Return what is kept of a payload whose policy is "full", and its form.

    With paths, the payload is written anew without their values; one that is not JSON, or is larger than
    MAX_REDACTED_BYTES, is hashed instead: nobody could say where its secrets are.
    """
    if paths:
        if len(data) > MAX_REDACTED_BYTES:
            return digest(data), HASH
        try:
            data = msgspec.json.encode(redact(msgspec.json.decode(data), paths))
        except (msgspec.MsgspecError, UnicodeError, RecursionError):
            return digest(data), HASH
    return (data, WHOLE) if len(data) <= max_bytes else (data[:max_bytes], CUT)


def digest(data: bytes) -> bytes:
    """Return the SHA-256 of a payload."""
    return hashlib.sha256(data).digest()
