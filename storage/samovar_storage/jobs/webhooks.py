"""The events that webhooks are told of: noted by the moves of jobs (`hooks.py`), leased to one deliverer at a time.

    noted ──► waiting ──► leased ──► delivered: gone           a deliverer falls silent: the lease ends, waiting again
                 ▲           └──► failed: waiting with back-off, or given up after a day ──► kept for 7 days (dead)

Order of sending is by lane: one for each API key and host, so a host that does not answer holds up nobody else. An
endpoint (an address without its query) that had no success for a day is disabled: its events go straight to the dead,
until its owner enables it. This module does not know HTTP.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import redis.asyncio as redis_async

from samovar.errors import Conflict, NotFound
from samovar.values import Struct
from samovar_storage import keys
from samovar_storage.failures import translating
from samovar_storage.jobs import webhook_scripts as scripts
from samovar_storage.jobs.hooks import endpoint_id, endpoint_of
from samovar_storage.jobs.layout import job_key

GIVE_UP_S = 86_400.0
WOKEN_TOGETHER = 100
Verdict = Literal["", "retry", "dead", "disabled"]


class Event(Struct, frozen=True, kw_only=True):
    """Something to be told. attempts: that failed. body: what was sent, b"" before the first failure. `_ms` are unix.

    lane_failures: how often its host did not answer lately. dead_ms: when it was given up, 0 = it is not.
    """

    id: str
    job: str
    state: str
    function: str
    key_id: str
    url: str
    at_ms: int
    attempts: int = 0
    last_error: str = ""
    body: bytes = b""
    dead_ms: int = 0
    lane_failures: int = 0


class Endpoint(Struct, frozen=True, kw_only=True):
    """An endpoint that fails. failing_ms: since when, disabled_ms: since when it gets nothing, 0 = it still does."""

    url: str
    failures: int
    failing_ms: int
    last_error: str
    disabled_ms: int = 0


class Failure(Struct, frozen=True, kw_only=True):
    """Why an event was not delivered, and what follows.

    retry_s: until its next attempt. silence_s: nothing else goes to its host meanwhile, 0 = the host answers.
    body: what was sent. is_gone: the endpoint wants nothing more.
    """

    error: str
    retry_s: float
    silence_s: float = 0.0
    body: bytes = b""
    is_gone: bool = False


class Webhooks:
    """Every move of an event. Methods raise StoreUnavailable when Redis does not answer."""

    def __init__(self, redis: redis_async.Redis, give_up_s: float = GIVE_UP_S) -> None:
        self._redis = redis
        self._give_up_ms = int(give_up_s * 1000)

    async def claim(self, token: str, lease_s: float, most: int) -> list[Event]:
        """Return up to `most` events that are due, at most one of each lane; they are leased under `token` now."""
        rows = await self._run(scripts.CLAIM, token, int(lease_s * 1000), most)
        return [_event(row[0], row[2], row[1]) for row in rows]

    async def renew(self, token: str, lease_s: float, events: Sequence[str]) -> None:
        """The leases of these events last `lease_s` from now on, those that are still held."""
        if events:
            await self._run(scripts.RENEW, token, int(lease_s * 1000), *events)

    async def delivered(self, token: str, event: Event) -> bool:
        """The event is gone and its endpoint well; False, having changed nothing, if the lease was lost."""
        return bool(await self._run(scripts.DELIVERED, event.id, token))

    async def failed(self, token: str, event: Event, failure: Failure) -> Verdict:
        """The event waits for another attempt, or is dead. Return which, and whether its endpoint was disabled just
        now; "", having changed nothing, if the lease was lost."""
        retry_ms, silence_ms = int(failure.retry_s * 1000), int(failure.silence_s * 1000)
        said: bytes = await self._run(
            scripts.FAILED,
            event.id,
            token,
            retry_ms,
            silence_ms,
            failure.error,
            failure.body,
            endpoint_of(event.url),
            self._give_up_ms,
            int(failure.is_gone),
        )
        return said.decode()  # type: ignore[return-value]

    async def release(self, token: str, events: Sequence[str], wait_s: float = 0.0) -> None:
        """These events wait again, as if they had not been claimed, `wait_s` seconds at least."""
        if events:
            await self._run(scripts.RELEASE, token, int(wait_s * 1000), *events)

    async def due_in_s(self) -> float | None:
        """Return in how many seconds something may be sent, by Redis's own clock; <= 0 is now, None: nothing waits."""
        with translating("the webhooks"):
            async with self._redis.pipeline(transaction=False) as pipe:
                pipe.time()
                pipe.zrange(keys.WEBHOOKS_DUE, 0, 0, withscores=True)
                (now_s, micros), found = await pipe.execute()
        return found[0][1] / 1000 - now_s - micros / 1e6 if found else None

    async def open(self, key_id: str, limit: int) -> list[Event]:
        """Return the newest `limit` events of an API key that are not delivered, newest first."""
        with translating("the webhooks"):
            names: Any = await self._redis.zrange(keys.webhooks_open(key_id), 0, limit - 1, desc=True)
            ids = [_text(name) for name in names]
            async with self._redis.pipeline(transaction=False) as pipe:
                for event_id in ids:
                    pipe.hgetall(keys.webhook(event_id))
                rows = await pipe.execute()
            # what was dead and expired is in the list only
            expired = [event_id for event_id, row in zip(ids, rows, strict=True) if not row]
            if expired:
                await self._redis.zrem(keys.webhooks_open(key_id), *expired)
        return [_event(event_id, row) for event_id, row in zip(ids, rows, strict=True) if row]

    async def endpoints(self, key_id: str) -> list[Endpoint]:
        """Return the endpoints of an API key that fail or are disabled, by address."""
        with translating("the webhooks"):
            names = sorted(_text(name) for name in await self._redis.smembers(keys.webhooks_ends(key_id)))
            async with self._redis.pipeline(transaction=False) as pipe:
                for name in names:
                    pipe.hgetall(keys.webhooks_endpoint(name))
                rows = await pipe.execute()
        found = [_struct(Endpoint, {}, row) for row in rows if row]
        return sorted(found, key=lambda endpoint: endpoint.url)

    async def num_dropped(self, key_id: str) -> int:
        """Return how many events of an API key were not noted because too many were open."""
        with translating("the webhooks"):
            return int(await self._redis.hget(keys.WEBHOOKS_DROPPED, key_id) or 0)

    async def replay(self, job_id: str, state: str) -> bool:
        """The event of a job in that state is sent now, also if it was delivered before.

        Return False if there is nothing to send: the job has no webhook for it or is not in that state, the event is
        being sent, or its endpoint is disabled.
        """
        with translating("the webhooks"):
            return bool(await self._redis.eval(scripts.REPLAY, 1, job_key(job_id), f"{job_id}.{state}", job_id, state))

    async def enable(self, key_id: str, url: str) -> int:
        """The endpoint of `url` is told again, and what is kept for it is sent; return how many events those are.

        Asked again after a failure, it goes on. Raises: NotFound when the key has no such endpoint that fails;
        Conflict when it is not disabled, and nothing is kept for it.
        """
        endpoint = endpoint_id(key_id, url)
        was_disabled = bool(await self._run(scripts.ENABLE, key_id, endpoint))
        woken = await self._wake(key_id, endpoint)
        if was_disabled or woken:
            return woken
        if any(endpoint.url == endpoint_of(url) for endpoint in await self.endpoints(key_id)):
            raise Conflict(f"{endpoint_of(url)} is not disabled: events are still sent there")
        raise NotFound("no endpoint of this key at that address is disabled")

    async def _wake(self, key_id: str, endpoint: str) -> int:
        """What was given up of an endpoint waits again, in steps that hold nobody up; return how many events."""
        with translating("the webhooks"):
            dead: Any = await self._redis.zrange(keys.webhooks_dead(key_id), 0, -1)
        steps = [dead[at : at + WOKEN_TOGETHER] for at in range(0, len(dead), WOKEN_TOGETHER)]
        return sum([int(await self._run(scripts.WAKE, endpoint, *step)) for step in steps])

    async def _run(self, script: str, *args: Any) -> Any:
        with translating("the webhooks"):
            return await self._redis.eval(script, 0, *args)


def _event(event_id: bytes | str, fields: Any, lane_failures: bytes = b"0") -> Event:
    """Return an event from the fields of its hash, as a mapping or flat."""
    row = fields if isinstance(fields, dict) else dict(zip(fields[::2], fields[1::2], strict=True))
    event: Event = _struct(Event, {"id": _text(event_id), "lane_failures": int(lane_failures)}, row)
    return event


def _struct(cls: Any, known: dict[str, Any], row: dict[bytes, bytes]) -> Any:
    for name, value in row.items():
        field = _text(name)
        if field in cls.__struct_fields__:
            known[field] = _typed(cls.__annotations__[field], value)
    return cls(**known)


def _typed(annotation: str, value: bytes) -> int | str | bytes:
    return int(float(value)) if annotation == "int" else value if annotation == "bytes" else value.decode()


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value
