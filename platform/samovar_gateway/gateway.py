"""One gateway process: its parts made, started, drained and closed in order. This module does not know HTTP."""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from redis.asyncio import Redis

from samovar_dispatch.answers.cabinet import Cabinet
from samovar_dispatch.answers.errand import Errands
from samovar_dispatch.answers.shelf import Shelf
from samovar_dispatch.ask import OIP_GRPC, OIP_REST
from samovar_dispatch.demand import DemandWriter
from samovar_dispatch.engine import Engine
from samovar_dispatch.upkeep import Part, keep_all_running
from samovar_gateway.admin import Admin
from samovar_gateway.admin.audit import write_audit
from samovar_gateway.admission import Admission
from samovar_gateway.app import create_app
from samovar_gateway.auth import KeyTable
from samovar_gateway.background import watch_registry
from samovar_gateway.bounds import RESERVED_FILES, CountedFilter, raise_file_limit
from samovar_gateway.calling import Caller
from samovar_gateway.departure import Departure
from samovar_gateway.events.mailbox import Mailbox
from samovar_gateway.events.streams import Streams
from samovar_gateway.fastpath import InvokeProtocol
from samovar_gateway.health import LISTENER, what_is_missing
from samovar_gateway.inference.core import Inference
from samovar_gateway.jobs.expander import Expander
from samovar_gateway.jobs.idempotency import Once
from samovar_gateway.jobs.prospects import Prospects
from samovar_gateway.jobs.watch import WatchHub
from samovar_gateway.key_mirror import check_keys, follow_keys, tell_used
from samovar_gateway.requests_log import Requests
from samovar_gateway.server import Server, create_server, serve
from samovar_gateway.settings import LATEST_OPENING_S, GatewaySettings
from samovar_gateway.state import GatewayState
from samovar_gateway.streaming import HalfSentFilter
from samovar_gateway.sweep import Sweeper
from samovar_storage.answers import Caps
from samovar_storage.ending import end_tasks
from samovar_storage.jobs.barrier import Barrier
from samovar_storage.jobs.idempotency import Idempotency, Limits
from samovar_storage.jobs.redis_jobs import RedisJobs
from samovar_storage.jobs.webhook_urls import parse_allow
from samovar_storage.live import connect_async, connect_sync
from samovar_storage.objects import ObjectStore
from samovar_storage.registry import Registry

if TYPE_CHECKING:
    from samovar_gateway.rpc.server import RpcServer

log = logging.getLogger("samovar.gateway")

OPENING_POLL_S = 0.02


@dataclass(frozen=True, slots=True)
class Sockets:
    """Listening sockets. own: of this gateway alone, served at once. shared, grpc: served from when it is ready, by
    others, too, if they hold them; None = not served."""

    own: socket.socket
    shared: socket.socket | None = None
    grpc: socket.socket | None = None


