"""The loop that delivers: claim what is due, send each on its own, record, sleep until the next is due.

    claim (leased to this process) ──► compose ──► sign ──► POST ──► delivered, or failed and again later

A process that dies between POST and record leaves the lease to end: the event is sent again, under the same id. Jobs,
their slots and their workers' pace do not wait for any of this. This module does not know how a delivery is judged.
"""

from __future__ import annotations

import asyncio
import logging
import random
import time
from collections import Counter
from contextlib import aclosing
from secrets import token_hex

import redis.asyncio as redis_async

from samovar.errors import SamovarError
from samovar.webhooks import sign
from samovar_jobs.webhooks.guarded import Resolve, Resolver, guarded_pool
from samovar_jobs.webhooks.letter import Records, Secrets, compose
from samovar_jobs.webhooks.outcome import Answer, failure_of
from samovar_jobs.webhooks.post import post
from samovar_storage import keys
from samovar_storage.ending import end_tasks
from samovar_storage.jobs.hooks import endpoint_of
from samovar_storage.jobs.webhook_secrets import WebhookSecrets
from samovar_storage.jobs.webhook_urls import Allowed
from samovar_storage.jobs.webhooks import Event, Webhooks
from samovar_storage.objects import ObjectStore
from samovar_storage.subscribe import subscribe

log = logging.getLogger(__name__)

LEASE_S, RENEW_S = 10.0, 3.0
SHORTEST_SLEEP_S, LONGEST_SLEEP_S = 0.01, 5.0
STORE_AWAY_S = 2.0  # until a delivery that could not be signed or recorded is tried again
CLAIM_TOGETHER = 32
MAX_ASKING = 16  # deliveries that use a connection to a store at a time: the worker's jobs need some, too
LAST_WORDS_S = 2.0


class Deliverer:
    """One per worker process; `run` until cancelled. counts: what came of deliveries, by outcome, for metrics."""

    def __init__(
        self,
        redis: redis_async.Redis,
        objects: ObjectStore,
        records: Records,
        allowed: Allowed,
        concurrency: int,
        resolve: Resolve | None = None,
    ) -> None:
        self.counts: Counter[str] = Counter()
        self._redis = redis
        self._events = Webhooks(redis)
        self._records = records
        self._allowed = allowed
        self._secrets = Secrets(WebhookSecrets(objects))
        self._concurrency = concurrency
        self._resolver = Resolver()
        self._pool = guarded_pool(allowed, resolve or self._resolver)
        self._token = token_hex(8)
        self._held: dict[str, asyncio.Task[None]] = {}
        self._news = asyncio.Event()
        self._asking = asyncio.Semaphore(MAX_ASKING)

    @property
    def num_sending(self) -> int:
        """How many deliveries are under way here."""
        return len(self._held)

    async def run(self) -> None:
        """Begin deliveries until cancelled; those under way go on until `close`. Raises StoreUnavailable."""
        parts = [asyncio.create_task(self._listen()), asyncio.create_task(self._renew())]
        try:
            while True:
                self._news.clear()
                if not await self._claim():
                    await self._sleep(parts)
        finally:
            await end_tasks(parts)

    async def close(self) -> None:
        """End what is under way, which waits again then, and close connections and threads, after `run` has ended."""
        await self._let_go()
        self._resolver.close()
        await self._pool.aclose()

    async def _claim(self) -> int:
        """Begin the deliveries that are due, as far as there is room; return how many."""
        room = min(self._concurrency - len(self._held), CLAIM_TOGETHER)
        events = await self._events.claim(self._token, LEASE_S, room) if room > 0 else []
        for event in events:
            if event.id not in self._held:
                self._held[event.id] = asyncio.create_task(self._deliver(event))
        return len(events)

    async def _sleep(self, parts: list[asyncio.Task[None]]) -> None:
        """Return when something may be due; raise what ended one of the `parts`."""
        wait_s = LONGEST_SLEEP_S
        if len(self._held) < self._concurrency:
            due_s = await self._events.due_in_s()
            if due_s is not None:
                wait_s = min(wait_s, max(SHORTEST_SLEEP_S, due_s))
        for part in parts:
            if part.done():
                part.result()
        try:
            async with asyncio.timeout(wait_s):
                await self._news.wait()
        except TimeoutError:
            return

    async def _deliver(self, event: Event) -> None:
        """Send one event and record what came of it. Never raises."""
        try:
            async with self._asking:
                body = await compose(self._records, event)
                secrets = await self._secrets.of(event.key_id)
            headers = sign(secrets, event.id, int(time.time()), body) | {"content-type": "application/json"}
            headers["user-agent"] = "samovar-webhooks/1"
            answer = await post(self._pool, self._allowed, event.url, headers, body)
            async with self._asking:
                await self._record(event, answer, body)
        except SamovarError as error:
            self.counts["put_off"] += 1
            log.warning("the webhook event %s waits: %s", event.id, error.detail)
            await self._put_off(event)
        except Exception:
            self.counts["put_off"] += 1
            log.exception("the webhook event %s could not be sent", event.id)
            await self._put_off(event)
        finally:
            self._held.pop(event.id, None)
            self._news.set()

    async def _record(self, event: Event, answer: Answer, body: bytes) -> None:
        failure = failure_of(event, answer, body, time.time(), random.random())  # noqa: S311 - jitter
        if failure is None:
            kept = await self._events.delivered(self._token, event)
            self.counts["delivered" if kept else "late"] += 1
            return
        verdict = await self._events.failed(self._token, event, failure)
        self.counts[verdict or "late"] += 1
        if verdict == "disabled":
            log.warning(
                "webhooks of key %s to %s are disabled: %s", event.key_id, endpoint_of(event.url), failure.error
            )
        elif verdict == "dead":
            log.warning("the webhook event %s was given up: %s", event.id, failure.error)

    async def _put_off(self, event: Event) -> None:
        """The event waits again; while Redis is away its lease ends by itself."""
        try:
            await self._events.release(self._token, [event.id], STORE_AWAY_S)
        except SamovarError as error:
            log.info("the lease of the webhook event %s ends by itself: %s", event.id, error.detail)

    async def _renew(self) -> None:
        while True:
            await asyncio.sleep(RENEW_S)
            await self._events.renew(self._token, LEASE_S, [*self._held])

    async def _listen(self) -> None:
        async with aclosing(subscribe(self._redis, keys.CHANNEL_WEBHOOKS)) as news:
            async for _ in news:
                self._news.set()

    async def _let_go(self) -> None:
        """End what is under way here and let others have it at once."""
        held = dict(self._held)
        await end_tasks([*held.values()])
        try:
            async with asyncio.timeout(LAST_WORDS_S):
                await self._events.release(self._token, [*held])
        except (SamovarError, TimeoutError) as error:
            log.info("the leases of %d webhook events end by themselves: %s", len(held), error)
