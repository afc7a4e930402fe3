"""Reading records of which one may be broken: that one is left out, and told once; no other is the worse for it.

What broke it is a release that refuses what an older one wrote, or a hand that wrote past the platform. This module
does not know where records lie.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any, TypeVar

import msgspec

from samovar.values import Struct
from samovar_storage.records import loads

log = logging.getLogger(__name__)

MAX_TOLD = 1000

R = TypeVar("R", bound=Struct)
_told: set[int] = set()  # hashes of what was logged, for such reads come many times a second


def readable(what: str, data: bytes | str | None, type: type[R]) -> R | None:
    """Return the record stored in `data`, None if there is none, or none that can be read.

    The latter is logged once per process for each `what` (a noun phrase) and content, of the newest MAX_TOLD.
    """
    if data is None:
        return None
    try:
        return loads(data, type)
    except msgspec.MsgspecError as error:
        _tell(what, data, error)
        return None


def readable_rows(what: str, rows: Mapping[Any, bytes | str | None], type: type[R]) -> dict[str, R]:
    """Return name → record of the rows that are there and can be read. what: the kind of thing that has such a name."""
    named = {name.decode() if isinstance(name, bytes) else name: data for name, data in rows.items()}
    found = {name: readable(f"{what} {name}", data, type) for name, data in named.items()}
    return {name: record for name, record in found.items() if record is not None}


def _tell(what: str, data: bytes | str, error: Exception) -> None:
    mark = hash((what, data))
    if mark in _told:
        return
    if len(_told) >= MAX_TOLD:
        _told.clear()
    _told.add(mark)
    log.error("%s cannot be read and is left out: %s", what, error)
