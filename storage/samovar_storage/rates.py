"""Rate limits in Redis: one instant per limit, moved by one script. Gateways charge and lease in batches.

This module does not know what a limit applies to, nor when gateways report.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import redis.asyncio as redis_async

from samovar_storage import keys
from samovar_storage.failures import translating

MAX_BATCH = 500

# KEYS: one per limit: string, the limit's TAT in unix seconds by the server's clock; gone once that lies in the past.
# ARGV: four per limit: rate (calls a second), burst, charge (calls made; negative: lease given back), want (calls).
# Returns two per limit: granted (calls), backlog (seconds by which its TAT is ahead of now).
# The same as samovar_dispatch/rates/gcra.py `lease`; tests/contract/test_storage_rates.py runs one table through both.
LEASE = """
local time = redis.call('TIME')
local now = time[1] + time[2] / 1e6
local reply = {}
for i, key in ipairs(KEYS) do
  local rate, burst = tonumber(ARGV[4 * i - 3]), tonumber(ARGV[4 * i - 2])
  local charge, want = tonumber(ARGV[4 * i - 1]), tonumber(ARGV[4 * i])
  local tat = math.max(now, tonumber(redis.call('GET', key) or '0'))
  tat = math.max(now, tat + charge / rate)
  local granted = math.max(0, math.min(want, math.floor(burst - (tat - now) * rate + 1e-6)))
  tat = tat + granted / rate
  if tat > now then
    redis.call('SET', key, string.format('%.6f', tat), 'PX', math.ceil((tat - now) * 1000) + 1)
  else
    redis.call('DEL', key)
  end
  reply[2 * i - 1], reply[2 * i] = granted, string.format('%.6f', tat - now)
end
return reply
"""


@dataclass(frozen=True, slots=True)
class LeaseRequest:
    """What one gateway says of one limit. name: (key id, function), either may be "". Others: see LEASE."""

    name: tuple[str, str]
    rate_per_s: float
    burst: int
    charge: float
    want: int


@dataclass(frozen=True, slots=True)
class LeaseReply:
    """granted: calls the gateway may admit, >= 0. backlog_s: how far the limit's instant is ahead of now, >= 0."""

    granted: int
    backlog_s: float


async def lease(redis: redis_async.Redis, requests: Sequence[LeaseRequest]) -> list[LeaseReply]:
    """Carry out up to MAX_BATCH requests in one round trip; one reply for each. Raises StoreUnavailable."""
    names = [keys.rate(":".join(request.name)) for request in requests]
    arguments: list[Any] = []
    for request in requests:
        arguments += (repr(request.rate_per_s), request.burst, repr(request.charge), request.want)
    with translating("the rate limits"):
        answer = await redis.register_script(LEASE)(keys=names, args=arguments)
    return [LeaseReply(int(answer[i]), float(answer[i + 1])) for i in range(0, len(answer), 2)]


async def num_gateways(redis: redis_async.Redis) -> int:
    """Return how many gateways were heard of within 10 s. Raises StoreUnavailable."""
    with translating("the list of gateways"):
        return int(await redis.zcount(keys.GATEWAYS, time.time() - keys.GATEWAY_LIFETIME_S, "+inf"))
