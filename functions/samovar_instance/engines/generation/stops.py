"""Strings that end a text, found wherever the borders of its pieces lie; what may still become one is held back.

The stop that is complete first ends the text, of several the longest. Pure: this module does not know tokens.
"""

from __future__ import annotations

from collections.abc import Sequence


class StopFinder:
    """Passes a text on, piece by piece, up to the first stop.

    found: the stop that ended it, "" as long as none did. rest: what came after it, in the piece that completed it.
    """

    def __init__(self, stops: Sequence[str]) -> None:
        """stops: none of them empty; may be no stops at all."""
        self._stops = tuple(stops)
        self._held = ""
        self.found = ""
        self.rest = ""

    def add(self, piece: str) -> str:
        """Take the next piece; return what is safely in front of any stop. Nothing once a stop was found."""
        if self.found or not piece:
            return ""
        if not self._stops:
            return piece
        text = self._held + piece
        ends = [(at + len(stop), at, stop) for stop in self._stops if (at := text.find(stop)) >= 0]
        if ends:
            end, start, self.found = min(ends)
            self._held, self.rest = "", text[end:]
            return text[:start]
        free = self._num_free(text)
        self._held = text[free:]
        return text[:free]

    def flush(self) -> str:
        """Return what was held back: the text is over, and it became no stop."""
        held, self._held = self._held, ""
        return held

    def _num_free(self, text: str) -> int:
        """Return how many characters cannot be part of a stop that is still to be completed."""
        longest = max(map(len, self._stops))
        for start in range(max(0, len(text) - longest + 1), len(text)):
            if any(stop.startswith(text[start:]) for stop in self._stops):
                return start
        return len(text)
