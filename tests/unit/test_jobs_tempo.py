"""How fast queues are worked off, as a worker reckons it."""

from __future__ import annotations

import pytest

from samovar_jobs.tempo import FORGET_AFTER_S, MAX_QUEUES, Tempo
from samovar_storage.jobs.layout import QueueName

QUEUE = QueueName("f", "a")


def test_the_tempo_is_that_of_the_newest_takes_and_sinks_without_any() -> None:
    tempo = Tempo()
    for number in range(100):
        tempo.took(QUEUE, 4, number * 0.1)
    assert tempo.per_s(9.9)["sv:f:a"] == pytest.approx(40.0)
    assert tempo.per_s(19.9)["sv:f:a"] < 10.0
    assert tempo.per_s(9.9 + FORGET_AFTER_S + 1) == {}


def test_one_take_says_nothing_and_two_at_once_little() -> None:
    tempo = Tempo()
    tempo.took(QUEUE, 1, 5.0)
    assert tempo.per_s(5.0) == {}
    tempo.took(QUEUE, 1, 5.0)
    assert tempo.per_s(5.0)["sv:f:a"] == pytest.approx(2.0)


def test_only_so_many_queues_are_remembered() -> None:
    tempo = Tempo()
    for number in range(MAX_QUEUES + 10):
        for _ in range(2):
            tempo.took(QueueName("f", str(number)), 1, number * 0.01)
    told = tempo.per_s(10.0)
    assert len(told) == MAX_QUEUES and "sv:f:0" not in told
