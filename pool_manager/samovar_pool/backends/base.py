"""What the manager asks of a backend, and what a backend tells the manager.

This module does not know how instances are made.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Protocol

from samovar import wire
from samovar.lifecycle import State
from samovar_pool.backends.instance import Instance


@dataclass(frozen=True, slots=True)
class BootError:
    """Why an instance of `ref` did not come up: what its waiting callers get."""

    ref: str
    code: str
    status: int
    detail: str
    phase: str = ""
    log_tail: list[str] = field(default_factory=list)


class Listener(Protocol):
    """Told at once, on the event loop, when something happened. Every call may be followed by new orders."""

    def instance_changed(self, instance: Instance) -> None:
        """It became blank, began to load or to drain."""

    def instance_ready(self, instance: Instance, ready: wire.Ready | None) -> None:
        """It can serve from now on. ready: what its load reported; None if it was adopted or forked from a template."""

    def instance_gone(self, instance: Instance, was: State) -> None:
        """Its process has ended. was: its state until then."""

    def instance_lost(self, instance: Instance, how: str) -> None:
        """It is gone, though it was serving and nobody had asked it to leave. how: one sentence."""

    def boot_failed(self, instance: Instance, error: BootError) -> None:
        """It could not become one of its version; its process ends or has ended."""

    def backend_changed(self) -> None:
        """A zygote came up or went away."""
