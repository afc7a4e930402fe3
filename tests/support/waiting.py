"""Waiting in tests: for a condition, never for a time."""

from __future__ import annotations

import asyncio
import inspect
import time
from collections.abc import Awaitable, Callable
from typing import Any

PATIENCE_S = 60.0  # what ends sooner on any machine that is not broken, however busy it is


def wait_until(predicate: Callable[[], Any], timeout_s: float = PATIENCE_S, what: str = "") -> Any:
    """Return the predicate's first true value. Raises AssertionError after `timeout_s`."""
    deadline_s = time.monotonic() + timeout_s
    while not (value := predicate()):
        assert time.monotonic() < deadline_s, (
            f"not within {timeout_s} s: {what or inspect.getsource(predicate).strip()}"
        )
        time.sleep(0.01)
    return value


async def wait_until_async(
    predicate: Callable[[], Awaitable[Any]] | Callable[[], Any], timeout_s: float = PATIENCE_S, what: str = ""
) -> Any:
    """Return the first true value of a predicate that may be a coroutine function. Raises AssertionError."""
    deadline_s = time.monotonic() + timeout_s
    while True:
        value = predicate()
        if inspect.isawaitable(value):
            value = await value
        if value:
            return value
        assert time.monotonic() < deadline_s, f"not within {timeout_s} s: {what or predicate}"
        await asyncio.sleep(0.01)
