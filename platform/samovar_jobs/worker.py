"""One job worker: its parts made, started, drained and closed in order. This module does not know RQ's tools.

A gateway without HTTP: a dispatcher of its own with what keeps it current (`samovar_dispatch/engine.py`), fed by the
queues instead of by clients.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import signal
import socket
import time
from functools import partial

from samovar.errors import StoreUnavailable
from samovar_dispatch.demand import DemandWriter
from samovar_dispatch.engine import Engine
from samovar_dispatch.requestlog.log import RequestLog
from samovar_dispatch.requestlog.writer import RequestWriter
from samovar_dispatch.upkeep import Part, keep_all_running
from samovar_jobs.attempts import Attempts
from samovar_jobs.cancels import follow_cancels, poll_cancels
from samovar_jobs.cron import Scheduler, rules_in
from samovar_jobs.hearing import Ear
from samovar_jobs.key_rates import KeyRates
from samovar_jobs.lease import Lease
from samovar_jobs.orphans import Orphans
from samovar_jobs.presence import Presence, Registered
from samovar_jobs.reaper import Promoter, Reaper, sweep
from samovar_jobs.settings import JobsSettings
from samovar_jobs.status import tell_status
from samovar_jobs.taker import Taker
from samovar_jobs.webhooks.deliverer import Deliverer
from samovar_storage.ending import end_tasks
from samovar_storage.jobs.crons import Crons
from samovar_storage.jobs.redis_jobs import RedisJobs
from samovar_storage.jobs.webhook_urls import parse_allow
from samovar_storage.live import connect_async
from samovar_storage.objects import ObjectStore
from samovar_storage.requestlog.layout import safe_name
from samovar_storage.requestlog.spool import SPOOL_FOLDER

log = logging.getLogger("samovar.jobs")

CLOSE_S = 2.0
STOP_GRACE_S = 5.0  # beyond the drain, for what was told to stop


class Worker:
    """Everything one worker consists of. `run` returns once it has left."""

    def __init__(self, settings: JobsSettings, registered: Registered) -> None:
        self._settings = settings
        name = worker_name(settings)
        self._redis = redis = connect_async(settings.redis_url.reveal())
        self._objects = ObjectStore.from_settings(settings)
        own_id = f"jobs-{name}-{secrets.token_hex(4)}"  # of two workers of one name, each has a demand of its own
        self._engine = engine = Engine(redis, own_id, DemandWriter(own_id, of_jobs=True))
        self._store = store = RedisJobs(redis, self._objects, settings.job_ended_bytes)
        self._ear = Ear(redis, store, settings.job_log_lines)
        self._attempts = attempts = Attempts(engine.journey, store, self._ear, settings.job_result_bytes)
        self._lease = Lease(store, name, attempts.abandon)
        self._rates = KeyRates()
        self._promoter = Promoter(store)
        self._reaper = Reaper(store, self._lease)
        self._taker = Taker(
            store,
            self._lease,
            engine.functions,
            attempts,
            self._rates,
            engine.journey.rates,
            self._promoter,
            settings.jobs_in_flight,
        )
        self._presence = Presence(registered, lambda: bool(attempts.running), self._taker.suspend)
        self._requests = RequestLog(safe_name(own_id), settings.request_log)
        engine.journey.notes.append(self._requests.note)
        allowed = parse_allow(settings.webhook_allow)
        self._deliverer = Deliverer(redis, self._objects, store, allowed, settings.webhooks_in_flight)
        crons, rules = Crons(redis, self._objects), rules_in(engine.functions)
        self._scheduler = Scheduler(redis, crons, store, rules, allowed=allowed)
        self._stop, self._hurry = asyncio.Event(), asyncio.Event()

    def request_stop(self) -> None:
        """Leave once what runs has ended, or its time is over; at the second time at once."""
        if self._stop.is_set():
            self._hurry.set()
        self._stop.set()

    async def run(self) -> bool:
        """Take and run jobs until asked to stop; return whether there were any."""
        parts = keep_all_running(self._parts())
        taking = keep_all_running({"taking jobs": self._taker.run})
        log.info("worker %s holds up to %d jobs", self._lease.worker, self._settings.jobs_in_flight)
        try:
            await self._stop.wait()
            await self._close_taker()
            await self._drain()
        finally:
            await self._close([*taking, *parts])
        return self._taker.counts["taken"] > 0

    def _parts(self) -> dict[str, Part]:
        redis, store, taker = self._redis, self._store, self._taker
        more: dict[str, Part] = {
            "lease": self._lease.run,
            "queues, heard": partial(taker.hear, redis),
            "queues, polled": taker.poll,
            "cancels, heard": partial(follow_cancels, redis, store, self._attempts),
            "cancels, polled": partial(poll_cancels, store, self._attempts),
            "what handlers say": self._ear.run,
            "API keys' limits": partial(self._rates.run, redis),
            "reaper": self._reaper.run,
            "due jobs": self._promoter.run,
            "sweep": partial(sweep, store),
            "jobs of deleted functions": Orphans(store, self._lease, self._engine.functions, taker).run,
            "webhooks": self._deliverer.run,
            "cron jobs": self._scheduler.run,
            "status": partial(tell_status, redis, self._lease, taker, self._attempts),
            "RQ's record": self._presence.run,
            "request log": partial(self._writer().run, redis),
        }
        return self._engine.parts() | more

    def _writer(self) -> RequestWriter:
        settings = self._settings
        folder = settings.data_dir / SPOOL_FOLDER
        spool_bytes, live_bytes = settings.request_log_spool_bytes, settings.request_log_live_bytes
        return RequestWriter(self._requests, self._engine.name, folder, spool_bytes, live_bytes)

    async def _close_taker(self) -> None:
        """Nothing more is taken. What is taken just now is waited for, unless Redis does not answer."""
        self._taker.close()
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(CLOSE_S):
                await self._taker.has_closed.wait()

    async def _drain(self) -> None:
        """What runs ends by itself, or is stopped and given back once the time is over or somebody is in a hurry."""
        held = len(self._attempts.running)
        log.info("leaving: %d jobs are finished first", held)
        began_s = time.monotonic()
        if not await self._idle_within(self._settings.job_drain_timeout_s):
            self._attempts.give_back_all()
            if not self._hurry.is_set():
                await self._idle_within(STOP_GRACE_S)
        left = len(self._attempts.running)
        log.info(
            "%d jobs left their places in %.1f s, %d are given back", held - left, time.monotonic() - began_s, left
        )

    async def _idle_within(self, seconds: float) -> bool:
        """Return whether nothing is held any more; soon, if somebody is in a hurry."""
        idle = asyncio.ensure_future(self._attempts.wait_idle())
        hurry = asyncio.ensure_future(self._hurry.wait())
        await asyncio.wait({idle, hurry}, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        is_idle = idle.done()
        await end_tasks([idle, hurry])
        return is_idle

    async def _close(self, parts: list[asyncio.Future[None]]) -> None:
        """Whatever is still held is put back by leaving, once nothing is settled here any more."""
        await self._attempts.close()
        await end_tasks(parts)
        try:
            await self._store.leave(self._lease.worker)
        except StoreUnavailable as error:
            log.warning("leaving without a word, the lease runs out: %s", error.detail)
        await self._presence.end()
        await self._deliverer.close()
        await self._engine.close()
        await self._redis.aclose()
        self._objects.close()


def worker_name(settings: JobsSettings) -> str:
    """Return what this worker is called among others, its lease's id aside."""
    return settings.worker_name or f"{settings.node or socket.gethostname()}-{os.getpid()}"


async def serve(settings: JobsSettings, registered: Registered) -> bool:
    """Run one worker until SIGTERM or SIGINT; return whether it took any job."""
    worker = Worker(settings, registered)
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, worker.request_stop)
    return await worker.run()
