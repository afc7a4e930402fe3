"""The model thread of batch handlers: take what waits, decide, run one batch, tell every member its own end.

Each item is decoded, validated and weighed before it joins a batch, so a bad one fails alone. When a batch raises, its
members are run one by one and only the culprits fail. An async handler is cancelled once nobody wants its batch.
This module does not know frames or sockets.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import deque
from collections.abc import Callable
from typing import Any

from samovar.errors import BadOutput, Cancelled, FunctionRaised, InvalidInput
from samovar_instance import batching, devices, failures
from samovar_instance.calls import Call, Kind
from samovar_instance.contexts import context_of
from samovar_instance.invoker import Invoker
from samovar_instance.mailbox import Mailbox
from samovar_instance.runner import Expired, check, fail, finish, start


class BatchRunner:
    """Runs handlers that take a list. loop: where async ones run, None for plain ones."""

    def __init__(self, mailbox: Mailbox, invoker: Invoker, loop: asyncio.AbstractEventLoop | None) -> None:
        if invoker.batch is None:
            raise ValueError("BatchRunner needs a batch handler")
        self._mailbox = mailbox
        self._invoker = invoker
        self._spec = invoker.batch.spec
        self._cost: Callable[[Any], float] | None = invoker.batch.cost
        self._length = invoker.length
        self._loop = loop
        self._running: list[Call] = []
        self._task: asyncio.Future[Any] | None = None
        self._last = batching.LastBatch()

    def run(self) -> None:
        """Serve until told to stop."""
        mailbox = self._mailbox
        while not (mailbox.is_stopping and not mailbox.has_calls and not mailbox.waiting):
            self._prepare_arrivals()
            self._drop_expired()
            now_s = time.monotonic()
            waiting = list(mailbox.waiting)  # a copy: the I/O thread may withdraw one meanwhile
            decision = batching.decide(now_s, waiting, self._spec, self._last)
            if decision.take:
                self._run_batch(self._claim([waiting[place] for place in decision.take]))
            else:
                until_s = decision.wait_until_s
                mailbox.doze(self._has_news, -1 if until_s is None else max(0.0, until_s - now_s))

    def _has_news(self) -> bool:
        return self._mailbox.has_calls or self._mailbox.is_stopping

    def _prepare_arrivals(self) -> None:
        mailbox = self._mailbox
        while (call := mailbox.next()) is not None:
            if call.is_check:
                self._check(call)
            elif self._prepare(call):
                _line_up(call, mailbox.waiting)

    def _check(self, call: Call) -> None:
        """Between two batches, and alone: whose fault a failure was must be plain."""
        if start(self._mailbox, call):
            check(self._mailbox, call, self._invoker)

    def _prepare(self, call: Call) -> bool:
        """Decode, validate and weigh one item; False, and its failure told, if it cannot join a batch."""
        try:
            call.value = self._invoker.read(call.body, call.content_type)
            call.cost = self._weigh(call.value)
            call.length = self._measure(call.value)
        except BaseException as error:  # noqa: BLE001 (a function of theirs may raise anything)
            call.started_at_s = time.monotonic()
            fail(self._mailbox, call, error)
            return False
        call.body = b""
        return True

    def _weigh(self, value: Any) -> float:
        if self._cost is None:
            return 0.0
        cost = float(self._cost(value))
        if not math.isfinite(cost) or cost < 0:
            raise FunctionRaised(f"the cost function returned {cost}", type="ValueError")
        max_cost = self._spec.max_cost
        if max_cost is not None and cost > max_cost:
            raise InvalidInput(f"$: the input costs {cost:g}, more than a whole batch may ({max_cost:g})", path="$")
        return cost

    def _measure(self, value: Any) -> int:
        if self._length is None:
            return 0
        length = self._length(value)
        if not isinstance(length, int) or length < 0:
            raise FunctionRaised(f"the length function returned {length!r}, no whole number", type="ValueError")
        max_tokens = self._spec.max_tokens
        if max_tokens is not None and length > max_tokens:
            detail = f"$: the input has {length} tokens, more than a whole batch may ({max_tokens})"
            raise InvalidInput(detail, path="$")
        return length

    def _drop_expired(self) -> None:
        now_s = time.monotonic()
        for call in list(self._mailbox.waiting):
            if now_s >= call.deadline_s and self._mailbox.withdraw(call):
                self._mailbox.emit(Kind.FAILURE, call, failures.expired("queue"))

    def _claim(self, chosen: list[Call]) -> list[Call]:
        """Take the chosen items out of the queue, but for those that the I/O thread has withdrawn since."""
        return [call for call in chosen if self._mailbox.claim(call) and start(self._mailbox, call)]

    def _run_batch(self, calls: list[Call]) -> None:
        if not calls:
            return
        started_s = time.monotonic()
        for call in calls:
            call.batch_size = len(calls)
            call.stop = self._look_who_is_left
        outputs = self._try_together(calls)
        if isinstance(outputs, asyncio.CancelledError) and all(map(_is_unwanted, calls)):
            for call in calls:
                fail(self._mailbox, call, Cancelled() if call.is_cancelled else Expired())
        elif isinstance(outputs, BadOutput):
            for call in calls:
                fail(self._mailbox, call, outputs)
        elif isinstance(outputs, BaseException):
            self._isolate(calls, outputs)
        else:
            for call, output in zip(calls, outputs, strict=True):
                self._tell(call, output)
        now_s = time.monotonic()
        self._last = batching.LastBatch(len(calls), now_s, now_s - started_s)

    def _try_together(self, calls: list[Call]) -> list[Any] | BaseException:
        self._running = calls
        try:
            values, contexts = [call.value for call in calls], None
            if self._invoker.takes_context:
                contexts = [context_of(self._mailbox, call) for call in calls]
            return self._invoker.outputs(values, self._run_async, contexts)
        except BaseException as error:  # noqa: BLE001 (a handler may raise anything, SystemExit included)
            return error

    def _isolate(self, calls: list[Call], error: BaseException) -> None:
        """Find out whose fault it was: run each member alone, unless it already was or the device is gone."""
        if len(calls) == 1 or devices.is_context_broken(error):
            for call in calls:
                fail(self._mailbox, call, error)
            return
        for call in calls:
            if call.is_cancelled or time.monotonic() >= call.deadline_s:
                finish(self._mailbox, call, Kind.FAILURE, failures.expired("run"))
                continue
            call.batch_size = 1
            outputs = self._try_together([call])
            if isinstance(outputs, BaseException):
                fail(self._mailbox, call, outputs)
            else:
                self._tell(call, outputs[0])

    def _run_async(self, awaitable: Any) -> Any:
        if self._loop is None:
            raise BadOutput("a plain batch handler returned a coroutine; write it as async def")
        self._task = asyncio.ensure_future(awaitable, loop=self._loop)
        self._loop.call_soon(self._stop_if_unwanted)  # they may have left before they could be heard
        return self._loop.run_until_complete(self._task)

    def _look_who_is_left(self) -> None:
        """Called from the I/O thread when a member's caller left or its deadline passed."""
        if self._loop is not None:
            self._loop.call_soon_threadsafe(self._stop_if_unwanted)

    def _stop_if_unwanted(self) -> None:
        if self._task is not None and all(map(_is_unwanted, self._running)):
            self._task.cancel()

    def _tell(self, call: Call, output: Any) -> None:
        call.value = None
        if isinstance(output, Exception):
            fail(self._mailbox, call, output)
            return
        try:
            body = self._invoker.write(output, call.accept)
        except BaseException as error:  # noqa: BLE001 (a user's type may raise anything while it is encoded)
            fail(self._mailbox, call, error)
        else:
            finish(self._mailbox, call, Kind.RESULT, body)


def _line_up(call: Call, waiting: deque[Call]) -> None:
    """Let a call wait behind those that came before it, but before all queued jobs."""
    in_line = list(waiting)
    place = len(in_line)
    while call.job is None and place and in_line[place - 1].job is not None:
        place -= 1
    waiting.insert(place, call)


def _is_unwanted(call: Call) -> bool:
    return call.is_cancelled or call.is_expired
