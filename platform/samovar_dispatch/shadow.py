"""Copies of calls for a version that is mirrored to: run at the lowest priority, compared, never returned.

    call ─► its own way ─────────────────► answer ─┐
      └─ by chance, a moment later ─► copy ─► answer ─┴─► compared, in a thread ─► counts ─► Redis

A copy is a call of its own, with a deadline of its own; the real one waits for nothing of it. There are only so many
at a time, and none while the mirrored version has nobody ready: copies are no reason to start an instance. Only plain
answers of other versions are compared. This module does not know protocols, nor who reads the counts.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from typing import TYPE_CHECKING

from redis.asyncio import Redis

from samovar.errors import SamovarError
from samovar.wire import Result
from samovar_dispatch.ask import BACKGROUND, CACHED, FALLBACK, SHADOW, Ask, Handle
from samovar_dispatch.call import Call, Outcome, Version
from samovar_dispatch.comparison import differences
from samovar_storage.trials import PATH_PREFIX, add_mirrored

if TYPE_CHECKING:
    from samovar_dispatch.journey import Journey

log = logging.getLogger(__name__)

MAX_COPIES = 32  # under way at a time, answers not compared yet included
MAX_BODY_BYTES = 1 << 20
REPORT_EVERY_S = 0.5
MAX_PATHS_KEPT = 100
OUTCOMES = {"equal", "different", "failed", "skipped"}


class Copy:
    """One call and its copy. answer, copied: their bodies, None while open or when there is none to compare.

    handle: the copy, once it is under way.
    """

    __slots__ = ("answer", "ask", "copied", "handle", "is_answered", "is_copied", "shadow", "version")

    def __init__(self, shadow: Shadow, ask: Ask, version: Version) -> None:
        self.shadow = shadow
        self.ask = ask
        self.version = version
        self.answer: bytes | None = None
        self.copied: bytes | None = None
        self.handle: Handle | None = None
        self.is_answered = self.is_copied = False

    def deliver(self, call: Call, outcome: Outcome) -> None:
        """Our side of `call.Owner`: the copy has its answer, which nobody gets."""
        if type(outcome) is Result:
            self.copied = outcome.body

    def ended(self, call: Call, outcome: Outcome, code: str) -> None:
        """Our side of `call.Owner`: the copy is over."""
        self.shadow.journey.note(call.ask, call, outcome, code)
        self.is_copied = True
        self.shadow.finish(self)


class Shadow:
    """One per process. `offer` is called on the calls' path and does next to nothing there."""

    def __init__(self, journey: Journey) -> None:
        self.journey = journey
        self._open: dict[Ask, Copy] = {}
        self._done: list[Copy] = []
        self._listens = self._is_over = False

    def stop(self) -> None:
        """Copy nothing more, and give up the copies under way: nobody waits for them. Idempotent."""
        self._is_over = True
        for copy in [*self._open.values()]:
            if copy.handle is not None:
                copy.handle.cancel()

    def offer(self, ask: Ask, version: Version) -> None:
        """Copy this ask to `version`, soon, if there is room for it."""
        if not self._listens:
            self._listens = True
            self.journey.notes.append(self._ended)
        is_full = self._is_over or len(self._open) + len(self._done) >= MAX_COPIES
        if is_full or len(ask.body) > MAX_BODY_BYTES or not _takes_copies(version):
            _count(version, "skipped")
            return
        copy = self._open[ask] = Copy(self, ask, version)
        asyncio.get_running_loop().call_soon(self._send, copy)

    def _send(self, copy: Copy) -> None:
        ask, now_s = copy.ask, time.monotonic()
        if self._is_over or (copy.is_answered and copy.answer is None):  # refused, or answered by a cache
            self._skip(copy)
            return
        deadline_s = now_s + copy.version.manifest.limits.timeout_s
        mine = Ask(
            ask.entry,
            ask.key_id,
            now_s,
            deadline_s,
            {},
            ask.request_id + b"-shadow",
            BACKGROUND,
            no_store=True,
            content_type=ask.content_type,
            traceparent=ask.traceparent,
            accept_stream=False,
            protocol=ask.protocol,
        )
        mine.body, mine.accept, mine.marks = ask.body, ask.accept, SHADOW
        try:
            copy.handle = self.journey.attempt(copy.version, mine, copy)
        except SamovarError:
            self._skip(copy)

    def _skip(self, copy: Copy) -> None:
        self._open.pop(copy.ask, None)
        _count(copy.version, "skipped")

    def _ended(self, ask: Ask, call: Call | None, outcome: Outcome, code: str) -> None:
        """An ask was noted: if it has a copy, this is what to compare with."""
        copy = self._open.get(ask) if self._open else None
        if copy is None:
            return
        is_plain = call is not None and call.version is not copy.version and not ask.marks & (CACHED | FALLBACK)
        if is_plain and type(outcome) is Result:
            copy.answer = outcome.body
        copy.is_answered = True
        self.finish(copy)

    def finish(self, copy: Copy) -> None:
        """Take a pair out when both have ended; what can be compared waits for that."""
        if copy.is_answered and copy.is_copied and self._open.pop(copy.ask, None) is not None:
            self._done.append(copy)

    async def run(self, redis: Redis) -> None:
        """Compare and report for ever. Counts that Redis did not take are added the next time."""
        waiting: dict[str, Counter[str]] = {}
        while True:
            await asyncio.sleep(REPORT_EVERY_S)
            done, self._done = self._done, []
            for version, counts in (await asyncio.to_thread(compare, done)).items():
                for outcome in OUTCOMES & counts.keys():
                    _count(version, outcome, counts[outcome])
                waiting.setdefault(version.ref, Counter()).update(counts)
            for ref in [*waiting]:
                try:
                    await add_mirrored(redis, ref, waiting[ref])
                except SamovarError as error:
                    log.warning("what a mirror shows is not reported yet: %s", error.detail)
                else:
                    del waiting[ref]


def compare(copies: list[Copy]) -> dict[Version, Counter[str]]:
    """Return the counts of pairs that have ended, by outcome and by differing path, for each mirrored version."""
    found: dict[Version, Counter[str]] = {}
    for copy in copies:
        counts = found.setdefault(copy.version, Counter())
        outcome, paths = _outcome(copy)
        counts[outcome] += 1
        counts["compared"] += outcome in ("equal", "different")
        for path in paths:
            if len(counts) < MAX_PATHS_KEPT:
                counts[PATH_PREFIX + path] += 1
    return found


def _takes_copies(version: Version) -> bool:
    return version.seats.num_slots > 0 and not version.streams


def _outcome(copy: Copy) -> tuple[str, list[str]]:
    if copy.answer is None:
        return "skipped", []
    if copy.copied is None:
        return "failed", []
    paths = differences(copy.answer, copy.copied)
    return ("different" if paths else "equal"), paths


def _count(version: Version, outcome: str, num: int = 1) -> None:
    mirrored = version.stats.mirrored
    mirrored[outcome] = mirrored.get(outcome, 0) + num
