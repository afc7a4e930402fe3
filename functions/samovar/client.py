"""Calling deployed functions from Python: `Client` and its asyncio twin `AsyncClient`, on httpx.

    with samovar.Client() as client:
        answer = client.function("embed").invoke({"text": "tea is ready"}, timeout_s=5)
        for item in client.function("countdown").stream({"text": "one two"}): ...

Both keep their connections open, raise the errors of `samovar.errors`, and retry only what they are asked to.
This module does not know deployment or the command line.
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any, Literal
from urllib.parse import quote, urlsplit

import httpx
import msgspec

from samovar import __version__
from samovar.connection import Connection, find_connection
from samovar.errors import ConfigError, ConnectError, DeadlineExceeded, SamovarError, Unavailable
from samovar.problems import Lines, error_of, phases_of, stream_item

CONNECT_TIMEOUT_S = 5.0
# how much longer than the invocation's own deadline the client waits, so that the gateway's 504 arrives
GRACE_S = 5.0
# without a deadline of the caller's the function's own limit holds; this only ends a wait for a gateway that hangs
DEFAULT_TIMEOUT_S = 600.0
_LONGEST_PAUSE_S = 30.0

Priority = Literal["high", "normal", "low"]

# what a caller learns of httpx's own errors, most special first; {url} and {error} are filled in
TRANSPORT_ERRORS: tuple[tuple[type[Exception], type[SamovarError], str], ...] = (
    (httpx.UnsupportedProtocol, ConfigError, "{url} is not an http address"),
    (httpx.InvalidURL, ConfigError, "{url} is not an http address"),
    (httpx.ConnectTimeout, ConnectError, "the gateway at {url} does not answer"),
    (httpx.TimeoutException, DeadlineExceeded, "no answer from {url} in time"),
    (httpx.ConnectError, ConnectError, "cannot reach the gateway at {url}: {error}"),
    (httpx.HTTPError, ConnectError, "the connection to {url} broke before the answer came: {error}"),
    (httpx.StreamError, ConnectError, "the connection to {url} broke before the answer came: {error}"),
)


@dataclass(frozen=True, slots=True)
class Answer:
    """An answer with its receipt. phases_ms: where the time went, from `Server-Timing`; version: whose answer it is.

    fallback: what stood in for the version that was asked: cached, version, function or value; "" if nothing had to.
    """

    value: Any
    version: str
    request_id: str
    phases_ms: dict[str, float] = field(default_factory=dict)
    fallback: str = ""


class Client:
    """A connection pool to one gateway; safe to share between threads. Close it, or use it as a context manager."""

    def __init__(
        self, url: str | None = None, api_key: str | None = None, *, max_retries: int = 0, max_connections: int = 100
    ) -> None:
        """Prepare; nothing is sent yet.

        Args:
            url, api_key: default from SAMOVAR_URL and SAMOVAR_API_KEY, then from the local `samovar up`.
            max_retries: how often a call refused with 503 is sent again after its `Retry-After`, >= 0.
            max_connections: connections open at once at most, >= 1.
        Raises: ConfigError if no gateway is known.
        """
        self.connection = find_connection(url, api_key)
        self.max_retries = max_retries
        self._http = httpx.Client(**_options(self.connection, max_connections))

    def function(self, name: str) -> Function:
        """Return a handle on the function called `name`; whether it exists shows at the first call."""
        return Function(self, name)

    def request(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        timeout_s: float = 30.0,
        headers: Mapping[str, str] | None = None,
    ) -> httpx.Response:
        """Send one request and return the answer, read whole.

        Raises: the error of `samovar.errors` that an answer >= 400 describes; ConnectError; DeadlineExceeded.
        """
        for attempt in range(self.max_retries):
            try:
                return self._once(method, path, body, timeout_s, headers)
            except Unavailable as error:
                time.sleep(_pause_s(error, attempt))
        return self._once(method, path, body, timeout_s, headers)

    def _once(
        self, method: str, path: str, body: bytes | None, timeout_s: float, headers: Mapping[str, str] | None
    ) -> httpx.Response:
        with _mapped(self.connection.url):
            response = self._http.request(method, path, content=body, headers=headers, timeout=_timeout(timeout_s))
        return _checked(response)

    @contextlib.contextmanager
    def lines(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        timeout_s: float | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> Iterator[tuple[httpx.Response, Iterator[bytes]]]:
        """Open a streamed answer and its lines as they arrive; leaving the context ends it on both sides.

        Args: timeout_s: longest silence, None = no limit. Raises: as `request` does, also while lines are read.
        """
        with (
            _mapped(self.connection.url),
            self._http.stream(method, path, content=body, headers=headers, timeout=_timeout(timeout_s)) as response,
        ):
            if response.status_code >= 400:
                response.read()
            yield _checked(response), _lines(response)

    def close(self) -> None:
        """Close every connection."""
        self._http.close()

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Function:
    """A handle on one deployed function."""

    def __init__(self, client: Client, name: str) -> None:
        self._client = client
        self.name = name

    def invoke(self, value: Any = None, *, timeout_s: float | None = None, priority: Priority | None = None) -> Any:
        """Return the function's answer to `value` (anything JSON can carry).

        Args:
            timeout_s: the deadline, > 0; None leaves it to the function's own limit.
            priority: who waits behind whom when there is a queue; None is normal. A key may cap it.
        Raises: the error of `samovar.errors` that describes what went wrong.
        """
        return self.call(value, timeout_s=timeout_s, priority=priority).value

    def call(self, value: Any = None, *, timeout_s: float | None = None, priority: Priority | None = None) -> Answer:
        """Return the answer to `value` with its receipt: version, request id, phases. Raises as `invoke` does."""
        return _answer(self._client.request("POST", invoke_path(self.name), _dump(value), **terms(timeout_s, priority)))

    def stream(
        self, value: Any = None, *, timeout_s: float | None = None, priority: Priority | None = None
    ) -> Iterator[Any]:
        """Yield the items of a function that streams, as they arrive. Raises as `invoke` does, also between items."""
        path = invoke_path(self.name)
        with self._client.lines("POST", path, _dump(value), **terms(timeout_s, priority)) as (_, lines):
            for line in lines:
                yield stream_item(line)


class AsyncClient:
    """`Client` for asyncio; use it within one event loop, as an async context manager or with `await aclose()`."""

    def __init__(
        self, url: str | None = None, api_key: str | None = None, *, max_retries: int = 0, max_connections: int = 100
    ) -> None:
        """Prepare; arguments and errors as for `Client`."""
        self.connection = find_connection(url, api_key)
        self.max_retries = max_retries
        self._http = httpx.AsyncClient(**_options(self.connection, max_connections))

    def function(self, name: str) -> AsyncFunction:
        """Return a handle on the function called `name`."""
        return AsyncFunction(self, name)

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
                await asyncio.sleep(_pause_s(error, attempt))
        return await self._once(method, path, body, timeout_s, headers)

    async def _once(
        self, method: str, path: str, body: bytes | None, timeout_s: float, headers: Mapping[str, str] | None
    ) -> httpx.Response:
        timeout = _timeout(timeout_s)
        with _mapped(self.connection.url):
            response = await self._http.request(method, path, content=body, headers=headers, timeout=timeout)
        return _checked(response)

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
        timeout = _timeout(timeout_s)
        with _mapped(self.connection.url):
            async with self._http.stream(method, path, content=body, headers=headers, timeout=timeout) as response:
                if response.status_code >= 400:
                    await response.aread()
                yield _checked(response), _async_lines(response)

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
        return _answer(
            await self._client.request("POST", invoke_path(self.name), _dump(value), **terms(timeout_s, priority))
        )

    async def stream(
        self, value: Any = None, *, timeout_s: float | None = None, priority: Priority | None = None
    ) -> AsyncIterator[Any]:
        """Yield the items of a function that streams, as they arrive."""
        path = invoke_path(self.name)
        async with self._client.lines("POST", path, _dump(value), **terms(timeout_s, priority)) as (_, lines):
            async for line in lines:
                yield stream_item(line)


def invoke_path(name: str) -> str:
    """Return the path of a function's invoke route."""
    return f"/v1/functions/{quote(name, safe='')}/invoke"


