"""Answers kept in Redis: for a while, within caps per function and overall. The soonest to expire leaves first.

An answer's id is `function:hash`. Everything that is counted is counted in one script, so that several gateways may
write at once. An answer that Redis dropped by itself is no harm: it is counted until its time is over.
This module does not know what an answer is an answer to, or who may see it.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec
import redis.asyncio as redis_async

from samovar_storage import keys
from samovar_storage.failures import translating

# KEYS: expiries (zset id → unix ms), sizes (hash id → bytes), totals (hash function → bytes, '' → all of them).
# ARGV: now ms, most entries and bytes of a function, most entries and bytes overall, prefix of answers, prefix of a
# function's expiries (zset), and for each answer: function, id, value, lifetime ms.
_WRITE = """
local function leave(id)
  local name = string.match(id, '^(.*):')
  local size = tonumber(redis.call('HGET', KEYS[2], id) or '0')
  redis.call('HDEL', KEYS[2], id)
  redis.call('ZREM', KEYS[1], id)
  redis.call('ZREM', ARGV[7] .. name, id)
  redis.call('HINCRBY', KEYS[3], '', -size)
  if redis.call('HINCRBY', KEYS[3], name, -size) <= 0 then redis.call('HDEL', KEYS[3], name) end
  redis.call('DEL', ARGV[6] .. id)
end
local function shrink(expiries, total, max_entries, max_bytes)
  while redis.call('ZCARD', expiries) > max_entries
      or tonumber(redis.call('HGET', KEYS[3], total) or '0') > max_bytes do
    local oldest = redis.call('ZRANGE', expiries, 0, 0)[1]
    if not oldest then return end
    leave(oldest)
  end
end
for _, id in ipairs(redis.call('ZRANGEBYSCORE', KEYS[1], '-inf', ARGV[1], 'LIMIT', 0, 1000)) do leave(id) end
for at = 8, #ARGV, 4 do
  local name, id, value, lifetime = ARGV[at], ARGV[at + 1], ARGV[at + 2], tonumber(ARGV[at + 3])
  if redis.call('HEXISTS', KEYS[2], id) == 1 then leave(id) end
  redis.call('SET', ARGV[6] .. id, value, 'PX', lifetime)
  redis.call('ZADD', KEYS[1], tonumber(ARGV[1]) + lifetime, id)
  redis.call('ZADD', ARGV[7] .. name, tonumber(ARGV[1]) + lifetime, id)
  redis.call('HSET', KEYS[2], id, #value)
  redis.call('HINCRBY', KEYS[3], name, #value)
  redis.call('HINCRBY', KEYS[3], '', #value)
  shrink(ARGV[7] .. name, name, tonumber(ARGV[2]), tonumber(ARGV[3]))
end
shrink(KEYS[1], '', tonumber(ARGV[4]), tonumber(ARGV[5]))
return redis.call('ZCARD', KEYS[1])
"""
# KEYS: expiries, sizes, totals, the function's expiries. ARGV: function, prefix of answers.
_FORGET = """
for _, id in ipairs(redis.call('ZRANGE', KEYS[4], 0, -1)) do
  redis.call('HINCRBY', KEYS[3], '', -tonumber(redis.call('HGET', KEYS[2], id) or '0'))
  redis.call('HDEL', KEYS[2], id)
  redis.call('ZREM', KEYS[1], id)
  redis.call('DEL', ARGV[2] .. id)
end
redis.call('HDEL', KEYS[3], ARGV[1])
return redis.call('DEL', KEYS[4])
"""


class Answer(msgspec.Struct, array_like=True, frozen=True, gc=False):
    """A good answer. version: the number of the version that gave it, as edges print it; at_s: when, unix seconds."""

    body: bytes
    content_type: str
    version: str
    at_s: float


class Caps(msgspec.Struct, frozen=True, kw_only=True):
    """Most entries, and most bytes of answers, that Redis holds: of one function, and of all together."""

    function_entries: int
    function_bytes: int
    entries: int
    num_bytes: int


class Keeping(msgspec.Struct, frozen=True):
    """An answer to be kept under `function:hash` for `lifetime_s`."""

    id: str
    answer: Answer
    lifetime_s: float


async def write_answers(redis: redis_async.Redis, keepings: Sequence[Keeping], caps: Caps, now_s: float) -> int:
    """Every answer is kept unless a cap wants it gone; return how many there are of all functions. One round trip.

    now_s: unix time. Raises: StoreUnavailable.
    """
    args: list[Any] = [int(now_s * 1000), caps.function_entries, caps.function_bytes, caps.entries, caps.num_bytes]
    args += [keys.answer(""), keys.answers_of("")]
    for keeping in keepings:
        name = keeping.id.rpartition(":")[0]
        args += [name, keeping.id, msgspec.msgpack.encode(keeping.answer), max(1, int(keeping.lifetime_s * 1000))]
    names = (keys.ANSWERS, keys.ANSWER_SIZES, keys.ANSWER_TOTALS)
    with translating("the kept answers"):
        return int(await redis.eval(_WRITE, len(names), *names, *args))


async def read_answer(redis: redis_async.Redis, answer_id: str) -> Answer | None:
    """Return what is kept under `function:hash`. Raises: StoreUnavailable."""
    with translating("the kept answers"):
        data: Any = await redis.get(keys.answer(answer_id))
    return None if data is None else msgspec.msgpack.decode(data, type=Answer)


async def forget_answers(redis: redis_async.Redis, names: Iterable[str]) -> None:
    """No answer of these functions is kept. Raises: StoreUnavailable."""
    for name in names:
        found = (keys.ANSWERS, keys.ANSWER_SIZES, keys.ANSWER_TOTALS, keys.answers_of(name))
        with translating("the kept answers"):
            await redis.eval(_FORGET, len(found), *found, name, keys.answer(""))
