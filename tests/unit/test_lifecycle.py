"""The life of an instance, driven in random order against a model written down independently."""

from __future__ import annotations

import pytest
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from samovar.lifecycle import Event, IllegalMove, State, can_move, holds_capacity, move, serves


class InstanceLife(RuleBasedStateMachine):
    """What a process can really do: the flags are facts about it, the state must follow them."""

    def __init__(self) -> None:
        super().__init__()
        self.state = State.STARTING
        self.is_alive, self.is_forked, self.has_version, self.is_loaded, self.is_told_to_leave = (
            True,
            False,
            False,
            False,
            False,
        )

    @precondition(lambda self: self.is_alive and not self.is_forked and not self.is_told_to_leave)
    @rule()
    def comes_up_blank(self) -> None:
        self.is_forked = True
        self.state = move(self.state, Event.FORKED)

    @precondition(lambda self: self.is_alive and not self.is_forked and not self.is_told_to_leave)
    @rule()
    def comes_up_as_fork_of_a_template(self) -> None:
        self.is_forked = self.has_version = self.is_loaded = True
        self.state = move(self.state, Event.LOADED)

    @precondition(lambda self: self.is_alive and self.is_forked and not self.has_version and not self.is_told_to_leave)
    @rule()
    def is_specialised(self) -> None:
        self.has_version = True
        self.state = move(self.state, Event.SPECIALISE)

    @precondition(lambda self: self.is_alive and self.has_version and not self.is_loaded and not self.is_told_to_leave)
    @rule()
    def has_loaded(self) -> None:
        self.is_loaded = True
        self.state = move(self.state, Event.LOADED)

    @precondition(lambda self: self.is_alive and not self.is_told_to_leave)
    @rule()
    def is_drained(self) -> None:
        self.is_told_to_leave = True
        self.state = move(self.state, Event.DRAIN)

    @precondition(lambda self: self.is_alive)
    @rule()
    def dies(self) -> None:
        self.is_alive = False
        self.state = move(self.state, Event.EXIT)

    @rule()
    def refuses_everything_else(self) -> None:
        for event in Event:
            if not can_move(self.state, event):
                with pytest.raises(IllegalMove):
                    move(self.state, event)

    @invariant()
    def state_tells_the_facts(self) -> None:
        assert (self.state is State.GONE) is not self.is_alive
        if self.is_alive:
            assert (self.state is State.DRAINING) is self.is_told_to_leave
        assert serves(self.state) is (self.is_alive and self.is_loaded and not self.is_told_to_leave)
        if holds_capacity(self.state):
            assert self.is_alive and not self.is_told_to_leave

    @invariant()
    def gone_is_the_end(self) -> None:
        if self.state is State.GONE:
            assert not any(can_move(self.state, event) for event in Event)


TestInstanceLife = InstanceLife.TestCase
