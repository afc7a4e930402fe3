"""How far a run over a file is: a live bar on a terminal, a plain line now and then elsewhere.

This module does not know where the numbers come from.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from samovar.cli.text import duration

if TYPE_CHECKING:
    from rich.console import Console

_WINDOW_S = 20.0
_PLAIN_EVERY_S = 5.0
_SHOWN = (
    ("failed", "failed"),
    ("started", "running"),
    ("queued", "queued"),
    ("scheduled", "later"),
    ("unread", "unread"),
)


class Pace:
    """The rate of the last seconds, and when all will be done. Pure: time is passed in."""

    def __init__(self) -> None:
        self._marks: deque[tuple[float, int]] = deque()

    def rate(self, now_s: float, num_done: int) -> float:
        """Note that `num_done` (rising) were done at `now_s` and return how many are done per second, >= 0."""
        self._marks.append((now_s, num_done))
        while len(self._marks) > 2 and self._marks[1][0] < now_s - _WINDOW_S:
            self._marks.popleft()
        then_s, then = self._marks[0]
        return (num_done - then) / (now_s - then_s) if now_s > then_s else 0.0


def tally(counts: Mapping[str, int], rate: float, left: int) -> str:
    """Return counts by state with rate and time left, as short as it can be said."""
    parts = [f"{counts[state]:,} {word}" for state, word in _SHOWN if counts.get(state)]
    if rate > 0:
        parts.append(f"{rate:,.0f}/s" if rate >= 10 else f"{rate:.1f}/s")
        if left:
            parts.append(f"{duration(left / rate)} left")
    return ", ".join(parts)


class Meter:
    """Shows counts as they change; use it as a context manager. is_shown: False = says nothing."""

    def __init__(
        self, console: Console, label: str, total: int, is_shown: bool, now: Callable[[], float] = time.monotonic
    ):
        self._console = console
        self._label = label
        self._total = total
        self._is_shown = is_shown
        self._now = now
        self._pace = Pace()
        self._said_s = 0.0
        self._bar: Any = None

    def __enter__(self) -> Meter:
        if self._is_shown and self._console.is_terminal:
            self._bar = _bar(self._console)
            self._bar.start()
            self._task = self._bar.add_task(self._label, total=self._total, tally="")
        return self

    def __exit__(self, *failure: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def show(self, num_done: int, counts: Mapping[str, int], why: str = "") -> None:
        """Show that `num_done` of all have ended. counts: by state, of those that are known. why: nothing runs."""
        if not self._is_shown:
            return
        now_s = self._now()
        text = tally(counts, self._pace.rate(now_s, num_done), self._total - num_done)
        text = f"{text}: {why}" if why else text
        if self._bar is not None:
            self._bar.update(self._task, completed=num_done, tally=text)
        elif now_s - self._said_s >= _PLAIN_EVERY_S or num_done == self._total:
            self._said_s = now_s
            share = num_done / self._total
            self._console.print(f"{self._label}: {num_done:,} of {self._total:,} ({share:.0%}), {text}".rstrip(", "))


def _bar(console: Console) -> Any:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(bar_width=20 if console.width < 100 else 40),
        MofNCompleteColumn(),
        TextColumn("{task.fields[tally]}", markup=False),
    )
    return Progress(*columns, console=console, transient=False)
