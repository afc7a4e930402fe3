"""Reading a call's events, over as many connections as it takes: for `Client` and `AsyncClient`.

    open ─► events ─► Done
      ▲        └─ the connection breaks ─► pause ─┐   only with resume_s; `events.Course` decides
      └───────────────────────────────────────────┘

Whoever stops reading ends the call. This module does not know what events are about.
"""

from __future__ import annotations

import asyncio
import contextlib
import random
import time
from collections.abc import AsyncGenerator, Generator, Iterator
from typing import TYPE_CHECKING

import httpx

from samovar.errors import SamovarError
from samovar.events import SILENCE_S, Blocks, Course, Event

if TYPE_CHECKING:
    from samovar.async_client import AsyncClient
    from samovar.client import Client

FAREWELL_S = 5.0


def read_events(client: Client, path: str, body: bytes, course: Course) -> Generator[Event, None, None]:
    """Yield the events of a call up to its end. Raises: what it came to; ConnectError when a connection was lost."""
    try:
        while not course.is_over:
            try:
                yield from _one_connection(client, path, b"" if course.last_id else body, course)
            except SamovarError as error:
                pause_s = course.pause_s(error, time.monotonic(), random.random())  # noqa: S311 (jitter)
                if pause_s is None:
                    course.is_over = True
                    raise
                time.sleep(pause_s)
    finally:
        if (headers := course.farewell()) is not None:
            with contextlib.suppress(SamovarError):
                client.request("POST", path, b"", timeout_s=FAREWELL_S, headers=headers)


def _one_connection(client: Client, path: str, body: bytes, course: Course) -> Iterator[Event]:
    blocks = Blocks()
    with client.opened("POST", path, body, SILENCE_S, course.headers) as response:
        if response.status_code == httpx.codes.NO_CONTENT:
            course.is_over = True
            return
        for data in response.iter_bytes():
            for block in blocks.feed(data):
                if (event := course.take(block)) is not None:
                    yield event
    if not course.is_over:
        raise course.broken()


async def read_events_async(client: AsyncClient, path: str, body: bytes, course: Course) -> AsyncGenerator[Event, None]:
    """`read_events` for asyncio."""
    try:
        while not course.is_over:
            try:
                events = _one_connection_async(client, path, b"" if course.last_id else body, course)
                async with contextlib.aclosing(events):
                    async for event in events:
                        yield event
            except SamovarError as error:
                pause_s = course.pause_s(error, time.monotonic(), random.random())  # noqa: S311 (jitter)
                if pause_s is None:
                    course.is_over = True
                    raise
                await asyncio.sleep(pause_s)
    finally:
        if (headers := course.farewell()) is not None:
            with contextlib.suppress(SamovarError):
                await client.request("POST", path, b"", timeout_s=FAREWELL_S, headers=headers)


async def _one_connection_async(
    client: AsyncClient, path: str, body: bytes, course: Course
) -> AsyncGenerator[Event, None]:
    blocks = Blocks()
    async with client.opened("POST", path, body, SILENCE_S, course.headers) as response:
        if response.status_code == httpx.codes.NO_CONTENT:
            course.is_over = True
            return
        async for data in response.aiter_bytes():
            for block in blocks.feed(data):
                if (event := course.take(block)) is not None:
                    yield event
    if not course.is_over:
        raise course.broken()
