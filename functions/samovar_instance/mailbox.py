"""Where the I/O thread and the model thread meet: one deque and one wake-up each way.

Whole lists of calls are handed over and whole runs of results collected, each side waking the other only if it sleeps.
Single deque operations are atomic in CPython; taking a call out of the deque is what claims it, so a call is either
started by the model thread or withdrawn by the I/O thread, never both. The inbox is bounded by the server's admission.
This module does not know frames, batches or handlers.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable
from typing import Any

from samovar_instance.calls import Call, Event, Kind


class Mailbox:
    """`inbox`: calls not yet taken; `jobs`: those of queued jobs, taken when the inbox is empty. `waiting`: taken and
    decoded, but not started (a batch being formed)."""

    def __init__(self) -> None:
        self.inbox: deque[Call] = deque()
        self.jobs: deque[Call] = deque()
        self.waiting: deque[Call] = deque()
        self.is_stopping = False
        self._outbox: deque[Event] = deque()
        self._bell = threading.Lock()
        self._bell.acquire()
        self._is_dozing = False
        self._wake_model: Callable[[], object] = self._ring
        self._wake_io: Callable[[], object] = lambda: None
        self._io_is_awake = False

    # ---- I/O thread

    def on_results(self, wake: Callable[[], object]) -> None:
        """Have `wake` called, from the model thread, when there is something to collect."""
        self._wake_io = wake

    def put(self, calls: Iterable[Call], jobs: Iterable[Call] = ()) -> None:
        """Hand calls to the model thread, all at once; `jobs` give way to the others."""
        self.inbox.extend(calls)
        self.jobs.extend(jobs)
        self._wake_model()

    def nudge(self) -> None:
        """Make the model thread look again: a call was cancelled, a stream got credit, or it should stop."""
        self._wake_model()

    def stop(self) -> None:
        """Let the model thread end once it has nothing left."""
        self.is_stopping = True
        self._wake_model()

    def withdraw(self, call: Call) -> bool:
        """Take back a call that has not started; return whether that was still possible."""
        for queue in (self.inbox, self.jobs, self.waiting):
            try:
                queue.remove(call)
            except ValueError:
                continue
            return True
        return False

    def collect(self) -> list[Event]:
        """Return everything the model thread has told since the last time, in order."""
        self._io_is_awake = False
        events = []
        outbox = self._outbox
        while outbox:
            events.append(outbox.popleft())
        return events

    # ---- model thread

    def claim(self, call: Call) -> bool:
        """Take one of `waiting`, anywhere in it; return whether it was still there."""
        try:
            self.waiting.remove(call)
        except ValueError:
            return False
        return True

    def on_calls(self, wake: Callable[[], object]) -> None:
        """Replace the bell by `wake` (called from the I/O thread): for a model thread that runs an event loop."""
        self._wake_model = wake

    def emit(self, kind: Kind, call: Call, payload: Any = None) -> None:
        """Tell the I/O thread what happened to `call`."""
        self._outbox.append((kind, call, payload))
        if not self._io_is_awake:
            self._io_is_awake = True
            self._wake_io()

    @property
    def has_calls(self) -> bool:
        """Whether a call waits to be taken."""
        return bool(self.inbox or self.jobs)

    def next(self) -> Call | None:
        """Return the next call, None if none waits."""
        while queue := self.inbox or self.jobs:
            try:
                return queue.popleft()
            except IndexError:
                continue  # withdrawn in between
        return None

    def take(self) -> Call | None:
        """Return the next call, waiting for one; None when told to stop."""
        while (call := self.next()) is None:
            if self.is_stopping:
                return None
            self.doze(self._has_news)
        return call

    def doze(self, is_over: Callable[[], bool], timeout_s: float = -1) -> None:
        """Sleep until something new may have come or `timeout_s` passed (negative: no limit); may return early."""
        self._is_dozing = True
        # looked at after the flag is up: whatever came before it is seen here, whatever comes later rings the bell
        if not is_over():
            self._bell.acquire(timeout=timeout_s)
        self._is_dozing = False

    def _has_news(self) -> bool:
        return self.has_calls or self.is_stopping

    def _ring(self) -> None:
        if self._is_dozing and self._bell.locked():
            self._bell.release()