def terms(timeout_s: float | None, priority: Priority | None = None) -> dict[str, Any]:
    """Return what `request` and `lines` need for a call on these terms: headers, and how long to listen."""
    headers = {"Content-Type": "application/json"}
    if priority is not None:
        headers["Samovar-Priority"] = priority
    if timeout_s is None:
        return {"headers": headers, "timeout_s": DEFAULT_TIMEOUT_S}
    headers["Samovar-Timeout-Ms"] = str(max(1, round(timeout_s * 1000)))
    return {"headers": headers, "timeout_s": timeout_s + GRACE_S}


def _options(connection: Connection, max_connections: int) -> dict[str, Any]:
    headers = {"User-Agent": f"samovar-client/{__version__}"}
    if connection.api_key:
        headers["Authorization"] = f"Bearer {connection.api_key}"
    limits = httpx.Limits(max_connections=max_connections, max_keepalive_connections=max_connections)
    url = connection.url
    return {"base_url": url, "headers": headers, "limits": limits, "trust_env": not is_loopback(url)}


def is_loopback(url: str) -> bool:
    """Return whether `url` is on this machine: such calls never go through a proxy of the environment."""
    return urlsplit(url).hostname in ("127.0.0.1", "localhost", "::1")


def _timeout(timeout_s: float | None) -> httpx.Timeout:
    return httpx.Timeout(timeout_s, connect=CONNECT_TIMEOUT_S)


