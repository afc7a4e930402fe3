"""A wall clock that tests can move under running processes: `time.time` of every Python process started with its
`environment` is the real one plus the offset in a file. The monotonic clock is left alone, as by a real step."""

from __future__ import annotations

import struct
from pathlib import Path

_SITE = """
import mmap, struct, time
with open({path!r}, "rb") as file:
    _page = mmap.mmap(file.fileno(), 8, access=mmap.ACCESS_READ)
_real, _read = time.time, struct.Struct("d").unpack_from
def _stepped():
    return _real() + _read(_page)[0]
time.time = _stepped
"""


class SteppedClock:
    """The offset of one folder's processes."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self._file = folder / "offset"
        self._file.write_bytes(struct.pack("d", 0.0))
        (folder / "sitecustomize.py").write_text(_SITE.format(path=str(self._file)))
        self.environment = {"PYTHONPATH": str(folder)}

    def step(self, seconds: float) -> None:
        """The clock is `seconds` off the real one from now on."""
        with self._file.open("r+b") as file:
            file.write(struct.pack("d", seconds))
