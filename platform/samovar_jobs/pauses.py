"""Which jobs a worker leaves alone for a while, since when it was refused, why, and until when.

A pause is of a whole function, or of one API key's jobs of it. It lasts as long as the refusal asked for; without such
a word, longer each time in a row. When it is over one job goes first: if that is refused as well, nobody else tried in
vain, and if it is run, all may follow.

| refused, in a row  | paused for, without `retry_after_s`
|--------------------|------------------------------------
| first              | 0.05 to 0.1 s
| second, third, …   | twice as long each time
| from the sixth     | 1 to 2 s

A rate limit is seen coming: a queue is not paused by it but looked at again soon (`limited`); the reason is told.

This module does not know the clock, or where jobs wait.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from samovar.jobs import WaitReason
from samovar_jobs.verdict import GiveBack
from samovar_storage.jobs.layout import QueueName

FIRST_S = 0.1
LONGEST_S = 2.0
MAX_PAUSE_S = 60.0  # who asks for more is asked again after this: limits are raised, breakers closed
SPREAD = 0.1  # how much later than asked a worker comes again, at most: not all at once
FORGET_AFTER_S = 60.0
MAX_LIMITED = 10_000

Key = tuple[str, str]  # function, key id; "" = all keys


@dataclass(frozen=True, slots=True)
class Pause:
    """until_s: as the caller counts, seconds. num_refusals: in a row, >= 1."""

    reason: WaitReason
    until_s: float
    num_refusals: int


class Pauses:
    """One worker's. All `now_s` are the caller's clock, seconds, never going back."""

    def __init__(self) -> None:
        self._pauses: dict[Key, Pause] = {}
        self._limited: dict[Key, Pause] = {}

    def limited(self, queue: QueueName, until_s: float) -> None:
        """No job of this queue may run before `until_s`, as far as known, for a rate limit: what waits is told so."""
        if len(self._limited) >= MAX_LIMITED:
            self._limited.clear()
        self._limited[queue.function, queue.key_id] = Pause("rate_limited", until_s, 0)

    def refused(self, queue: QueueName, back: GiveBack, now_s: float, u: float) -> Pause:
        """A job of this queue was given back: pause; return the pause. u: chance, uniform in [0, 1).

        While one holds, further refusals are those of jobs that were sent along with the first: they only prolong it.
        """
        self._forget(now_s)
        key = (queue.function, queue.key_id if back.is_of_key else "")
        before = self._pauses.get(key)
        is_held = before is not None and now_s < before.until_s
        num_refusals = (before.num_refusals if before else 0) + (not is_held)
        until_s = now_s + pause_s(num_refusals, back.retry_after_s, u)
        if is_held and before is not None:
            until_s = max(until_s, before.until_s)
        self._pauses[key] = pause = Pause(back.reason, until_s, num_refusals)
        return pause

    def sent(self, queue: QueueName) -> None:
        """A job of this queue passed all that may refuse it here. An instance may still be too busy for it."""
        for key in self._keys(queue):
            if key in self._pauses and self._pauses[key].reason != "busy":
                del self._pauses[key]

    def succeeded(self, queue: QueueName) -> None:
        """A job of this queue was run: whatever it was paused for is over."""
        for key in self._keys(queue):
            self._pauses.pop(key, None)

    def most(self, queue: QueueName, now_s: float) -> int | None:
        """Return how many jobs may be taken from this queue now: 0 while it is paused, 1 to find out, None = any."""
        found = list(self._of(queue))
        if any(now_s < pause.until_s for pause in found):
            return 0
        return 1 if found else None

    def of(self, queue: QueueName, now_s: float) -> Pause | None:
        """Return the pause that holds up this queue now, the longest of them; None if there is none."""
        held = [pause for pause in self._of(queue) if now_s < pause.until_s]
        return max(held, key=lambda pause: pause.until_s) if held else None

    def next_s(self, now_s: float) -> float | None:
        """Return when the next pause is over, None if none holds."""
        return min((pause.until_s for pause in self._pauses.values() if now_s < pause.until_s), default=None)

    def held(self, now_s: float) -> dict[str, Pause]:
        """Return what is paused now: by function, or `function:key id`."""
        found = self._limited | self._pauses
        return {":".join(filter(None, key)): pause for key, pause in found.items() if now_s < pause.until_s}

    def _of(self, queue: QueueName) -> Iterator[Pause]:
        for key in self._keys(queue):
            if key in self._pauses:
                yield self._pauses[key]

    @staticmethod
    def _keys(queue: QueueName) -> tuple[Key, Key]:
        return (queue.function, ""), (queue.function, queue.key_id)

    def _forget(self, now_s: float) -> None:
        for pauses in (self._pauses, self._limited):
            for key in [key for key, pause in pauses.items() if now_s - pause.until_s > FORGET_AFTER_S]:
                del pauses[key]


def pause_s(num_refusals: int, retry_after_s: float | None, u: float) -> float:
    """Return how long to pause, seconds, within (0, MAX_PAUSE_S].

    Args:
        num_refusals: in a row, >= 1.
        retry_after_s: what the refusal asked for, None = it did not say.
        u: chance, uniform in [0, 1).
    """
    if retry_after_s is not None and retry_after_s > 0:
        return min(MAX_PAUSE_S, retry_after_s * (1.0 + SPREAD * u))
    return min(LONGEST_S, FIRST_S * 2.0 ** min(num_refusals - 1, 32)) * (0.5 + 0.5 * u)
