"""A rehearsal waits while the cores are wanted, but not for ever."""

import pytest

from samovar_instance import introspect
from samovar_instance.patience import MAX_LOOKS, Patience


def test_it_waits_for_a_quiet_machine(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = iter([True, True, False])
    monkeypatch.setattr(introspect, "is_machine_busy", lambda: next(answers))
    patience = Patience()
    assert [patience.waits() for _ in range(3)] == [True, True, False]


def test_it_waits_no_longer_than_it_may(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(introspect, "is_machine_busy", lambda: True)
    patience = Patience()
    assert [patience.waits() for _ in range(MAX_LOOKS + 2)] == [True] * MAX_LOOKS + [False, True]


def test_the_machine_is_looked_at() -> None:
    assert introspect.is_machine_busy() in (True, False)
