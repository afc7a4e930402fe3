"""Whether a safetensors file is all there, by its first bytes and its size, without reading its tensors.

    u64 LE: size of the head | head, JSON: {"name": {"dtype", "shape", "data_offsets": [first, end]}} | tensors

A download that broke off leaves a file that looks right until something reads it. This module does not know models.
"""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

from samovar.errors import DeployRefused

_SIZE = struct.Struct("<Q")
MAX_HEAD_BYTES = 100_000_000  # as the library itself has it
_METADATA = "__metadata__"


def refuse_incomplete(file: Path) -> None:
    """Raise DeployRefused if the file is no safetensors file, or not as long as its own head says."""
    size_bytes = file.stat().st_size
    with file.open("rb") as opened:
        start = opened.read(_SIZE.size)
        head_bytes = _SIZE.unpack(start)[0] if len(start) == _SIZE.size else size_bytes
        if not 0 < head_bytes <= min(MAX_HEAD_BYTES, size_bytes - _SIZE.size):
            raise DeployRefused(f"{file} is no safetensors file, or only its beginning ({size_bytes} bytes)")
        head = opened.read(head_bytes)
    try:
        wanted_bytes = _SIZE.size + head_bytes + _end(json.loads(head))
    except (ValueError, TypeError, KeyError, AttributeError):
        raise DeployRefused(f"{file} is no safetensors file: its head cannot be read") from None
    if size_bytes != wanted_bytes:
        how = "cut off" if size_bytes < wanted_bytes else "too long"
        raise DeployRefused(f"{file} is {how}: it has {size_bytes} bytes, its head tells of {wanted_bytes}")


def _end(head: dict[str, Any]) -> int:
    """Return where the last tensor ends, counted from the first."""
    return max((int(told["data_offsets"][1]) for name, told in head.items() if name != _METADATA), default=0)
