"""When a rehearsal had better wait: while the cores are wanted for calls. This module does not know what waits."""

from __future__ import annotations

from samovar_instance import introspect

MAX_LOOKS = 25  # one every 0.2 s: on a machine that is never quiet it is worth its 0.06 s all the same


class Patience:
    """Asked at intervals whether to wait; answers no once the machine is quiet, or after MAX_LOOKS in a row."""

    def __init__(self) -> None:
        self._num_left = MAX_LOOKS

    def waits(self) -> bool:
        """Return whether to look again later, because more threads want to run than there are cores."""
        if self._num_left and introspect.is_machine_busy():
            self._num_left -= 1
            return True
        self._num_left = MAX_LOOKS
        return False
