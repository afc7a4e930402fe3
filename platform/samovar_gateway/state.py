"""What the routes of one gateway process share. This module does not know HTTP."""

from __future__ import annotations

from dataclasses import dataclass, field

from redis.asyncio import Redis

from samovar_dispatch.dispatcher import Dispatcher
from samovar_dispatch.functions import FunctionTable
from samovar_gateway.auth import KeyTable
from samovar_gateway.settings import GatewaySettings
from samovar_storage.objects import ObjectStore
from samovar_storage.registry import Registry


@dataclass(slots=True)
class GatewayState:
    """One per process; made by `__main__`, found by routes as `app.state.gateway`.

    missing: what still keeps the gateway from serving, in words, for /readyz; empty = ready.
    """

    settings: GatewaySettings
    redis: Redis
    objects: ObjectStore
    registry: Registry
    keys: KeyTable
    dispatcher: Dispatcher
    functions: FunctionTable
    draining: bool = False
    missing: set[str] = field(default_factory=lambda: {"function table", "api keys", "listener"})
