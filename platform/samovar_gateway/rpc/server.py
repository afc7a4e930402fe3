"""The gRPC side of one gateway: made, started, drained and closed.

    start ─► listen ─► leave ─► (is_quiet) ─► close
               │          └ no new connections; clients hear GOAWAY, streams and watchers end
               └ from when this gateway is ready

This module does not know what the methods do.
"""

from __future__ import annotations

import os
import secrets
import socket

import grpc
from grpc_reflection.v1alpha import reflection

from samovar_gateway.bounds import MAX_HEAD_BYTES
from samovar_gateway.inference.core import Inference
from samovar_gateway.rpc import health, schema
from samovar_gateway.rpc.relay import Relay
from samovar_gateway.rpc.service import Service
from samovar_gateway.rpc.stream import InferStreams

MAX_STREAMS = 1024  # calls of one connection at a time
KEEPALIVE_S, KEEPALIVE_TIMEOUT_S = 60, 20  # after so much silence a client is asked; without an answer it is gone
CLIENT_PING_S = 10  # a client that asks more often, thrice, is sent away (ENHANCE_YOUR_CALM)
FILES_PER_CONNECTION = 3


class RpcServer:
    """One per gateway. Serves once `listen` was called."""

    def __init__(self, core: Inference) -> None:
        settings, admission = core.caller.state.settings, core.caller.admission
        self._streams = InferStreams(core)
        self._health = health.Health(core)
        path = f"samovar-{os.getpid()}-{secrets.token_hex(8)}"
        self._server = grpc.aio.server(
            options=_options(settings.max_body_bytes), maximum_concurrent_rpcs=settings.max_connections
        )
        self._server.add_generic_rpc_handlers((Service(core, self._streams).handler(),))
        health.serve(self._health, self._server)
        names = (schema.SERVICE, "grpc.health.v1.Health", reflection.SERVICE_NAME)
        reflection.enable_server_reflection(names, self._server, schema.POOL)
        self._server.add_insecure_port(f"unix-abstract:{path}")
        self._relay = Relay("\0" + path, admission.max_connections // FILES_PER_CONNECTION)

    async def start(self) -> None:
        """The methods can be called, by whoever is connected."""
        await self._server.start()

    async def listen(self, listener: socket.socket) -> None:
        """Take connections from here on."""
        await self._relay.listen(listener)

    @property
    def is_quiet(self) -> bool:
        """Whether nobody is connected: clients that heard GOAWAY close when they have their answers."""
        return not self._relay.connections

    async def leave(self) -> None:
        """Take nothing new; whatever was asked is answered."""
        await self._relay.leave()
        self._health.leave()
        self._streams.leave()

    async def close(self) -> None:
        """End what is left."""
        await self._relay.close()
        await self._server.stop(None)


def _options(max_body_bytes: int) -> list[tuple[str, int]]:
    return [
        ("grpc.so_reuseport", 0),
        ("grpc.max_receive_message_length", max_body_bytes),
        ("grpc.max_send_message_length", -1),
        ("grpc.max_metadata_size", MAX_HEAD_BYTES),
        ("grpc.max_concurrent_streams", MAX_STREAMS),
        ("grpc.keepalive_time_ms", KEEPALIVE_S * 1000),
        ("grpc.keepalive_timeout_ms", KEEPALIVE_TIMEOUT_S * 1000),
        ("grpc.keepalive_permit_without_calls", 1),
        ("grpc.http2.min_recv_ping_interval_without_data_ms", CLIENT_PING_S * 1000),
        ("grpc.http2.max_ping_strikes", 2),
    ]
