"""Text of a model on a terminal, as it comes: a little Markdown in colour, nothing that could steer the terminal. Pure.

Bold, `code` and fenced blocks are coloured, their marks kept, so that what is copied is what was said. A mark may come
in pieces: what could become one is held back until the next piece. This module does not know terminals.
"""

from __future__ import annotations

import re
from typing import Protocol

BOLD, CODE, PLAIN = "\x1b[1m", "\x1b[36m", "\x1b[0m"
# control characters but tab and newline: from a model they are noise at best, and orders to the terminal at worst
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
_MARK = re.compile(r"```|`|\*\*")
_RUN = re.compile(r"(`+|\*+)\Z")


def printable(text: str) -> str:
    """Return the text without control characters."""
    return _CONTROL.sub("", text)


class Paper(Protocol):
    """What a text is written on, piece by piece."""

    def feed(self, text: str) -> str:
        """Return what can be shown after `text`."""

    def end(self) -> str:
        """Return what is left."""


class Raw:
    """Shows text as it is."""

    def feed(self, text: str) -> str:
        """Return it."""
        return text

    def end(self) -> str:
        """Return nothing: nothing was held back."""
        return ""


class Plain(Raw):
    """Shows what is harmless on a terminal."""

    def feed(self, text: str) -> str:
        """Return it without control characters."""
        return printable(text)


class Styled:
    """Shows one answer in colour."""

    def __init__(self) -> None:
        self._held = ""
        self._mark = ""  # that is open

    def feed(self, text: str) -> str:
        """Return what can be shown after `text`."""
        text = self._held + printable(text)
        run = _RUN.search(text)
        num_held = len(run.group()) % (2 if run.group()[0] == "*" else 3) if run is not None else 0
        whole = len(text) - num_held
        self._held = text[whole:]
        return self._style(text[:whole])

    def end(self) -> str:
        """Return what is left, and the terminal to its usual colours."""
        text, self._held = self._held, ""
        shown = self._style(text)
        return shown + PLAIN if self._mark else shown

    def _style(self, text: str) -> str:
        shown, place = [], 0
        for mark in _MARK.finditer(text):
            shown.append(text[place : mark.start()])
            shown.append(self._turn(mark.group()))
            place = mark.end()
        return "".join([*shown, text[place:]])

    def _turn(self, mark: str) -> str:
        if self._mark == mark:
            self._mark = ""
            return mark + PLAIN
        if self._mark:
            return mark  # within code, a mark is text
        self._mark = mark
        return (BOLD if mark == "**" else CODE) + mark
