"""The functions that may be called, by name, each with its versions by share. This module does not know Redis."""

from __future__ import annotations

import difflib
from collections.abc import Iterable
from dataclasses import dataclass

from samovar.errors import FunctionNotFound
from samovar_dispatch.call import Version
from samovar_dispatch.dispatcher import Dispatcher
from samovar_dispatch.routing import choose, cumulative
from samovar_storage.records import FunctionRecord

MAX_NEAR_CANDIDATES = 500
STREAMING_HANDLERS = ("generator", "async_generator")


@dataclass(frozen=True, slots=True)
class FunctionEntry:
    """One function. only: its version when the route names one, else None; bounds: as `routing.cumulative`.

    streams: a version of it may answer with a stream. timeout_s: the default deadline, the longest of its versions.
    """

    record: FunctionRecord
    versions: dict[int, Version]
    bounds: list[tuple[float, int]]
    only: Version | None
    streams: bool
    timeout_s: float

    def choose(self, u: float) -> Version:
        """Return the version that answers a call. u: uniform in [0, 1)."""
        return self.only or self.versions[choose(self.bounds, u)]


class FunctionTable:
    """entries: what may be called now, by name. loaded: it was filled from the index at least once."""

    def __init__(self, dispatcher: Dispatcher) -> None:
        self.entries: dict[str, FunctionEntry] = {}
        self.loaded = False
        self._dispatcher = dispatcher

    def put(self, record: FunctionRecord) -> None:
        """Replace one function's entry. A route without a known version makes it uncallable."""
        bounds = [b for b in cumulative(record.route.shares) if str(b[1]) in record.manifests]
        if not bounds:
            self.remove(record.name)
            return
        versions = {number: self._dispatcher.version(record.manifests[str(number)]) for _, number in bounds}
        only = versions[bounds[0][1]] if len(bounds) == 1 else None
        streams = any(version.manifest.handler in STREAMING_HANDLERS for version in versions.values())
        timeout_s = max(version.manifest.limits.timeout_s for version in versions.values())
        self.entries[record.name] = FunctionEntry(record, versions, bounds, only, streams, timeout_s)

    def remove(self, name: str) -> None:
        """The function may be called no more; running calls finish, waiting ones are told. Idempotent."""
        entry = self.entries.pop(name, None)
        for version in entry.versions.values() if entry else ():
            self._dispatcher.retire(version)

    def keep_only(self, names: Iterable[str]) -> None:
        """Remove every function that is not among `names`."""
        for name in self.entries.keys() - set(names):
            self.remove(name)

    def near(self, name: str) -> list[str]:
        """Return up to three known names that look like `name`, best first."""
        return near_names(name, self.entries)


def near_names(name: str, known: Iterable[str]) -> list[str]:
    """Return up to three of `known` that look like `name`. At most MAX_NEAR_CANDIDATES are weighed."""
    if len(name) > 100:
        return []
    similar = sorted((abs(len(other) - len(name)), other) for other in known if abs(len(other) - len(name)) <= 3)
    return difflib.get_close_matches(name, [other for _, other in similar[:MAX_NEAR_CANDIDATES]], n=3)


def unknown_function(name: str, near: list[str]) -> FunctionNotFound:
    """Return the error for a name nobody registered, with the known names it may have been meant for."""
    hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
    return FunctionNotFound(f"there is no function named {name[:100]!r}{hint}", near=near)