@contextlib.contextmanager
def _mapped(url: str) -> Iterator[None]:
    """Turn httpx's errors into ours."""
    try:
        yield
    except (httpx.HTTPError, httpx.InvalidURL, httpx.StreamError) as error:
        raise transport_error(error, url) from error


def transport_error(error: Exception, url: str) -> SamovarError:
    """Return our error for one of httpx's, by `TRANSPORT_ERRORS`."""
    kind, text = next((ours, text) for theirs, ours, text in TRANSPORT_ERRORS if isinstance(error, theirs))
    detail = text.format(url=url, error=str(error) or type(error).__name__)
    return kind(detail, phase="connect") if kind is DeadlineExceeded else kind(detail)


def _checked(response: httpx.Response) -> httpx.Response:
    if response.status_code >= 400:
        raise error_of(response.status_code, response.headers, response.content)
    return response


def _pause_s(error: Unavailable, attempt: int) -> float:
    wanted = error.retry_after_s if error.retry_after_s is not None else 0.5 * 2**attempt
    return min(wanted, _LONGEST_PAUSE_S)


def _dump(value: Any) -> bytes:
    return b"" if value is None else msgspec.json.encode(value)


def _answer(response: httpx.Response) -> Answer:
    headers = response.headers
    content = response.content
    is_json = headers.get("content-type", "application/json").startswith("application/json")
    return Answer(
        value=msgspec.json.decode(content) if is_json else content,
        version=headers.get("samovar-version", ""),
        request_id=headers.get("x-request-id", ""),
        phases_ms=phases_of(headers),
        fallback=headers.get("samovar-fallback", ""),
    )


def _lines(response: httpx.Response) -> Iterator[bytes]:
    lines = Lines()
    for data in response.iter_bytes():
        yield from lines.feed(data)
    yield from lines.end()


async def _async_lines(response: httpx.Response) -> AsyncIterator[bytes]:
    lines = Lines()
    async for data in response.aiter_bytes():
        for line in lines.feed(data):
            yield line
    for line in lines.end():
        yield line
