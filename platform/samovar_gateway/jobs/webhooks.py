"""Routes under `/v1/webhooks`: what was not delivered, endpoints that fail, the secret, once more.

A key sees its own events and secret, whatever its scopes; an admin may name another one by `?key_id=`.
This module does not know how events are delivered.
"""

from __future__ import annotations

import asyncio

from litestar import Controller, get, post

from samovar.errors import Conflict, InvalidInput, JobNotFound
from samovar.values import Struct
from samovar_gateway.admin.requests import AnyRequest, gateway, read_body
from samovar_gateway.jobs.access import caller, may_see, no_job
from samovar_storage.jobs.specs import WEBHOOK_EVENTS, is_job_id
from samovar_storage.jobs.webhook_secrets import WebhookSecret, WebhookSecrets
from samovar_storage.jobs.webhooks import Endpoint, Event, Webhooks

MAX_EVENTS = 1000


class EventView(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An event that was not delivered. attempts: that failed. gave_up_at_s: 0 = it is tried again. Unix seconds."""

    id: str
    job: str
    function: str
    url: str
    created_at_s: float
    attempts: int = 0
    last_error: str = ""
    gave_up_at_s: float = 0.0


class EndpointView(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An endpoint that fails. disabled_at_s: since when it gets nothing, 0 = it still does. Unix seconds."""

    url: str
    failures: int
    failing_since_s: float
    last_error: str
    disabled_at_s: float = 0.0


class WebhooksView(Struct, frozen=True, kw_only=True):
    """events: the newest 1,000 that were not delivered, newest first. dropped: those not noted, too many being open."""

    events: list[EventView]
    endpoints: list[EndpointView]
    dropped: int = 0


class SecretView(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """secret: `whsec_…`. previous_until_s: until when deliveries carry the signature of the one before, too."""

    secret: str
    created_at_s: float
    previous_until_s: float = 0.0


class ReplayBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One of the two: an event's id, or a job, whose events are all told once more."""

    event: str = ""
    job: str = ""


class EnableBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """url: of the endpoint, its query does not matter."""

    url: str


class OverlapBody(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """overlap_s: how long the old secret signs, too, 0 to 30 days, in seconds."""

    overlap_s: float = 86_400.0


class Replayed(Struct, frozen=True, kw_only=True):
    """replayed: how many events are sent now."""

    replayed: int


class WebhookRoutes(Controller):
    """Webhooks of the key that asks."""

    path = "/v1/webhooks"

    @get()
    async def list_webhooks(self, request: AnyRequest) -> WebhooksView:
        """Return the events that were not delivered, and the endpoints that fail or are disabled."""
        key_id, events = _key_of(request), Webhooks(gateway(request).redis)
        return WebhooksView(
            events=[_event(event) for event in await events.open(key_id, MAX_EVENTS)],
            endpoints=[_endpoint(endpoint) for endpoint in await events.endpoints(key_id)],
            dropped=await events.num_dropped(key_id),
        )

    @post("/replay", status_code=200)
    async def replay_webhooks(self, request: AnyRequest) -> Replayed:
        """Tell an event, or all of a job, now and once more, also if it was delivered."""
        principal, state = caller(request), gateway(request)
        job_id, states = _wanted(await read_body(request, ReplayBody))
        record = await state.jobs.get(job_id)
        if not may_see(principal, record.spec.function, record.spec.key_id):
            raise no_job(job_id)
        events = Webhooks(state.redis)
        replayed = sum([await events.replay(job_id, each) for each in states])
        if not replayed:
            raise Conflict("nothing to tell: the job has no webhook for its state, or its endpoint is disabled")
        return Replayed(replayed=replayed)

    @post("/enable", status_code=200)
    async def enable_webhook(self, request: AnyRequest) -> Replayed:
        """Tell a disabled endpoint again, beginning with what is kept for it."""
        body = await read_body(request, EnableBody)
        try:
            return Replayed(replayed=await Webhooks(gateway(request).redis).enable(_key_of(request), body.url))
        except ValueError as error:
            raise InvalidInput(f"that is no URL: {error}", path="$.url") from error

    @get("/secret")
    async def get_webhook_secret(self, request: AnyRequest) -> SecretView:
        """Return the secret that the key's webhooks are signed with; it is made if there is none."""
        secrets = WebhookSecrets(gateway(request).objects)
        return _secret(await asyncio.to_thread(secrets.get, caller(request).key_id))

    @post("/secret/rotate", status_code=200)
    async def rotate_webhook_secret(self, request: AnyRequest) -> SecretView:
        """Replace the secret; for the overlap, deliveries carry both signatures."""
        key_id = caller(request).key_id
        body = await read_body(request, OverlapBody) if await request.body() else OverlapBody()
        secrets = WebhookSecrets(gateway(request).objects)
        return _secret(await asyncio.to_thread(secrets.rotate, key_id, body.overlap_s))


def _key_of(request: AnyRequest) -> str:
    """Return the key whose webhooks are meant: the caller's, or for an admin the one it names."""
    principal = caller(request)
    named = request.query_params.get("key_id", "")
    return named if named and "admin" in principal.scopes else principal.key_id


def _wanted(body: ReplayBody) -> tuple[str, list[str]]:
    """Return the job and the states that are to be told. Raises: InvalidInput; JobNotFound."""
    if bool(body.event) == bool(body.job):
        raise InvalidInput("give one of event and job", path="$")
    job_id, _, state = body.event.partition(".")
    if body.event and state not in WEBHOOK_EVENTS:
        raise InvalidInput("an event's id is a job's and a state: <job>.finished", path="$.event")
    if not is_job_id(job_id or body.job):
        raise JobNotFound(f"there is no job {(job_id or body.job)[:100]!r}")
    return job_id or body.job, [state] if state else [*WEBHOOK_EVENTS]


def _event(event: Event) -> EventView:
    return EventView(
        id=event.id,
        job=event.job,
        function=event.function,
        url=event.url,
        created_at_s=event.at_ms / 1000,
        attempts=event.attempts,
        last_error=event.last_error,
        gave_up_at_s=event.dead_ms / 1000,
    )


def _endpoint(endpoint: Endpoint) -> EndpointView:
    return EndpointView(
        url=endpoint.url,
        failures=endpoint.failures,
        failing_since_s=endpoint.failing_ms / 1000,
        last_error=endpoint.last_error,
        disabled_at_s=endpoint.disabled_ms / 1000,
    )


def _secret(secret: WebhookSecret) -> SecretView:
    return SecretView(**{name: getattr(secret, name) for name in SecretView.__struct_fields__})
