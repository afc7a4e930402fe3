"""The mailbox between the two threads: nothing lost, nothing twice, no missed wake-up."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from typing import Any, cast

from samovar import wire
from samovar_instance.calls import Call, Kind
from samovar_instance.mailbox import Mailbox


def make_call(number: int) -> Call:
    return Call(cast(Any, None), wire.Invoke(number, b"", 1000.0), 0.0)


def serve(mailbox: Mailbox) -> None:
    while (call := mailbox.take()) is not None:
        mailbox.emit(Kind.RESULT, call, b"")


def test_every_call_is_either_run_or_withdrawn_and_told_once() -> None:
    mailbox = Mailbox()
    told = threading.Semaphore(0)
    mailbox.on_results(told.release)
    model = threading.Thread(target=serve, args=(mailbox,))
    model.start()
    ended: Counter[int] = Counter()
    num_calls, next_number, seen = 20_000, 0, 0
    while seen < num_calls:
        batch = [make_call(number) for number in range(next_number, min(next_number + 7, num_calls))]
        next_number += len(batch)
        mailbox.put(batch)
        if batch and next_number % 3 == 0 and mailbox.withdraw(batch[-1]):
            ended[batch[-1].id] += 1
            seen += 1
        if seen < num_calls and next_number - seen > 32:
            assert told.acquire(timeout=10), "a wake-up was missed"
        for _, call, _ in mailbox.collect():
            ended[call.id] += 1
            seen += 1
    mailbox.stop()
    model.join(10)
    assert not model.is_alive()
    assert set(ended) == set(range(num_calls)) and set(ended.values()) == {1}


def test_a_sleeping_model_thread_is_woken_by_each_of_put_nudge_and_stop() -> None:
    mailbox = Mailbox()
    rounds: list[bool] = []
    news = threading.Event()

    def doze() -> None:
        for _ in range(3):
            mailbox.doze(lambda: False, 10)
            rounds.append(True)
            news.set()

    model = threading.Thread(target=doze)
    model.start()
    wakes: list[Callable[[], None]] = [lambda: mailbox.put([make_call(1)]), mailbox.nudge, mailbox.stop]
    for wake in wakes:
        while not news.wait(0.001):
            wake()
        news.clear()
    model.join(10)
    assert len(rounds) == 3


def test_a_doze_ends_by_itself() -> None:
    Mailbox().doze(lambda: False, 0.01)


def test_results_are_announced_once_until_collected() -> None:
    mailbox = Mailbox()
    announced: list[int] = []
    mailbox.on_results(lambda: announced.append(1))
    for number in range(5):
        mailbox.emit(Kind.RESULT, make_call(number))
    assert len(announced) == 1
    assert [call.id for _, call, _ in mailbox.collect()] == list(range(5))
    mailbox.emit(Kind.RESULT, make_call(9))
    assert len(announced) == 2
