"""What is declared for the models that are being loaded now, by whoever loads: an instance, or a build at deploy.

This module does not know torch.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

from samovar.acceleration.options import Acceleration, Kind

Mode = Literal["serve", "record", "reference"]


@dataclass(slots=True)
class Session:
    """One load of one version.

    mode: serve runs what was built; record notes how each model is called, for a build; reference is plain fp32.
    folder: where what was built is. num_threads: that a runtime of its own may use. kind: what it was built for, None
    if nothing was. models: those loaded so far, in order, as they were handed out.
    """

    acceleration: Acceleration
    mode: Mode = "serve"
    folder: Path | None = None
    num_threads: int = 1
    kind: Kind | None = None
    models: list[Any] = field(default_factory=list)


_current: Session | None = None


def current() -> Session | None:
    """Return the session of the load that is going on, None if none is, or nothing is declared."""
    return _current


@contextmanager
def opened(session: Session | None) -> Iterator[None]:
    """Have `current` return `session` while the context lasts."""
    global _current
    before, _current = _current, session
    try:
        yield
    finally:
        _current = before
