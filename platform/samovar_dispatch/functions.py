"""The functions that may be called, by name, each with its versions by share. This module does not know Redis."""

from __future__ import annotations

import difflib
import logging
import time
from collections.abc import Callable, Iterable
from dataclasses import replace

from samovar.errors import Conflict, FunctionNotFound
from samovar.spec import Route
from samovar_dispatch.ask import Ask
from samovar_dispatch.call import Version
from samovar_dispatch.dispatcher import Dispatcher
from samovar_dispatch.rates.rate_limits import function_rates
from samovar_dispatch.routing import Plan, choose, moved_share, place, plan_of, settled
from samovar_storage.records import FunctionRecord

log = logging.getLogger(__name__)

MAX_NEAR_CANDIDATES = 500
STICKY_HEADER = "header:"


class FunctionEntry:
    """One function. only: its version while one gets every call, else None. versions: all that its route names.
    main: the one with the most traffic, the newest of equals.

    mirror, mirror_share: the version that gets copies of that share of calls. streams: a version of it may answer with
    a stream. rates: the limits of its version with the most traffic, None for none. timeout_s: the default deadline,
    the longest of its versions.
    """

    __slots__ = (
        "_header",
        "_salt",
        "_sticks",
        "main",
        "mirror",
        "mirror_share",
        "only",
        "plan",
        "rates",
        "record",
        "streams",
        "timeout_s",
        "versions",
    )

    def __init__(self, record: FunctionRecord, versions: dict[int, Version], plan: Plan) -> None:
        route = record.route
        self.record = record
        self.versions = versions
        self.plan = plan
        self.only = versions.get(plan.only)
        self.mirror = versions.get(route.mirror.version) if route.mirror is not None else None
        self.mirror_share = route.mirror.percent / 100 if route.mirror is not None else 0.0
        self.streams = any(version.streams for version in versions.values())
        self.main = versions[_main(record.route, versions)]
        self.rates = function_rates(self.main.manifest.limits)
        self.timeout_s = max(version.manifest.limits.timeout_s for version in versions.values())
        self._sticks = bool(route.sticky)
        self._header = route.sticky.removeprefix(STICKY_HEADER).encode("latin-1") if ":" in route.sticky else b""
        # another version on trial draws other callers; the same ones stay first while it is promoted
        self._salt = f"{record.name}@{plan.canary or plan.shares[-1][1]}"

    def choose(self, ask: Ask, u: float) -> Version:
        """Return the version that answers a call. u: uniform in [0, 1), for callers who do not stick."""
        if self.only is not None:
            return self.only
        now_s = time.time()
        if self.plan.previous:
            self.settle(now_s)
        if self._sticks:
            u = place(self._salt, self._caller(ask))
        return self.versions[choose(self.plan, self.num_ready, u, now_s)]

    def settle(self, now_s: float) -> None:
        """Forget what served before, once its successors serve all calls. now_s: unix seconds."""
        self.plan = settled(self.plan, self.num_ready, now_s)
        self.only = self.versions.get(self.plan.only)

    def moved_share(self, now_s: float) -> float:
        """Return the share of calls, within [0, 1], that goes to the route's shares, not to what was before them."""
        return moved_share(self.plan, self.num_ready, now_s) if self.plan.previous else 1.0

    def num_ready(self, version: int) -> int:
        """Return how many instances of a version take calls from here now."""
        return sum(member.opened for member in self.versions[version].members.values())

    def ready(self) -> set[int]:
        """Return the versions with instances that take calls from here now."""
        return {version for version in self.versions if self.num_ready(version)}

    def _caller(self, ask: Ask) -> str:
        """Return who asks: by the header that the route names, else by API key."""
        given = ask.header.get(self._header)
        return ask.key_id if given is None else given.decode("latin-1")


