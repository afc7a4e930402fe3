"""The model thread of async handlers: an event loop of the user's own, in the process's main thread.

User coroutines never share a loop with the frames, so one that blocks delays only its fellows. A call whose caller left
or whose deadline passed is cancelled. This module does not know frames or sockets.
"""

from __future__ import annotations

import asyncio
import inspect
from typing import Any

from samovar.errors import Cancelled
from samovar_instance.calls import Call, Kind
from samovar_instance.contexts import context_of
from samovar_instance.invoker import Invoker
from samovar_instance.mailbox import Mailbox
from samovar_instance.runner import NOTHING, Expired, fail, finish, join_lines, start


class AsyncRunner:
    """Runs coroutine and async generator handlers, `num_slots` at a time."""

    def __init__(self, mailbox: Mailbox, invoker: Invoker, loop: asyncio.AbstractEventLoop, num_slots: int) -> None:
        self._mailbox = mailbox
        self._invoker = invoker
        self._loop = loop
        self._num_slots = num_slots
        self._tasks: set[asyncio.Task[None]] = set()
        self._is_awake = False
        mailbox.on_calls(self._wake)

    def run(self) -> None:
        """Serve until told to stop."""
        self._wake()
        self._loop.run_forever()

    def _wake(self) -> None:
        if not self._is_awake:
            self._is_awake = True
            self._loop.call_soon_threadsafe(self._intake)

    def _intake(self) -> None:
        self._is_awake = False
        mailbox = self._mailbox
        while len(self._tasks) < self._num_slots and (call := mailbox.next()) is not None:
            if start(mailbox, call):
                self._begin(call)
        if mailbox.is_stopping and not self._tasks:
            self._loop.stop()

    def _begin(self, call: Call) -> None:
        task = self._loop.create_task(self._serve(call))
        call.stop = lambda: self._loop.call_soon_threadsafe(_tell_to_stop, call, task)
        self._tasks.add(task)
        task.add_done_callback(lambda ended: self._ended(ended, call))
        if call.is_cancelled or call.is_expired:
            _tell_to_stop(call, task)  # it was marked before it could be reached

    def _ended(self, task: asyncio.Task[None], call: Call) -> None:
        self._tasks.discard(task)
        if task.cancelled():  # before its first step: the coroutine never ran
            self._interrupted(call, asyncio.CancelledError())
        self._intake()

    def _interrupted(self, call: Call, error: BaseException) -> None:
        fail(self._mailbox, call, Cancelled() if call.is_cancelled else Expired() if call.is_expired else error)

    async def _serve(self, call: Call) -> None:
        try:
            if call.is_check:
                kind, payload = Kind.RESULT, await self._prove()
            elif self._invoker.is_stream:
                kind, payload = await self._stream(call)
            else:
                context = context_of(self._mailbox, call) if self._invoker.takes_context else None
                answer = self._invoker.answer_async(call.body, context, call.content_type, call.accept)
                kind, payload = Kind.RESULT, await answer
        except asyncio.CancelledError as error:
            self._interrupted(call, error)
        except BaseException as error:  # noqa: BLE001 (a handler may raise anything, SystemExit included)
            fail(self._mailbox, call, error)
        else:
            finish(self._mailbox, call, kind, payload)

    async def _prove(self) -> bytes:
        proof = self._invoker.prove()
        if proof is not None:
            await proof
        return NOTHING

    async def _stream(self, call: Call) -> tuple[Kind, Any]:
        credited = asyncio.Event()
        call.resume = lambda: self._loop.call_soon_threadsafe(credited.set)
        lines: list[bytes] = []
        context = context_of(self._mailbox, call) if self._invoker.takes_context else None
        items = self._invoker.items_async(call.body, context, call.content_type)
        try:
            async for item in items:
                line = self._invoker.write(item, call.accept)
                if not call.accept_stream:
                    lines.append(line)
                    continue
                while call.num_sent >= call.num_granted:
                    credited.clear()
                    if call.num_sent >= call.num_granted:
                        await credited.wait()
                call.num_sent += 1
                self._mailbox.emit(Kind.CHUNK, call, line)
        finally:
            if inspect.isasyncgen(items):
                await items.aclose()
        return (Kind.END, None) if call.accept_stream else (Kind.RESULT, join_lines(lines))


def _tell_to_stop(call: Call, task: asyncio.Task[None]) -> None:
    call.has_heard = True
    task.cancel()
