"""Identical calls in flight: one leads and is computed, the others follow and get its answer.

    join ─► leads ──answer, or a failure that would be everybody's──► land: all who follow get it
        └─► follows ◄──the leader left, was late or was refused── hand_over: the longest waiting one leads

This module does not know calls, answers or clocks.
"""

from __future__ import annotations

from typing import Generic, TypeVar

M = TypeVar("M")


class Flights(Generic[M]):
    """Who flies under which key. The first of each is the leader."""

    def __init__(self) -> None:
        self._flights: dict[str, dict[M, None]] = {}

    def join(self, key: str, member: M) -> bool:
        """Return whether `member` leads now: nobody else was there."""
        flight = self._flights.setdefault(key, {})
        flight[member] = None
        return len(flight) == 1

    def size(self, key: str) -> int:
        """Return how many fly under `key`, the leader included."""
        return len(self._flights.get(key, ()))

    def leave(self, key: str, member: M) -> None:
        """A follower waits no more. Idempotent."""
        self._flights.get(key, {}).pop(member, None)

    def land(self, key: str) -> list[M]:
        """The flight is over; return those who followed, longest waiting first."""
        return [*self._flights.pop(key)][1:]

    def hand_over(self, key: str) -> M | None:
        """The leader is out; return who leads now, None if nobody is left."""
        flight = self._flights[key]
        del flight[next(iter(flight))]
        if not flight:
            del self._flights[key]
            return None
        return next(iter(flight))
