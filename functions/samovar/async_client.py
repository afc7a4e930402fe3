"""`Client` for asyncio: the same with `await` and `async for`. See `client` for what it promises."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import random
import time
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping
from types import TracebackType
from typing import Any, Unpack
from urllib.parse import urlsplit

import httpx
import httpx_sse

from samovar import job_client_async, job_requests, patience
from samovar.connection import find_connection
from samovar.errors import SamovarError, Unavailable
from samovar.event_client import read_events_async
from samovar.events import Course, Event, Output
from samovar.jobs import JobEvent
from samovar.problems import stream_item
from samovar.transport import (
    DEFAULT_TIMEOUT_S,
    SILENCE_S,
    Answer,
    Priority,
    answer_of,
    async_lines_of,
    check_stored,
    checked,
    client_options,
    dump,
    event_headers,
    invoke_path,
    is_loopback,
    mapped,
    terms,
    timeout,
    unavailable_pause_s,
)


class AsyncClient:
    """`Client` for asyncio; use it within one event loop, as an async context manager or with `await aclose()`."""

    def __init__(
        self, url: str | None = None, api_key: str | None = None, *, max_retries: int = 0, max_connections: int = 100
    ) -> None:
        """Prepare; arguments and errors as for `Client`."""
        self.connection = find_connection(url, api_key)
        self.max_retries = max_retries
        self._http = httpx.AsyncClient(**client_options(self.connection, max_connections))

    def function(self, name: str) -> AsyncFunction:
        """Return a handle on the function called `name`."""
        return AsyncFunction(self, name)

    def job(self, job_id: str) -> job_client_async.AsyncJob:
        """Return a handle on the job with this id."""
        return job_client_async.AsyncJob(self, job_id)

    def jobs(self, *, function: str = "", state: str = "", group: str = "") -> AsyncIterator[job_client_async.AsyncJob]:
        """Yield the jobs this key may see, newest first; arguments as for `Client.jobs`."""
        return job_client_async.list_jobs(self, function=function, state=state, group=group)

    def group(self, group_id: str) -> job_client_async.AsyncJobGroup:
        """Return a handle on jobs that were submitted together."""
        return job_client_async.AsyncJobGroup(self, group_id)

    @property
    def crons(self) -> job_client_async.AsyncCrons:
        """The cron jobs this key may see."""
        return job_client_async.AsyncCrons(self)

    async def request(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        timeout_s: float = 30.0,
        headers: Mapping[str, str] | None = None,
    ) -> httpx.Response:
        """Send one request and return the answer, read whole. Raises as `Client.request` does."""
        for attempt in range(self.max_retries):
            try:
                return await self._once(method, path, body, timeout_s, headers)
            except Unavailable as error:
                await asyncio.sleep(unavailable_pause_s(error, attempt))
        return await self._once(method, path, body, timeout_s, headers)

    async def persist(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        timeout_s: float = 30.0,
        headers: Mapping[str, str] | None = None,
        patience_s: float = patience.PATIENCE_S,
    ) -> httpx.Response:
        """Send a request that does no harm twice until it is answered; as `Client.persist`."""
        until_s = time.monotonic() + patience_s
        for attempt in itertools.count():
            try:
                return await self._once(method, path, body, timeout_s, headers, follow=True)
            except SamovarError as error:
                if not await self.pause(error, attempt, until_s - time.monotonic()):
                    raise
        raise AssertionError("counting ends")

    async def pause(self, error: SamovarError, attempt: int, left_s: float = patience.PATIENCE_S) -> bool:
        """Sleep for as long as `error` asks for and return True; False if the request is not worth another try."""
        pause_s = patience.pause_s(error, attempt, left_s, random.random())  # noqa: S311 (jitter)
        if pause_s is not None:
            await asyncio.sleep(pause_s)
        return pause_s is not None

    async def _once(
        self,
        method: str,
        path: str,
        body: bytes | None,
        timeout_s: float,
        headers: Mapping[str, str] | None,
        follow: bool = False,
    ) -> httpx.Response:
        sent = self._http.build_request(method, path, content=body, headers=headers, timeout=timeout(timeout_s))
        with mapped(self.connection.url):
            response = await self._http.send(sent, follow_redirects=follow)
        return checked(response)

    async def send_object(self, url: str, content: bytes) -> None:
        """Put `content` where a signed link leads; as `Client.send_object`."""
        async with httpx.AsyncClient(timeout=timeout(DEFAULT_TIMEOUT_S), trust_env=not is_loopback(url)) as store:
            with mapped(urlsplit(url).netloc):
                response = await store.put(url, content=content)
        check_stored(response)

    @contextlib.asynccontextmanager
    async def lines(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        timeout_s: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> AsyncIterator[tuple[httpx.Response, AsyncIterator[bytes]]]:
        """Open a streamed answer and its lines as they arrive; as `Client.lines`."""
        async with self.opened(method, path, body, timeout_s, headers) as response:
            yield response, async_lines_of(response)

    async def events(self, path: str, last_event_id: str = "", silence_s: float = SILENCE_S) -> AsyncIterator[JobEvent]:
        """Yield the server-sent events of `path` after this one; as `Client.events`."""
        async with self.opened("GET", path, None, silence_s, event_headers(last_event_id)) as response:
            if response.status_code == httpx.codes.NO_CONTENT:
                return
            async for event in httpx_sse.EventSource(response).aiter_sse():
                if event.data:
                    yield job_requests.event_of(event.id, event.event, event.data)

    @contextlib.asynccontextmanager
    async def opened(
        self, method: str, path: str, body: bytes | None, timeout_s: float | None, headers: Mapping[str, str] | None
    ) -> AsyncIterator[httpx.Response]:
        """Open a streamed answer, to be read by its bytes; as `lines`."""
        limit = timeout(timeout_s)
        with mapped(self.connection.url):
            async with self._http.stream(method, path, content=body, headers=headers, timeout=limit) as response:
                if response.status_code >= 400:
                    await response.aread()
                yield checked(response)

    async def aclose(self) -> None:
        """Close every connection."""
        await self._http.aclose()

    async def __aenter__(self) -> AsyncClient:
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        await self.aclose()


class AsyncFunction:
    """A handle on one deployed function, for asyncio."""

    def __init__(self, client: AsyncClient, name: str) -> None:
        self._client = client
        self.name = name

    async def invoke(
        self, value: Any = None, *, timeout_s: float | None = None, priority: Priority | None = None
    ) -> Any:
        """Return the function's answer to `value`; arguments and errors as for `Function.invoke`."""
        return (await self.call(value, timeout_s=timeout_s, priority=priority)).value

    async def call(
        self, value: Any = None, *, timeout_s: float | None = None, priority: Priority | None = None
    ) -> Answer:
        """Return the answer to `value` with its receipt."""
        return answer_of(
            await self._client.request("POST", invoke_path(self.name), dump(value), **terms(timeout_s, priority))
        )

    async def stream(
        self,
        value: Any = None,
        *,
        timeout_s: float | None = None,
        priority: Priority | None = None,
        resume_s: float | None = None,
    ) -> AsyncIterator[Any]:
        """Yield the items of a function that streams, as they arrive; as `Function.stream`."""
        if resume_s is not None:
            async with contextlib.aclosing(
                self.events(value, timeout_s=timeout_s, priority=priority, resume_s=resume_s)
            ) as events:
                async for event in events:
                    if isinstance(event, Output):
                        yield event.value
            return
        path = invoke_path(self.name)
        async with self._client.lines("POST", path, dump(value), **terms(timeout_s, priority)) as (_, lines):
            async for line in lines:
                yield stream_item(line)

    def events(
        self,
        value: Any = None,
        *,
        timeout_s: float | None = None,
        priority: Priority | None = None,
        resume_s: float | None = None,
    ) -> AsyncGenerator[Event, None]:
        """Yield everything a call tells, as it comes; as `Function.events`. To stop reading, close it (`aclosing`)."""
        course = Course(terms(timeout_s, priority)["headers"], resume_s)
        return read_events_async(self._client, invoke_path(self.name), dump(value), course)

    async def submit(
        self, value: Any = None, *, idempotency_key: str | None = None, **options: Unpack[job_requests.Terms]
    ) -> job_client_async.AsyncJob:
        """Queue a job for `value` and return it once it is safe; as `Function.submit`."""
        return await job_client_async.submit(self._client, self.name, value, idempotency_key, **options)

    async def submit_many(
        self,
        inputs: Iterable[Any],
        *,
        reduce: str | Mapping[str, Any] | bool | None = None,
        idempotency_key: str | None = None,
        **options: Unpack[job_requests.Terms],
    ) -> job_client_async.AsyncJobGroup:
        """Queue a job for each of `inputs`, all of them or none; as `Function.submit_many`."""
        lines, wanted = job_requests.encoded(inputs), job_requests.reduce_of(reduce)
        return await job_client_async.submit_lines(
            self._client, self.name, lines, options, reduce=wanted, idempotency_key=idempotency_key
        )