class FunctionTable:
    """entries: what may be called now, by name. faults: by name, why something of what is stored of a function cannot
    be used. loaded: it was filled from the index at least once.

    on_removed: called with the name of every function that may be called no more.
    """

    def __init__(self, dispatcher: Dispatcher, on_removed: Callable[[str], object] | None = None) -> None:
        self.entries: dict[str, FunctionEntry] = {}
        self.faults: dict[str, str] = {}
        self.loaded = False
        self._dispatcher = dispatcher
        self._on_removed = on_removed

    def put(self, record: FunctionRecord) -> None:
        """Replace one function's entry. A route without a known version makes it uncallable.

        Whatever is wrong with a record is a fault of this function alone: nothing is raised, and a version that cannot
        be made of its manifest counts as unknown.
        """
        versions, faults = self._versions(record)
        entry = None
        try:
            entry = self._entry(record, versions)
        except Exception as error:  # noqa: BLE001  any value may be the wrong one
            faults.append(str(error))
        if entry is None:
            self.remove(record.name)
        else:
            self.entries[record.name] = entry
        self.note_fault(record.name, "; ".join(faults))

    def _versions(self, record: FunctionRecord) -> tuple[dict[int, Version], list[str]]:
        """Return the versions that can be made of their manifests, and why the others cannot."""
        versions: dict[int, Version] = {}
        faults = []
        for number, manifest in record.manifests.items():
            try:
                versions[int(number)] = self._dispatcher.version(manifest)
            except Exception as error:  # noqa: BLE001  any value may be the wrong one
                faults.append(f"version {number}: {error}")
        return versions, faults

    def _entry(self, record: FunctionRecord, versions: dict[int, Version]) -> FunctionEntry | None:
        """Return the entry of a function with these versions, None if its route leads to none of them."""
        route = record.route
        most = {n: (route.scaling or version.manifest.scaling).max_instances for n, version in versions.items()}
        plan = plan_of(route, versions.keys(), most)
        if plan is None:
            return None
        entry = FunctionEntry(record, versions, plan)
        old = self.entries.get(record.name)
        if old is not None and old.plan.moved_at_s == plan.moved_at_s and not old.plan.previous:
            entry.plan = replace(plan, previous=())  # they were settled already
            entry.only = versions.get(entry.plan.only)
        return entry

    def note_fault(self, name: str, why: str) -> None:
        """Something of what is stored of the function cannot be used: it is logged, once. why: "" = all of it can."""
        if not why:
            self.faults.pop(name, None)
        elif self.faults.get(name) != why:
            self.faults[name] = why
            log.error("what is stored of function %s cannot be used: %s", name, why)

    def missing(self, name: str, near: list[str]) -> FunctionNotFound | Conflict:
        """Return the error for a name that cannot be called. near: known names that it may have been meant for."""
        why = self.faults.get(name)
        return unknown_function(name, near) if why is None else unusable_function(name, why)

    def remove(self, name: str) -> None:
        """The function may be called no more; running calls finish, waiting ones are told. Idempotent."""
        entry = self.entries.pop(name, None)
        for version in entry.versions.values() if entry else ():
            self._dispatcher.retire(version)
        if self._on_removed is not None:
            self._on_removed(name)

    def keep_only(self, names: Iterable[str]) -> None:
        """Remove every function that is not among `names`."""
        for name in (self.entries.keys() | self.faults.keys()) - set(names):
            self.remove(name)
            self.note_fault(name, "")


def _main(route: Route, known: Iterable[int]) -> int:
    """Return the known version with the largest share, the newest of equals."""
    return max(known, key=lambda number: (route.shares.get(str(number), 0), number))


def near_names(name: str, known: Iterable[str]) -> list[str]:
    """Return up to three of `known`, which are in lower case, that look like `name`.

    At most MAX_NEAR_CANDIDATES are weighed.
    """
    if len(name) > 100:
        return []
    similar = sorted((abs(len(other) - len(name)), other) for other in known if abs(len(other) - len(name)) <= 3)
    return difflib.get_close_matches(name.lower(), [other for _, other in similar[:MAX_NEAR_CANDIDATES]], n=3)


def unknown_function(name: str, near: list[str]) -> FunctionNotFound:
    """Return the error for a name nobody registered, with the known names it may have been meant for."""
    hint = f"; did you mean {' or '.join(map(repr, near))}?" if near else ""
    return FunctionNotFound(f"there is no function named {name[:100]!r}{hint}", near=near)


def unusable_function(name: str, why: str) -> Conflict:
    """Return the error for a function that is there, but not as this release can run it."""
    return Conflict(f"what is stored of {name} cannot be used: {why}; deploy it again, or remove it")
