"""A dispatcher with what keeps it current: the same for a gateway and for a job worker.

    functions, instances   from Redis (`mirror.py`), connections to every ready instance (`membership.py`)
    breakers               told and heard
    demand                 written

Whoever owns it runs `parts` beside its calls and closes it last. This module does not know who brings the calls.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from functools import partial

from redis.asyncio import Redis

from samovar_dispatch.demand import DemandWriter
from samovar_dispatch.dispatcher import Dispatcher
from samovar_dispatch.functions import FunctionTable
from samovar_dispatch.health.breakers import Breakers
from samovar_dispatch.journey import Journey
from samovar_dispatch.membership import Membership
from samovar_dispatch.mirror import Mirror
from samovar_dispatch.upkeep import Part


class Engine:
    """One per process. name: how this process is known to instances, to the pool manager and to other dispatchers.

    on_removed: as `FunctionTable`'s. Must be made on the event loop it runs on.
    """

    def __init__(
        self, redis: Redis, name: str, demand: DemandWriter, on_removed: Callable[[str], object] | None = None
    ) -> None:
        self.name = name
        self.demand = demand
        self.dispatcher = Dispatcher(asyncio.get_running_loop(), demand.notice)
        self.journey = Journey(self.dispatcher)
        self.functions = FunctionTable(self.dispatcher, on_removed)
        self.membership = Membership(self.dispatcher, name)
        self.mirror = Mirror(redis, self.dispatcher, self.functions, self.membership)
        self._breakers = Breakers(redis, self.dispatcher, self.functions, name)
        self._redis = redis

    def parts(self) -> dict[str, Part]:
        """Return what must run for as long as calls are taken, by name."""
        return {
            "mirror of functions and instances": self.mirror.run,
            "rate limits": partial(self.journey.rates.run, self._redis),
            "demand": partial(self.demand.run, self._redis, self.dispatcher),
            "breakers, told": self._breakers.tell,
            "breakers, heard": self._breakers.follow,
        }

    async def close(self) -> None:
        """Every connection to an instance is ended afterwards."""
        await self.membership.close()
