"""Calling deployed functions from Python: `Client`, on httpx.

    with samovar.Client() as client:
        answer = client.function("embed").invoke({"text": "tea is ready"}, timeout_s=5)
        for item in client.function("countdown").stream({"text": "one two"}): ...
        job = client.function("embed").submit({"text": "tea is ready"}, retries=3)

It keeps its connections open and raises the errors of `samovar.errors`. Calls are retried only if asked for; what does
no harm twice (looking at jobs, submitting them under an idempotency key) is repeated until the gateway answers.
`async_client` is its twin for asyncio. This module does not know deployment, the command line, or what is done with
jobs (`job_client`).
"""

from __future__ import annotations

import contextlib
import itertools
import random
import time
from collections.abc import Generator, Iterable, Iterator, Mapping
from types import TracebackType
from typing import Any, Unpack
from urllib.parse import urlsplit

import httpx
import httpx_sse

from samovar import job_client, job_requests, patience
from samovar.connection import find_connection
from samovar.errors import SamovarError, Unavailable
from samovar.event_client import read_events
from samovar.events import Course, Event, Output
from samovar.jobs import JobEvent
from samovar.problems import stream_item
from samovar.transport import (
    DEFAULT_TIMEOUT_S,
    SILENCE_S,
    Answer,
    Priority,
    answer_of,
    check_stored,
    checked,
    client_options,
    dump,
    event_headers,
    invoke_path,
    is_loopback,
    lines_of,
    mapped,
    terms,
    timeout,
    unavailable_pause_s,
)


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
        self._http = httpx.Client(**client_options(self.connection, max_connections))

    def function(self, name: str) -> Function:
        """Return a handle on the function called `name`; whether it exists shows at the first call."""
        return Function(self, name)

    def job(self, job_id: str) -> job_client.Job:
        """Return a handle on the job with this id; whether it exists shows at the first look."""
        return job_client.Job(self, job_id)

    def jobs(self, *, function: str = "", state: str = "", group: str = "") -> Iterator[job_client.Job]:
        """Yield the jobs this key may see, newest first, each with its `view`; "" is no condition.

        Args: state: of `samovar.jobs.JobState`, or "quarantined".
        """
        return job_client.list_jobs(self, function=function, state=state, group=group)

    def group(self, group_id: str) -> job_client.JobGroup:
        """Return a handle on jobs that were submitted together."""
        return job_client.JobGroup(self, group_id)

    @property
    def crons(self) -> job_client.Crons:
        """The cron jobs this key may see."""
        return job_client.Crons(self)

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
                time.sleep(unavailable_pause_s(error, attempt))
        return self._once(method, path, body, timeout_s, headers)

    def persist(
        self,
        method: str,
        path: str,
        body: bytes | None = None,
        *,
        timeout_s: float = 30.0,
        headers: Mapping[str, str] | None = None,
        patience_s: float = patience.PATIENCE_S,
    ) -> httpx.Response:
        """Send a request that does no harm twice until it is answered, through restarts of the gateway; links are
        followed, without the key.

        Args: patience_s: how long it is repeated when nobody answers or the platform says "later", >= 0.
        Raises: as `request` does.
        """
        until_s = time.monotonic() + patience_s
        for attempt in itertools.count():
            try:
                return self._once(method, path, body, timeout_s, headers, follow=True)
            except SamovarError as error:
                if not self.pause(error, attempt, until_s - time.monotonic()):
                    raise
        raise AssertionError("counting ends")

    def pause(self, error: SamovarError, attempt: int, left_s: float = patience.PATIENCE_S) -> bool:
        """Sleep for as long as `error` asks for and return True; False if the request is not worth another try."""
        pause_s = patience.pause_s(error, attempt, left_s, random.random())  # noqa: S311 (jitter)
        if pause_s is not None:
            time.sleep(pause_s)
        return pause_s is not None

    def _once(
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
            response = self._http.send(sent, follow_redirects=follow)
        return checked(response)

    def send_object(self, url: str, content: bytes) -> None:
        """Put `content` where a signed link leads, without the key. Raises: StoreUnavailable; ConnectError."""
        with httpx.Client(timeout=timeout(DEFAULT_TIMEOUT_S), trust_env=not is_loopback(url)) as store:
            with mapped(urlsplit(url).netloc):  # the link itself is a credential
                response = store.put(url, content=content)
        check_stored(response)

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
        with self.opened(method, path, body, timeout_s, headers) as response:
            yield response, lines_of(response)

    def events(self, path: str, last_event_id: str = "", silence_s: float = SILENCE_S) -> Iterator[JobEvent]:
        """Yield the server-sent events of `path` after this one, until the stream ends. Raises: as `lines` does."""
        with self.opened("GET", path, None, silence_s, event_headers(last_event_id)) as response:
            if response.status_code == httpx.codes.NO_CONTENT:
                return
            for event in httpx_sse.EventSource(response).iter_sse():
                if event.data:
                    yield job_requests.event_of(event.id, event.event, event.data)

    @contextlib.contextmanager
    def opened(
        self, method: str, path: str, body: bytes | None, timeout_s: float | None, headers: Mapping[str, str] | None
    ) -> Iterator[httpx.Response]:
        """Open a streamed answer, to be read by its bytes; as `lines`."""
        with (
            mapped(self.connection.url),
            self._http.stream(method, path, content=body, headers=headers, timeout=timeout(timeout_s)) as response,
        ):
            if response.status_code >= 400:
                response.read()
            yield checked(response)

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
        return answer_of(
            self._client.request("POST", invoke_path(self.name), dump(value), **terms(timeout_s, priority))
        )

    def stream(
        self,
        value: Any = None,
        *,
        timeout_s: float | None = None,
        priority: Priority | None = None,
        resume_s: float | None = None,
    ) -> Iterator[Any]:
        """Yield the items of a function that streams, as they arrive. Raises as `invoke` does, also between items.

        Args: resume_s: as for `events`.
        """
        if resume_s is not None:
            with contextlib.closing(
                self.events(value, timeout_s=timeout_s, priority=priority, resume_s=resume_s)
            ) as events:
                yield from (event.value for event in events if isinstance(event, Output))
            return
        path = invoke_path(self.name)
        with self._client.lines("POST", path, dump(value), **terms(timeout_s, priority)) as (_, lines):
            for line in lines:
                yield stream_item(line)

    def events(
        self,
        value: Any = None,
        *,
        timeout_s: float | None = None,
        priority: Priority | None = None,
        resume_s: float | None = None,
    ) -> Generator[Event, None, None]:
        """Yield everything a call tells, as it comes, of any function: see `samovar.events`. To stop reading ends it.

        Args: resume_s: a lost connection is made up for within so many seconds (1 to 60), without a gap or a
            repetition, also by another gateway; None = it ends the call.
        Raises: as `invoke` does, also between events; ConnectError if the connection is lost for good; StreamGone.
        """
        course = Course(terms(timeout_s, priority)["headers"], resume_s)
        return read_events(self._client, invoke_path(self.name), dump(value), course)

    def submit(
        self, value: Any = None, *, idempotency_key: str | None = None, **options: Unpack[job_requests.Terms]
    ) -> job_client.Job:
        """Queue a job for `value` and return it once it is safe; a platform that is away for less than a minute is
        waited for, and makes one job all the same.

        Args:
            idempotency_key: the same key with the same job makes one job, for 24 h; default: one of its own.
            options: see `samovar.jobs.JobOptions`; what is not given is as the function says.
        Raises: the error of `samovar.errors` that describes what went wrong.
        """
        return job_client.submit(self._client, self.name, value, idempotency_key, **options)

    def submit_many(
        self,
        inputs: Iterable[Any],
        *,
        reduce: str | Mapping[str, Any] | bool | None = None,
        idempotency_key: str | None = None,
        **options: Unpack[job_requests.Terms],
    ) -> job_client.JobGroup:
        """Queue a job for each of `inputs`, all of them or none, and return them as a group.

        Args: reduce: the function called with all results as `{"results": […]}`; True: this one. Else as `submit`.
        """
        lines, wanted = job_requests.encoded(inputs), job_requests.reduce_of(reduce)
        return job_client.submit_lines(
            self._client, self.name, lines, options, reduce=wanted, idempotency_key=idempotency_key
        )
