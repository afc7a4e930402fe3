"""`GET /v1/jobs/{id}/events`: what happens to a job, as server-sent events, from where the client left off.

    watch ─► look: record, then stream ─► send what comes after the client's last id ─► wait for news ─► look again
                                              └── the terminal event: the end

Nothing waits in memory: a client that reads slowly looks less often. Heartbeats keep proxies from cutting a silent
stream; a client that left is noticed by the server, or by a write that does not get through. A gateway that leaves
ends its streams cleanly, and the client goes on elsewhere with `Last-Event-ID`.
This module does not know how jobs are run.
"""

from __future__ import annotations

import asyncio
import logging
import time
from http import HTTPStatus

import msgspec
from litestar import Response, get
from litestar.types import ASGIApp, Receive, Scope, Send

from samovar.errors import JobNotFound, SamovarError, StoreUnavailable
from samovar.jobs import TERMINAL, JobEvent, JobState
from samovar_gateway.admin.requests import AnyRequest, gateway
from samovar_gateway.jobs.access import visible_job
from samovar_gateway.jobs.prospects import Prospect
from samovar_gateway.jobs.watch import Watch
from samovar_gateway.state import GatewayState
from samovar_storage import keys
from samovar_storage.ending import end_tasks
from samovar_storage.jobs.events import read_events
from samovar_storage.jobs.records import JobRecord
from samovar_storage.jobs.story import (
    ACCEPTED,
    EventId,
    end_id,
    history,
    next_number,
    parse_id,
    waiting_event,
)

log = logging.getLogger(__name__)

HEARTBEAT_S = 15.0
REFRESH_S = 3.0  # how often a job that waits is asked what for
SEND_TIMEOUT_S = 60.0
RETRY_MS = 1000  # when an EventSource whose connection was lost comes again
LOOK_EVERY_S, LOOKS_IN_A_ROW = 0.05, 10
MAX_READ = 100  # events of at most 16 KiB at a time
HEADERS = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-store"),
    (b"x-accel-buffering", b"no"),
]
OPENING = b"retry: %d\n\n" % RETRY_MS
HEARTBEAT = b": nothing new\n\n"
LEAVING = b": this gateway is leaving, ask again\n\n"


@get("/v1/jobs/{job_id:str}/events")
async def job_events(request: AnyRequest) -> ASGIApp:
    """Return what happened to a job after `Last-Event-ID` (or `?last_event_id=`), and go on until it has ended.

    A client that has seen the end gets 204, which keeps an EventSource from coming again.
    """
    _, record = await visible_job(request)
    after = parse_id(request.headers.get("last-event-id") or request.query_params.get("last_event_id") or "")
    if record.state in TERMINAL and after >= end_id(record):
        return Response(None, status_code=HTTPStatus.NO_CONTENT).to_asgi_response(None, request)
    return EventStream(gateway(request), record.id, after)