class Gateway:
    """Everything one gateway consists of. `run` returns once it has drained."""

    def __init__(self, settings: GatewaySettings) -> None:
        self._settings = settings
        gateway_id = settings.gateway_id or f"{settings.node or socket.gethostname()}-{os.getpid()}"
        cabinet = make_cabinet(settings)
        redis = connect_async(settings.redis_url.reveal())
        self._engine = engine = Engine(redis, gateway_id, DemandWriter(gateway_id), cabinet.forget)
        engine.dispatcher.room.backlog.max_bytes = settings.max_waiting_bytes
        engine.dispatcher.ejections.first_s = settings.ejection_s
        self._sync_redis = connect_sync(settings.redis_url.reveal())
        objects = ObjectStore.from_settings(settings)
        jobs = RedisJobs(redis, objects)
        watches = WatchHub(redis, jobs)
        streams = Streams(settings.resume_bytes)
        self._mailbox = Mailbox(redis, streams)
        self.state = GatewayState(
            settings=settings,
            gateway_id=gateway_id,
            redis=redis,
            objects=objects,
            registry=Registry(objects, self._sync_redis),
            keys=KeyTable(),
            dispatcher=engine.dispatcher,
            journey=engine.journey,
            functions=engine.functions,
            membership=engine.membership,
            mirror=engine.mirror,
            cabinet=cabinet,
            requests=Requests(settings, gateway_id),
            jobs=jobs,
            watches=watches,
            prospects=Prospects(redis, jobs, engine.functions),
            once=Once(make_claims(redis, settings), objects, watches, Barrier(redis)),
            expander=Expander(redis, objects, jobs, gateway_id, settings.max_body_bytes),
            streams=streams,
            borrower=self._mailbox.borrower,
            webhooks_allowed=parse_allow(settings.webhook_allow),
        )
        self.state.journey.notes.append(self.state.requests.log.note)
        self.state.journey.errands = Errands(self.state.journey, engine.functions.entries, cabinet)
        self._admin = Admin(self.state)
        self._sweeper = Sweeper(settings.body_timeout_s)
        self._departure = Departure(self.state)
        self.request_stop = self._departure.request

    async def run(self, sockets: Sockets) -> None:
        """Serve until asked to stop.

        Raises: SamovarError when a store cannot be used at start.
        """
        await asyncio.to_thread(self._prepare_stores)
        logging.getLogger("uvicorn.error").addFilter(HalfSentFilter())
        logging.getLogger("uvicorn.error").addFilter(CountedFilter())
        most = raise_file_limit() - RESERVED_FILES
        admission = Admission(self.state, min(self._settings.max_connections, most))
        caller = Caller(self.state, admission, self._sweeper)
        app = create_app(Inference(caller, OIP_REST), self._admin)
        server = create_server(app, partial(InvokeProtocol, admission, self.state.journey))
        serving = asyncio.create_task(serve(server, [sockets.own]))
        rpc = await self._start_rpc(Inference(caller, OIP_GRPC)) if sockets.grpc is not None else None
        parts = self._parts()
        try:
            await server.is_up.wait()
            log.info("listening on http://%s:%d", *sockets.own.getsockname()[:2])
            opening = asyncio.ensure_future(self._open(server, rpc, sockets))
            await self._departure.wait()
            opening.cancel()
            await asyncio.wait({opening})
            await self._departure.drain(server, rpc)
        finally:
            if rpc is not None:
                await rpc.close()
            await self._close(server, serving, parts)

    async def _start_rpc(self, core: Inference) -> RpcServer:
        from samovar_gateway.rpc.server import RpcServer  # a gateway without gRPC does not load it

        rpc = RpcServer(core)
        await rpc.start()
        return rpc

    async def _open(self, server: Server, rpc: RpcServer | None, sockets: Sockets) -> None:
        """Take connections from sockets that others serve, too, once whoever comes by them gets an answer."""
        if sockets.shared is not None:
            for _ in range(int(LATEST_OPENING_S / OPENING_POLL_S)):
                if what_is_missing(self.state) == [LISTENER]:
                    break
                await asyncio.sleep(OPENING_POLL_S)
            await server.listen_also([sockets.shared])
            log.info("serving http://%s:%d, too", *sockets.shared.getsockname()[:2])
        if rpc is not None and sockets.grpc is not None:
            await rpc.listen(sockets.grpc)
            log.info("serving grpc://%s:%d", *sockets.grpc.getsockname()[:2])
        self.state.listening = True

    def _prepare_stores(self) -> None:
        """Check both stores and make sure that the index mirrors object storage and the admin key exists."""
        self.state.objects.ensure_bucket()
        self.state.registry.ensure_built()
        admin_key = self._settings.admin_key.reveal()
        if admin_key:
            self.state.registry.keys.create("admin", ["admin"], token=admin_key)

    def _parts(self) -> list[asyncio.Future[None]]:
        state = self.state
        more: dict[str, Part] = {
            "API keys, heard": partial(follow_keys, state.redis, state.keys),
            "API keys, checked": partial(check_keys, state.redis, state.keys),
            "API keys, used": partial(tell_used, state.redis, state.keys),
            "audit log": partial(write_audit, self._admin.services.audit),
            "sweep": self._sweeper.run,
            "kept answers": state.cabinet.run,
            "copies of calls": partial(state.journey.shadow.run, state.redis),
            "registry": partial(watch_registry, state.registry),
            "request log": partial(state.requests.run, state.redis),
            "news of jobs": state.watches.run,
            "durability of jobs": state.jobs.barrier.watch,
            "answers to Idempotency-Keys": state.once.run,
            "uploads of jobs": state.expander.run,
            "resumable streams": state.streams.run,
            "streams of other gateways": self._mailbox.run,
        }
        return keep_all_running(self._engine.parts() | more)

    async def _close(self, server: Server, serving: asyncio.Task[None], parts: list[asyncio.Future[None]]) -> None:
        server.should_exit = True
        await asyncio.wait({serving})
        await self._mailbox.close()
        await end_tasks(parts)
        await self.state.cabinet.close()
        await self._engine.close()
        self._admin.close()
        await self.state.redis.aclose()
        self._sync_redis.close()


def make_claims(redis: Redis, settings: GatewaySettings) -> Idempotency:
    """Return what claims Idempotency-Keys for this process."""
    limits = Limits(lifetime_s=settings.idempotency_keep_s, key_bytes=settings.idempotency_bytes)
    return Idempotency(redis, limits)


def make_cabinet(settings: GatewaySettings) -> Cabinet:
    """Return where this gateway keeps answers. Its Redis connections are its own: waiting for one is no one else's."""
    caps = Caps(
        function_entries=settings.answers_function_entries,
        function_bytes=settings.answers_function_bytes,
        entries=settings.answers_entries,
        num_bytes=settings.answers_bytes,
    )
    shelf = Shelf(settings.answers_entries, settings.answers_local_bytes)
    return Cabinet(connect_async(settings.redis_url.reveal()), caps, shelf, settings.answer_max_bytes)
