"""The life of an instance as a pure state machine.

    starting ──forked──► blank ──specialise──► loading ──loaded──► ready ──drain──► draining ──exit──► gone
        │                  │                      │                  │
        └───────exit───────┴──────────exit────────┴───────exit───────┘  (from any state: a process may always die)

A fork of a template skips blank: starting ──loaded──► ready. A blank or loading instance that is drained has nothing to
finish, but still passes through draining so that its end is seen. This module does not know processes, sockets or time.
"""

from __future__ import annotations

from enum import StrEnum


class State(StrEnum):
    STARTING = "starting"
    BLANK = "blank"
    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    GONE = "gone"


class Event(StrEnum):
    FORKED = "forked"
    SPECIALISE = "specialise"
    LOADED = "loaded"
    DRAIN = "drain"
    EXIT = "exit"


class IllegalMove(ValueError):
    """The event cannot happen in that state: a bug of ours, never a user's doing."""


_MOVES: dict[tuple[State, Event], State] = {
    (State.STARTING, Event.FORKED): State.BLANK,
    (State.STARTING, Event.LOADED): State.READY,
    (State.BLANK, Event.SPECIALISE): State.LOADING,
    (State.LOADING, Event.LOADED): State.READY,
    **{(state, Event.DRAIN): State.DRAINING for state in (State.STARTING, State.BLANK, State.LOADING, State.READY)},
    **{(state, Event.EXIT): State.GONE for state in State if state is not State.GONE},
}


def can_move(state: State, event: Event) -> bool:
    """Return whether `event` may happen in `state`."""
    return (state, event) in _MOVES


def move(state: State, event: Event) -> State:
    """Return the state after `event`. Raises IllegalMove if it may not happen."""
    try:
        return _MOVES[(state, event)]
    except KeyError:
        raise IllegalMove(f"{event} in state {state}") from None


def serves(state: State) -> bool:
    """Return whether an instance in `state` may be given invocations."""
    return state is State.READY


def holds_capacity(state: State) -> bool:
    """Return whether an instance in `state` counts towards its version's capacity (ready, or on the way there)."""
    return state in (State.STARTING, State.LOADING, State.READY)
