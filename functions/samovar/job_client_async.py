"""`job_client` for asyncio: the same handles with `await` and `async for`; see there for what they promise."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Unpack

import msgspec

from samovar import job_requests as requests
from samovar.errors import SamovarError
from samovar.job_client import (
    FIRST_LOOK_S,
    GRACE_S,
    LONGEST_LOOK_S,
    PAGE,
    RESULT_TIMEOUT_S,
    SUBMIT_TIMEOUT_S,
    decoded,
    idempotency,
)
from samovar.jobs import CronJob, GroupView, JobEvent, JobView
from samovar.patience import PATIENCE_S
from samovar.transport import SILENCE_S

if TYPE_CHECKING:
    import httpx

    from samovar.async_client import AsyncClient


class AsyncJob:
    """A handle on one job. view: as it was last seen, None before the first look."""

    def __init__(self, client: AsyncClient, job_id: str, view: JobView | None = None) -> None:
        self._client = client
        self.id = job_id
        self.view = view

    def __repr__(self) -> str:
        return f"AsyncJob({self.id!r}{f', {self.view.state}' if self.view else ''})"

    async def status(self) -> JobView:
        """Return the job as it is now. Raises: JobNotFound; ConnectError once the gateway is away for a minute."""
        return await self._look(0.0, PATIENCE_S)

    async def wait(self, timeout_s: float | None = None) -> JobView:
        """Return the job once it has ended, however it did.

        Args: timeout_s: how long to wait, >= 0; None = as long as it takes.
        Raises: JobNotDone (also a TimeoutError) with its state and what it waits for; else as `status`.
        """
        until_s = None if timeout_s is None else time.monotonic() + timeout_s
        while self.view is None or not requests.is_done(self.view):
            left_s = requests.LONGEST_POLL_S if until_s is None else max(0.0, until_s - time.monotonic())
            patience_s = PATIENCE_S if until_s is None else min(PATIENCE_S, left_s)
            view = await self._look(min(left_s, requests.LONGEST_POLL_S), patience_s)
            if timeout_s is not None and left_s == 0 and not requests.is_done(view):
                raise requests.not_done(view, timeout_s)
            if not requests.is_done(view):
                await asyncio.sleep(min(FIRST_LOOK_S, left_s))  # a gateway that leaves answers at once
        return self.view

    async def result(self, timeout_s: float | None = None) -> Any:
        """Return what the function answered; waits for it.

        Raises: the job's own error, as a call would have; JobEnded if it was cancelled; JobNotDone.
        """
        view = await self.wait(timeout_s)
        if failure := requests.failure_of(view):
            raise failure
        if not requests.is_stored(view):
            return view.result
        path = requests.job_path(self.id, "/result")
        return decoded(await self._client.persist("GET", path, timeout_s=RESULT_TIMEOUT_S))

    async def cancel(self) -> JobView:
        """Cancel the job, or ask its worker to stop it, and return it. Raises: JobEnded."""
        response = await self._client.persist("POST", requests.job_path(self.id, "/cancel"), b"")
        return self._seen(msgspec.json.decode(response.content, type=JobView))

    async def retry(self) -> AsyncJob:
        """Submit the same input again and return the new job. Raises: Conflict unless it has ended."""
        response = await self._client.request("POST", requests.job_path(self.id, "/retry"), b"")
        return job_of(self._client, response)

    async def events(self, last_event_id: str = "", *, silence_s: float | None = None) -> AsyncIterator[JobEvent]:
        """Yield what happened to the job and what happens, until it ends; goes on when the connection breaks.

        Args:
            last_event_id: only what came after it.
            silence_s: end as well when nothing happens for so long, > 0; None = only with the job.
        """
        path, failures = requests.job_path(self.id, "/events"), 0
        while True:
            try:
                async for event in self._client.events(path, last_event_id, silence_s or SILENCE_S):
                    last_event_id, failures = event.id, 0
                    yield event
                    if event.kind in requests.ENDS:
                        return
                if failures and requests.is_done(await self.status()):
                    return  # nothing came, and the end was seen before
            except SamovarError as error:
                if silence_s is not None and requests.is_silence(error):
                    return
                if not await self._client.pause(error, failures):
                    raise
            failures += 1
            await asyncio.sleep(FIRST_LOOK_S)

    async def logs(self) -> AsyncIterator[dict[str, Any]]:
        """Yield the lines that the function wrote with `ctx.log`, until the job ends."""
        async for event in self.events():
            if event.kind == "log":
                yield event.data

    async def _look(self, wait_s: float, patience_s: float) -> JobView:
        path = requests.job_path(self.id, wait_s=f"{wait_s:.3f}" if wait_s else None)
        response = await self._client.persist("GET", path, timeout_s=wait_s + GRACE_S, patience_s=patience_s)
        return self._seen(msgspec.json.decode(response.content, type=JobView))

    def _seen(self, view: JobView) -> JobView:
        self.view = view
        return view


class AsyncJobGroup:
    """A handle on jobs that were submitted together. jobs: in the inputs' order; empty for those of an upload.

    reduced: the job that is given all results, if one was asked for.
    """

    def __init__(self, client: AsyncClient, group_id: str, job_ids: Sequence[str] = (), reduce: str = "") -> None:
        self._client = client
        self.id = group_id
        self.jobs = [AsyncJob(client, job_id) for job_id in job_ids]
        self.reduced = AsyncJob(client, reduce) if reduce else None

    def __repr__(self) -> str:
        return f"AsyncJobGroup({self.id!r})"

    async def status(self) -> GroupView:
        """Return how many of its jobs are in which state."""
        response = await self._client.persist("GET", requests.group_path(self.id))
        return msgspec.json.decode(response.content, type=GroupView)

    async def wait(self, timeout_s: float | None = None) -> GroupView:
        """Return once every job has ended, however it did. Raises: JobNotDone."""
        async for view in self._looks(timeout_s):
            if requests.num_done(view) >= view.num_jobs:
                break
        return view

    async def results(self, timeout_s: float | None = None, *, return_errors: bool = False) -> list[Any]:
        """Return what the function answered to each input, in their order; waits for all.

        Args: return_errors: put an error in the place of a result that there is none of, instead of raising the first.
        """
        await self.wait(timeout_s)
        found = [job async for job in self._ended(set())]
        found.sort(key=lambda job: job.view.index if job.view else 0)
        return [await _result(job, return_errors) for job in found]

    async def __aiter__(self) -> AsyncIterator[AsyncJob]:
        """Yield each job once it has ended, in the order in which they end."""
        seen: set[str] = set()
        async for view in self._looks(None):
            if requests.num_done(view) > len(seen):
                async for job in self._ended(seen):
                    seen.add(job.id)
                    yield job
            if requests.num_done(view) >= view.num_jobs:
                return

    async def cancel(self) -> GroupView:
        """Cancel every job that has not ended."""
        response = await self._client.persist("POST", requests.group_path(self.id, "/cancel"), b"")
        return msgspec.json.decode(response.content, type=GroupView)

    async def _looks(self, timeout_s: float | None) -> AsyncIterator[GroupView]:
        """Yield the group again and again, ever more seldom. Raises JobNotDone when the time is over."""
        until_s = None if timeout_s is None else time.monotonic() + timeout_s
        pause_s = FIRST_LOOK_S
        while True:
            yield (view := await self.status())
            left_s = pause_s if until_s is None else until_s - time.monotonic()
            if left_s <= 0:
                raise requests.group_not_done(view, timeout_s or 0.0)
            await asyncio.sleep(min(pause_s, left_s))
            pause_s = min(LONGEST_LOOK_S, pause_s * 1.3)

    async def _ended(self, seen: set[str]) -> AsyncIterator[AsyncJob]:
        for state in requests.ENDS:
            async for job in list_jobs(self._client, group=self.id, state=state):
                if job.id not in seen:
                    yield job


@dataclass(frozen=True, slots=True)
class AsyncCrons:
    """The cron jobs a client may see."""

    client: AsyncClient

    async def list(self) -> list[CronJob]:
        """Return them all."""
        return msgspec.json.decode((await self.client.persist("GET", "/v1/crons")).content, type=list[CronJob])

    async def get(self, name: str) -> CronJob:
        """Return the one called `name`. Raises: NotFound."""
        return msgspec.json.decode((await self.client.persist("GET", requests.cron_path(name))).content, type=CronJob)

    async def put(self, cron: CronJob) -> CronJob:
        """Make this cron job, or change the one of its name, and return it with its next run."""
        path, body = requests.cron_path(cron.name), msgspec.json.encode(requests.cron_body(cron))
        return msgspec.json.decode((await self.client.persist("PUT", path, body)).content, type=CronJob)

    async def delete(self, name: str) -> None:
        """Remove it; jobs it has submitted stay. Raises: NotFound."""
        await self.client.persist("DELETE", requests.cron_path(name))

    async def run(self, name: str) -> AsyncJob:
        """Submit its job now, beside the schedule."""
        response = await self.client.request("POST", requests.cron_path(name, "/run"), b"")
        return job_of(self.client, response)

    async def enable(self, name: str, enabled: bool = True) -> CronJob:
        """Let it run, or pause it (False), and return it."""
        return await self.put(msgspec.structs.replace(await self.get(name), enabled=enabled))


async def submit(
    client: AsyncClient, function: str, value: Any, idempotency_key: str | None, **terms: Unpack[requests.Terms]
) -> AsyncJob:
    """Submit one job; see `Function.submit`."""
    body = requests.submit_body(value, terms)
    path, headers = requests.jobs_path(function), idempotency(idempotency_key)
    return job_of(client, await client.persist("POST", path, body, headers=headers))


async def submit_lines(
    client: AsyncClient,
    function: str,
    lines: Sequence[bytes],
    terms: Mapping[str, Any],
    *,
    reduce: Mapping[str, Any] | None = None,
    idempotency_key: str | None = None,
) -> AsyncJobGroup:
    """Submit a job for each of `lines` (JSON), by an upload if they are too many or too long for one request."""
    if requests.needs_upload(lines):
        upload = await upload_lines(client, function, lines)
        body = requests.upload_body(upload, terms, reduce)
    else:
        body = requests.many_body(lines, terms, reduce)
    return await submit_body(client, function, body, idempotency_key)


async def submit_body(client: AsyncClient, function: str, body: bytes, idempotency_key: str | None) -> AsyncJobGroup:
    """Submit what a body with many inputs, or an upload, describes."""
    path, headers = requests.jobs_path(function), idempotency(idempotency_key)
    response = await client.persist("POST", path, body, timeout_s=SUBMIT_TIMEOUT_S, headers=headers)
    return group_of(client, response)


async def upload_lines(client: AsyncClient, function: str, lines: Sequence[bytes]) -> str:
    """Put `lines` into object storage and return the name of the upload; no job is made of it yet."""
    content = b"\n".join(lines) + b"\n"
    path, size = f"{requests.jobs_path(function)}/uploads", msgspec.json.encode({"size_bytes": len(content)})
    response = await client.persist("POST", path, size)
    plan = msgspec.json.decode(response.content)
    await client.send_object(plan["url"], content)
    return str(plan["upload"])


async def list_jobs(client: AsyncClient, **query: Any) -> AsyncIterator[AsyncJob]:
    """Yield the jobs that fit, newest first, page by page."""
    cursor: str | None = ""
    while True:
        response = await client.persist("GET", requests.list_path(**query, cursor=cursor, limit=PAGE))
        page = msgspec.json.decode(response.content, type=requests.JobPage)
        for view in page.jobs:
            yield AsyncJob(client, view.id, view)
        if not (cursor := page.cursor):
            return


def job_of(client: AsyncClient, response: httpx.Response) -> AsyncJob:
    """Return the job that an answer describes."""
    view = msgspec.json.decode(response.content, type=JobView)
    return AsyncJob(client, view.id, view)


def group_of(client: AsyncClient, response: httpx.Response) -> AsyncJobGroup:
    """Return the group that an answer describes."""
    made = msgspec.json.decode(response.content, type=requests.Submitted)
    return AsyncJobGroup(client, made.group, made.jobs, made.reduce)


async def _result(job: AsyncJob, return_errors: bool) -> Any:
    try:
        return await job.result()
    except SamovarError as error:
        if not return_errors:
            raise
        return error
