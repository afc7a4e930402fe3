"""Many small requests as few larger ones: what comes while one is on its way goes together with the next.

This module does not know what the requests are.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Generic, TypeVar

Request = TypeVar("Request")
Reply = TypeVar("Reply")


class Batcher(Generic[Request, Reply]):
    """send: takes up to `most` requests, returns a reply for each, in order. One send is under way at a time."""

    def __init__(self, send: Callable[[list[Request]], Awaitable[list[Reply]]], most: int) -> None:
        self._send = send
        self._most = most
        self._waiting: deque[tuple[Request, asyncio.Future[Reply]]] = deque()
        self._task: asyncio.Task[None] | None = None

    async def add(self, request: Request) -> Reply:
        """Return the reply to this request; raises what the send that it went with raised."""
        future: asyncio.Future[Reply] = asyncio.get_running_loop().create_future()
        self._waiting.append((request, future))
        if self._task is None:
            self._task = asyncio.create_task(self._drain())
        return await future

    async def _drain(self) -> None:
        try:
            while self._waiting:
                await self._one([self._waiting.popleft() for _ in range(min(self._most, len(self._waiting)))])
        finally:
            self._task = None

    async def _one(self, batch: list[tuple[Request, asyncio.Future[Reply]]]) -> None:
        try:
            replies = await self._send([request for request, _ in batch])
        except BaseException as error:
            for _, future in batch:
                if not future.done():
                    future.set_exception(error) if isinstance(error, Exception) else future.cancel()
            if not isinstance(error, Exception):
                raise
            return
        for (_, future), reply in zip(batch, replies, strict=True):
            if not future.done():
                future.set_result(reply)
