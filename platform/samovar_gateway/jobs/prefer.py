"""`Prefer: respond-async` on an invocation: it becomes a job, whose answer is waited for as long as the caller likes.

    Prefer: respond-async            202 and the job
    Prefer: respond-async, wait=10   the invocation's answer, if it is there within 10 s; else 202

Whatever the caller does then, the job goes on. `wait` alone asks for no job and changes nothing.
Source: RFC 7240, sections 4.1 and 4.3. This module does not know how jobs are kept or run.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Iterable
from dataclasses import dataclass

import msgspec
from litestar.types import Send

from samovar.errors import JobEnded, SamovarError
from samovar.jobs import TERMINAL, JobOptions, JobState, JobView
from samovar_dispatch.ask import LOW, Ask
from samovar_gateway import problems
from samovar_gateway.jobs.jobs import MAX_WAIT_S
from samovar_gateway.jobs.submit import POLL_AFTER_S, NewId, accepted_view, ms_of
from samovar_gateway.jobs.views import problem_of, view_now
from samovar_gateway.state import GatewayState
from samovar_storage.jobs.layout import new_job_id
from samovar_storage.jobs.records import JobRecord, NewJob
from samovar_storage.jobs.specs import spec_of

log = logging.getLogger(__name__)

PREFER = b"prefer"
_WAIT = re.compile(r'^wait\s*=\s*"?(\d{1,9})"?\Z', re.ASCII)


@dataclass(frozen=True, slots=True)
class Preference:
    """The caller takes a job for an answer. wait_s: after waiting so long for the answer."""

    wait_s: float = 0.0


def preference_of(headers: Iterable[tuple[bytes, bytes]]) -> Preference | None:
    """Return what a request's `Prefer` headers ask for, None if they ask for no job. What is not known is ignored."""
    values = b",".join(value for name, value in headers if name == PREFER)
    parts = [part.partition(";")[0].strip().lower() for part in values.decode("latin-1").split(",")]
    if "respond-async" not in parts:
        return None
    waits = [float(found[1]) for part in parts if (found := _WAIT.match(part))]
    return Preference(min(waits[0], MAX_WAIT_S) if waits else 0.0)


class Deferral:
    """Answers invocations whose caller takes a job for an answer."""

    def __init__(self, state: GatewayState) -> None:
        self._state = state

    async def answer(self, ask: Ask, body: bytes, wanted: Preference, send: Send, new_id: NewId = new_job_id) -> None:
        """Submit the invocation as a job and answer with what became of it in time. new_id: as of `submit`.

        Raises: what a submission raises; JobEnded when it was cancelled meanwhile.
        """
        state = self._state
        if ask.rate is not None:
            state.journey.rates.take(ask.key_id, ask.rate, ask.entry.record.name, None)
        job = job_of(ask, body, time.time(), new_id)
        await state.jobs.submit([job])
        record = await self._wait(job.id, wanted.wait_s) if wanted.wait_s else None
        if record is None or record.state not in TERMINAL:
            view = accepted_view(job) if record is None else await self._view(job, record)
            await _respond(ask, 202, b"application/json", msgspec.json.encode(view), _where(job), send)
        elif record.state is JobState.CANCELED:
            raise JobEnded("the job was cancelled", job=job.id, state=str(record.state))
        else:
            await self._outcome(ask, record, wanted, send)

    async def _wait(self, job_id: str, wait_s: float) -> JobRecord | None:
        """Return the job's record when it ended or the time was over; None if nobody can tell: it was accepted."""
        try:
            return await self._state.watches.wait_ended(job_id, wait_s)
        except SamovarError as error:
            log.info("the answer of job %s is not waited for: %s", job_id, error.detail)
            return None

    async def _view(self, job: NewJob, record: JobRecord) -> JobView:
        try:
            return await view_now(self._state, record)
        except SamovarError:
            return accepted_view(job)

    async def _outcome(self, ask: Ask, record: JobRecord, wanted: Preference, send: Send) -> None:
        """Answer as the invocation would have. Raises: StoreUnavailable when the result cannot be read."""
        headers = [(b"preference-applied", b"wait=%d" % wanted.wait_s)]
        if record.version:
            headers.append((b"samovar-version", b"%d" % record.version))
        if record.state is JobState.FAILED:
            status, content = problem_of(record, ask.request_id.decode("latin-1"))
            await _respond(ask, status, problems.PROBLEM_JSON[1], content, headers, send)
        else:
            content = await self._state.jobs.result(record)
            await _respond(ask, 200, record.result_type.encode("latin-1"), content, headers, send)


def job_of(ask: Ask, body: bytes, now_s: float, new_id: NewId = new_job_id) -> NewJob:
    """Return the job that an invocation becomes; a deadline that its caller set is the job's. now_s: unix seconds."""
    manifest = ask.entry.main.manifest
    has_deadline = b"samovar-timeout-ms" in ask.header
    options = JobOptions(deadline_s=max(1e-3, ask.deadline_s - time.monotonic()) if has_deadline else None)
    spec = spec_of(options, manifest.jobs, manifest.name, ask.key_id, now_s, low_only=ask.priority >= LOW)
    spec = msgspec.structs.replace(spec, content_type=ask.content_type)
    return NewJob(id=new_id(ms_of(spec)), spec=spec, input=body)


def _where(job: NewJob) -> problems.Headers:
    return [
        (b"location", b"/v1/jobs/" + job.id.encode()),
        (b"retry-after", POLL_AFTER_S.encode()),
        (b"preference-applied", b"respond-async"),
    ]


async def _respond(ask: Ask, status: int, kind: bytes, body: bytes, more: problems.Headers, send: Send) -> None:
    headers = [
        (b"content-type", kind),
        (b"content-length", b"%d" % len(body)),
        (b"x-request-id", ask.request_id),
        *more,
    ]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})
