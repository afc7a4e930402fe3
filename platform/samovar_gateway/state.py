"""What the routes of one gateway process share. This module does not know HTTP."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from redis.asyncio import Redis

from samovar_dispatch.answers.cabinet import Cabinet
from samovar_dispatch.dispatcher import Dispatcher
from samovar_dispatch.functions import FunctionTable
from samovar_dispatch.journey import Journey
from samovar_dispatch.membership import Membership
from samovar_dispatch.mirror import Mirror
from samovar_gateway.auth import KeyTable
from samovar_gateway.jobs.expander import Expander
from samovar_gateway.jobs.idempotency import Once
from samovar_gateway.jobs.prospects import Prospects
from samovar_gateway.jobs.watch import WatchHub
from samovar_gateway.requests_log import Requests
from samovar_gateway.settings import GatewaySettings
from samovar_storage.jobs.webhook_urls import Allowed

if TYPE_CHECKING:
    from samovar_gateway.events.borrowing import Borrower
    from samovar_gateway.events.streams import Streams
    from samovar_storage.jobs.redis_jobs import RedisJobs
    from samovar_storage.objects import ObjectStore
    from samovar_storage.registry import Registry


@dataclass(slots=True)
class GatewayState:
    """One per process; made by `__main__`, found by routes as `app.state.gateway`.

    gateway_id: its name among gateways. listening: the listener is up. leaving: SIGTERM came; who still asks is
    served, but should ask elsewhere. draining: nothing new is taken in. problems: problem documents answered, by code.
    webhooks_allowed: where they may be sent beside the public internet.
    """

    settings: GatewaySettings
    gateway_id: str
    redis: Redis
    objects: ObjectStore
    registry: Registry
    keys: KeyTable
    dispatcher: Dispatcher
    journey: Journey
    functions: FunctionTable
    membership: Membership
    mirror: Mirror
    cabinet: Cabinet
    requests: Requests
    jobs: RedisJobs
    watches: WatchHub
    prospects: Prospects
    once: Once
    expander: Expander
    streams: Streams
    borrower: Borrower
    webhooks_allowed: Allowed
    listening: bool = False
    leaving: bool = False
    draining: bool = False
    problems: Counter[str] = field(default_factory=Counter)
