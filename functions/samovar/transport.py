"""What both clients do with httpx: headers and time limits going out, answers and errors coming in.

This module does not know which requests there are.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal
from urllib.parse import quote, urlsplit

import httpx
import msgspec

from samovar import __version__
from samovar.connection import Connection
from samovar.errors import (
    ConfigError,
    ConnectError,
    DeadlineExceeded,
    RequestError,
    SamovarError,
    StoreUnavailable,
    Unavailable,
)
from samovar.problems import Lines, error_of, phases_of

CONNECT_TIMEOUT_S = 5.0
# how much longer than the invocation's own deadline the client waits, so that the gateway's 504 arrives
GRACE_S = 5.0
# longest silence of a stream of events; the gateway sends something more often
SILENCE_S = 60.0
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


def event_headers(last_event_id: str) -> dict[str, str]:
    headers = {"Accept": "text/event-stream", "Cache-Control": "no-store"}
    return headers | ({"Last-Event-ID": last_event_id} if last_event_id else {})


def check_stored(response: httpx.Response) -> None:
    if response.status_code >= 300:
        raise StoreUnavailable(f"the object store answered {response.status_code} to the upload")


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


def client_options(connection: Connection, max_connections: int) -> dict[str, Any]:
    headers = {"User-Agent": f"samovar-client/{__version__}"}
    if connection.api_key:
        headers["Authorization"] = f"Bearer {connection.api_key}"
    limits = httpx.Limits(max_connections=max_connections, max_keepalive_connections=max_connections)
    url = connection.url
    return {"base_url": url, "headers": headers, "limits": limits, "trust_env": not is_loopback(url)}


def is_loopback(url: str) -> bool:
    """Return whether `url` is on this machine: such calls never go through a proxy of the environment."""
    return urlsplit(url).hostname in ("127.0.0.1", "localhost", "::1")


def timeout(timeout_s: float | None) -> httpx.Timeout:
    return httpx.Timeout(timeout_s, connect=CONNECT_TIMEOUT_S)


@contextlib.contextmanager
def mapped(url: str) -> Iterator[None]:
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


def checked(response: httpx.Response) -> httpx.Response:
    if response.status_code >= 400:
        raise error_of(response.status_code, response.headers, response.content)
    return response


def unavailable_pause_s(error: Unavailable, attempt: int) -> float:
    wanted = error.retry_after_s if error.retry_after_s is not None else 0.5 * 2**attempt
    return min(wanted, _LONGEST_PAUSE_S)


def dump(value: Any) -> bytes:
    """Return an input as JSON. Raises: RequestError for text that has no form in UTF-8, such as half a pair."""
    try:
        return b"" if value is None else msgspec.json.encode(value)
    except UnicodeEncodeError as error:
        raise RequestError(f"the input has text that UTF-8 cannot carry: {error.reason}") from None


def answer_of(response: httpx.Response) -> Answer:
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


def lines_of(response: httpx.Response) -> Iterator[bytes]:
    lines = Lines()
    for data in response.iter_bytes():
        yield from lines.feed(data)
    yield from lines.end()


async def async_lines_of(response: httpx.Response) -> AsyncIterator[bytes]:
    lines = Lines()
    async for data in response.aiter_bytes():
        for line in lines.feed(data):
            yield line
    for line in lines.end():
        yield line
