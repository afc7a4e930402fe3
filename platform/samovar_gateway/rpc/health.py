"""The health service, `grpc.health.v1.Health`: what `/readyz` says, for whoever speaks gRPC.

    ""  inference.GRPCInferenceService     this gateway: SERVING while a call sent now would be taken in
    a function's name                      the key must cover it; one that sleeps is SERVING

This module does not know connections.
"""

from __future__ import annotations

import asyncio
from typing import Any

import grpc
from grpc_health.v1 import health_pb2, health_pb2_grpc

from samovar.errors import NotFound
from samovar_gateway.health import what_is_missing
from samovar_gateway.inference.core import Inference
from samovar_gateway.rpc import schema
from samovar_gateway.rpc.exchange import Exchange

WATCH_S = 0.25
SERVICES = ("", schema.SERVICE, "grpc.health.v1.Health")
_Status = health_pb2.HealthCheckResponse


class Health(health_pb2_grpc.HealthServicer):  # type: ignore[misc]  # generated without types
    """One per gateway."""

    def __init__(self, core: Inference) -> None:
        self._core = core
        self._state = core.caller.state
        self._leaving = asyncio.Event()

    def leave(self) -> None:
        """Tell every watcher once more, and end."""
        self._leaving.set()

    async def Check(self, request: Any, context: Any) -> Any:
        """Return the status of one service. A name that nobody has is NOT_FOUND."""
        exchange = self._exchange(context)
        try:
            return _Status(status=await self._status(request.service, exchange))
        except Exception as error:  # noqa: BLE001 - told, and logged there
            await exchange.refuse(error)

    async def Watch(self, request: Any, context: Any) -> None:
        """Send the status of one service, and again whenever it has changed."""
        exchange = self._exchange(context)
        told = None
        while True:
            is_last = self._leaving.is_set()
            try:
                status = await self._status(request.service, exchange)
            except NotFound:
                status = _Status.SERVICE_UNKNOWN
            except Exception as error:  # noqa: BLE001 - told, and logged there
                await exchange.refuse(error)
            if status != told:
                await context.write(_Status(status=status))
                told = status
            if is_last:
                return
            try:
                async with asyncio.timeout(WATCH_S):
                    await self._leaving.wait()
            except TimeoutError:
                continue

    def _exchange(self, context: Any) -> Exchange:
        return Exchange(context, self._state, self._core.caller.admission.request_id({}))

    async def _status(self, name: str, exchange: Exchange) -> int:
        if name not in SERVICES:
            await self._core.find(name, "", exchange.header)
        return int(_Status.NOT_SERVING if what_is_missing(self._state) else _Status.SERVING)


def serve(health: Health, server: grpc.aio.Server) -> None:
    """Have a server answer for it."""
    health_pb2_grpc.add_HealthServicer_to_server(health, server)
