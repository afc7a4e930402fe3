"""The threads in which blocking store calls run, so that the event loop never waits for S3.

Threads and waiting line are bounded; hashing whole blobs has threads of its own, so that long uploads never keep a
short request waiting. This module does not know what is run.
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import ParamSpec, TypeVar

from samovar.errors import Unavailable

P = ParamSpec("P")
T = TypeVar("T")


class Workers:
    """Up to `num_threads` blocking calls at once and `max_waiting` more in line."""

    def __init__(self, name: str, num_threads: int, max_waiting: int) -> None:
        self._executor = ThreadPoolExecutor(num_threads, thread_name_prefix=name)
        self._max_pending = num_threads + max_waiting
        self._num_pending = 0

    async def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Return what `function` returns. Raises Unavailable when the line is full.

        A caller that leaves does not stop the call: a store operation that began is finished, and keeps its place.
        """
        if self._num_pending >= self._max_pending:
            raise Unavailable("too many administrative requests at once; try again", retry_after_s=1)
        self._num_pending += 1
        future = asyncio.get_running_loop().run_in_executor(
            self._executor, functools.partial(function, *args, **kwargs)
        )
        future.add_done_callback(self._done)
        return await asyncio.shield(future)

    def close(self) -> None:
        """Take nothing more; calls that run are finished by their threads."""
        self._executor.shutdown(wait=False, cancel_futures=True)

    def _done(self, future: asyncio.Future[T]) -> None:
        self._num_pending -= 1
        if not future.cancelled():
            future.exception()  # seen also when the caller left
