"""What is sent: the body of an event, and the secrets it is signed with. This module does not know HTTP or leases."""

from __future__ import annotations

import asyncio
import time
from typing import Any, Protocol

import msgspec

from samovar.jobs import JobState, JobView
from samovar.values import Struct
from samovar_storage.jobs.records import JobRecord
from samovar_storage.jobs.views import view_of
from samovar_storage.jobs.webhook_secrets import WebhookSecrets
from samovar_storage.jobs.webhooks import Event

MAX_INLINE_BYTES = 4096  # of a result; a larger one is fetched by its link
SECRETS_KEPT_S = 30.0
MAX_SECRETS = 10_000


class Records(Protocol):
    """Where jobs are looked up."""

    async def get_many(self, job_ids: list[str]) -> list[JobRecord | None]:
        """Return these jobs, None for those unknown."""


class Letter(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """The JSON of a delivery. id: the event's, the same at every attempt. type: `job.` and the state it tells of.

    created_at_s: when the job came to that state, unix seconds. job: as `GET /v1/jobs/{id}` shows it, without a large
    result; only id, function and state if it is forgotten by now. result_url: where a large result is, after the
    address of the platform.
    """

    id: str
    type: str
    created_at_s: float
    job: Any
    result_url: str = ""


async def compose(records: Records, event: Event) -> bytes:
    """Return the body of an event: as it was sent before, else from the job as it is now. Raises StoreUnavailable."""
    if event.body:
        return event.body
    (record,) = await records.get_many([event.job])
    return msgspec.json.encode(letter_of(event, record), enc_hook=str)


def letter_of(event: Event, record: JobRecord | None) -> Letter:
    """Return what is told of an event, given the job's record, None if it is forgotten."""
    view = JobView(id=event.job, function=event.function, state=JobState(event.state), key_id=event.key_id)
    is_large = False
    if record is not None:
        view = msgspec.structs.replace(view_of(record), state=JobState(event.state))
        if view.state is not JobState.FINISHED:  # it may have come further since
            view = msgspec.structs.replace(view, result=None, result_bytes=0)
        is_large = view.result_bytes > 0 and (view.result is None or view.result_bytes > MAX_INLINE_BYTES)
        if is_large:
            view = msgspec.structs.replace(view, result=None)
    return Letter(
        id=event.id,
        type=f"job.{event.state}",
        created_at_s=event.at_ms / 1000,
        job=view,
        result_url=f"/v1/jobs/{event.job}/result" if is_large else "",
    )


class Secrets:
    """The secrets in force, kept for half a minute: a replaced one signs along for as long as its overlap says."""

    def __init__(self, store: WebhookSecrets) -> None:
        self._store = store
        self._kept: dict[str, tuple[float, list[str]]] = {}

    async def of(self, key_id: str) -> list[str]:
        """Return the secrets to sign with for an API key, the newest first. Raises StoreUnavailable."""
        until_s, found = self._kept.get(key_id, (0.0, []))
        if time.monotonic() < until_s:
            return found
        found = (await asyncio.to_thread(self._store.get, key_id)).in_force(time.time())
        if len(self._kept) >= MAX_SECRETS:
            self._kept.clear()
        self._kept[key_id] = time.monotonic() + SECRETS_KEPT_S, found
        return found

    def __repr__(self) -> str:
        return "Secrets()"