class EventStream:
    """One client's stream of one job, as an ASGI response. after: the last event that the client has seen."""

    def __init__(self, state: GatewayState, job_id: str, after: EventId, heartbeat_s: float = HEARTBEAT_S) -> None:
        self._state = state
        self._job_id = job_id
        self._after = after
        self._heartbeat_s = heartbeat_s
        self._prospect: Prospect | None = None
        self._sent_s = self._due_s = 0.0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send events until the job has ended, the client left or the gateway leaves. Raises: Unavailable."""
        with self._state.watches.watching(keys.job_channel(self._job_id)) as watch:
            await send({"type": "http.response.start", "status": HTTPStatus.OK, "headers": HEADERS})
            telling = asyncio.create_task(self._tell(watch, send))
            leaving = asyncio.create_task(_left(receive))
            try:
                await asyncio.wait({telling, leaving}, return_when=asyncio.FIRST_COMPLETED)
            finally:
                await end_tasks([telling, leaving])
        if not telling.cancelled() and (error := telling.exception()) is not None:
            log.log(_level(error), "events of job %s ended: %s", self._job_id, error)
            return  # leaving the response open makes the server close the connection
        await send({"type": "http.response.body", "body": b"", "more_body": False})

    async def _tell(self, watch: Watch, send: Send) -> None:
        """Send all there is, and what comes, until the job has ended or is forgotten."""
        await self._send(send, OPENING)
        while not self._state.watches.is_leaving:
            await self._pause()
            try:
                state = await self._look(watch, send)
            except JobNotFound:
                return
            if state in TERMINAL:
                return
            until_s = self._sent_s + self._heartbeat_s
            patience_s = REFRESH_S if state is not JobState.STARTED else self._heartbeat_s
            await watch.changed(min(patience_s, until_s - time.monotonic()))
            if time.monotonic() >= until_s:
                await self._send(send, HEARTBEAT)
        await self._send(send, LEAVING)

    async def _look(self, watch: Watch, send: Send) -> JobState | None:
        """Send what is new; return the job's state as far as it is told, None if it cannot be read now.

        Raises: JobNotFound.
        """
        try:
            async with self._state.watches.looking():
                record = await self._state.jobs.get(self._job_id)
                said = await self._said(record)
                events = history(record, said, self._after)
                if len(said) >= MAX_READ:  # what comes behind them must not overtake the rest
                    events = [event for event in events if parse_id(event.id) <= parse_id(said[-1].id)]
                    watch.wake()
                elif record.state not in TERMINAL:
                    events = await self._with_prospect(record, events)
        except StoreUnavailable:
            return None  # the watch is woken when it is back
        if events:
            await self._send(send, b"".join(map(encoded, events)))
            self._after = parse_id(events[-1].id)
        return record.state if len(said) < MAX_READ else JobState.STARTED

    async def _said(self, record: JobRecord) -> list[JobEvent]:
        """Return the next events of the job's stream; one that never ran has none."""
        if not record.token:
            return []
        return await read_events(self._state.redis, self._job_id, self._after, MAX_READ)

    async def _with_prospect(self, record: JobRecord, events: list[JobEvent]) -> list[JobEvent]:
        """Return the events, with what the job waits for if that has changed since the client was told."""
        if record.state is JobState.STARTED:
            self._prospect = None
            return events
        prospect = await self._state.prospects.of(record)
        if self._prospect is not None and prospect.is_like(self._prospect):
            return events
        self._prospect = prospect
        if events and events[-1].id == str(ACCEPTED):
            return [*events[:-1], msgspec.structs.replace(events[-1], data=prospect.data())]
        number = next_number(self._after) if self._after.token == record.token else 0
        return [*events, waiting_event(record, number, prospect.data(), time.time())]

    async def _send(self, send: Send, data: bytes) -> None:
        """Raises TimeoutError when the client does not read."""
        async with asyncio.timeout(SEND_TIMEOUT_S):
            await send({"type": "http.response.body", "body": data, "more_body": True})
        self._sent_s = time.monotonic()

    async def _pause(self) -> None:
        """Look a few times in a row as news comes, then every LOOK_EVERY_S."""
        now_s = time.monotonic()
        self._due_s = max(self._due_s, now_s) + LOOK_EVERY_S
        await asyncio.sleep(max(0.0, self._due_s - now_s - LOOKS_IN_A_ROW * LOOK_EVERY_S))


def encoded(event: JobEvent) -> bytes:
    """Return a server-sent event: its data is one line of JSON, `at_s` beside what the event says."""
    data = msgspec.json.encode({"at_s": event.at_s, **event.data})
    return b"id: %s\nevent: %s\ndata: %s\n\n" % (event.id.encode(), event.kind.encode(), data)


async def _left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _level(error: BaseException) -> int:
    return logging.INFO if isinstance(error, SamovarError | TimeoutError) else logging.ERROR
