"""Who uses what in the node cache: one small file per owner, so that pins outlive the process that wrote them.

An owner is an instance id, or a fill in progress (`fill.<pid>.…`, void once that process is gone). Callers hold the
cache's room lock around every change; this module does not know it, nor what the pinned names mean.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterable
from pathlib import Path

import msgspec

from samovar_storage.failures import translating

_OWNER = re.compile(r"^[A-Za-z0-9][\w.@-]{0,200}\Z")
FILL_PREFIX = "fill."


class Pins:
    """The pin files of one cache."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder

    def set(self, owner: str, names: Iterable[str]) -> None:
        """The owner pins exactly these names. Raises DiskFull."""
        if not _OWNER.match(owner):
            raise ValueError(f"{owner!r} cannot own a pin")
        temporary = self._folder / f".{owner}"
        with translating(str(self._folder)):
            temporary.write_bytes(msgspec.json.encode(sorted(set(names))))
            temporary.replace(self._folder / owner)

    def drop(self, owner: str) -> None:
        """The owner pins nothing. An unknown one is no error."""
        (self._folder / owner).unlink(missing_ok=True)

    def all(self) -> dict[str, frozenset[str]]:
        """Return owner → pinned names; fills of processes that are gone are dropped on the way."""
        found = {}
        for path in self._folder.iterdir():
            if path.name.startswith("."):
                continue
            if path.name.startswith(FILL_PREFIX) and not is_alive(int(path.name.split(".")[1])):
                path.unlink(missing_ok=True)
                continue
            try:
                found[path.name] = frozenset(msgspec.json.decode(path.read_bytes(), type=list[str]))
            except FileNotFoundError:
                continue
        return found


def is_alive(pid: int) -> bool:
    """Return whether a process with this id exists."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True
