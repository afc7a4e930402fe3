"""The first answer to a request with an Idempotency-Key: claimed before anything is done, kept once it is known.

    claim ──► mine ──► keep ──► answered, for everybody who comes with the same request until it expires
      │         └────► release ──► free: whoever comes next has it, under the same seed
      └─► running, answered, reused (another request came with the key), full

A claim is its owner's (`process:number`) while the process beats. Nobody's silence is judged by a clock that may
be set: whoever waits sees the count of beats not change for a while by a clock of its own, and says which count that
was. The seed outlives owners: what is named after it is named the same by the next one.
This module does not know requests, nor what is done for them.
"""

from __future__ import annotations

import asyncio
import hashlib
import itertools
from collections.abc import Callable
from secrets import token_hex
from typing import Any, Literal, NamedTuple

import msgspec
import redis.asyncio as redis_async

from samovar_storage import keys
from samovar_storage.failures import translating
from samovar_storage.objects import ObjectStore

CLAIM_BYTES = 512  # what a claim takes in Redis beside its answer
OBJECTS = "idempotency/"
HOUR_S = 3600
MAX_ASKS = 16  # at a time: a burst does not take every connection to Redis

# In front of each script. KEYS: claim, bytes kept of the API key (hash hour → bytes), owners (hash process → beats).
_COMMON = """
local time = redis.call('TIME')
local now_ms = time[1] * 1000 + math.floor(time[2] / 1000)
local hour = math.floor(now_ms / 3600000)
local function process_of(owner) return string.match(owner, '^[^:]+') end
local function charge(bytes, lifetime_ms)
  redis.call('HINCRBY', KEYS[2], hour, bytes)
  redis.call('PEXPIRE', KEYS[2], lifetime_ms + 3600000)
end
local function kept_bytes(lifetime_ms)
  local total, rows = 0, redis.call('HGETALL', KEYS[2])
  for at = 1, #rows, 2 do
    if tonumber(rows[at]) < hour - math.ceil(lifetime_ms / 3600000) then
      redis.call('HDEL', KEYS[2], rows[at])
    else
      total = total + tonumber(rows[at + 1])
    end
  end
  return total
end
"""
# ARGV: print, owner, seed, lifetime ms, bytes of a claim, most bytes of the API key, owner and beats seen silent.
# An owner that has the claim gets it again: its answer was lost.
_CLAIM = (
    "#!lua\n"
    + _COMMON
    + """
local found = redis.call('HMGET', KEYS[1], 'print', 'owner', 'answer', 'seed', 'made_ms')
local lifetime_ms = tonumber(ARGV[4])
if found[1] then
  if found[1] ~= ARGV[1] then return {'reused'} end
  if found[3] then return {'answered', found[3]} end
  if found[2] ~= '' and found[2] ~= ARGV[2] then
    local process = process_of(found[2])
    local beats = redis.call('HGET', KEYS[3], process) or ''
    if ARGV[7] ~= found[2] or ARGV[8] ~= beats then return {'running', found[2], beats} end
    redis.call('HDEL', KEYS[3], process)
  end
  redis.call('HSET', KEYS[1], 'owner', ARGV[2])
  redis.call('HSETNX', KEYS[3], process_of(ARGV[2]), 0)
  return {'mine', found[4], found[5]}
end
if kept_bytes(lifetime_ms) + tonumber(ARGV[5]) > tonumber(ARGV[6]) then return {'full'} end
charge(ARGV[5], lifetime_ms)
redis.call('HSET', KEYS[1], 'print', ARGV[1], 'owner', ARGV[2], 'seed', ARGV[3], 'made_ms', now_ms)
redis.call('PEXPIRE', KEYS[1], lifetime_ms)
redis.call('HSETNX', KEYS[3], process_of(ARGV[2]), 0)
return {'mine', ARGV[3], tostring(now_ms)}
"""
)
# ARGV: print, owner, answer, lifetime ms, channel, most bytes of the API key. Returns 1 if it is kept, 0 if it would be
# too much, or the answer that somebody else has kept meanwhile ('' if none). A claim that Redis lost is made again.
_KEEP = (
    _COMMON
    + """
local found = redis.call('HMGET', KEYS[1], 'print', 'owner', 'answer')
if found[1] and (found[1] ~= ARGV[1] or found[3] or found[2] ~= ARGV[2]) then return found[3] or '' end
if kept_bytes(tonumber(ARGV[4])) + #ARGV[3] > tonumber(ARGV[6]) then return 0 end
charge(#ARGV[3], tonumber(ARGV[4]))
redis.call('HSET', KEYS[1], 'print', ARGV[1], 'owner', '', 'answer', ARGV[3])
redis.call('PEXPIRE', KEYS[1], ARGV[4])
redis.call('PUBLISH', ARGV[5], '{"kind":"answered"}')
return 1
"""
)
_KEEP_SMALL = "#!lua flags=allow-oom\n" + _KEEP
_KEEP_LARGE = "#!lua\n" + _KEEP
# KEYS: claim. ARGV: owner, channel.
_RELEASE = """#!lua flags=allow-oom
if redis.call('HGET', KEYS[1], 'owner') ~= ARGV[1] then return 0 end
redis.call('HSET', KEYS[1], 'owner', '')
redis.call('PUBLISH', ARGV[2], '{"kind":"released"}')
return 1
"""
_ANY_BYTES = 2**53
_SMALL_BYTES = 4096


class Slot(NamedTuple):
    """One Idempotency-Key of one API key on one route. name: what its claim is called in Redis."""

    key_id: str
    name: str


class Kept(msgspec.Struct, array_like=True, frozen=True):
    """An answer: status, headers, body; or where the body lies in object storage."""

    status: int
    headers: list[tuple[bytes, bytes]]
    body: bytes
    stored: str = ""


class Limits(msgspec.Struct, frozen=True, kw_only=True):
    """lifetime_s: how long an answer is kept. key_bytes: most that Redis keeps of one API key's. inline_bytes: a larger
    body lies in object storage."""

    lifetime_s: float = 24 * 3600.0
    key_bytes: int = 64 << 20
    inline_bytes: int = 256 << 10


class Claim(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a claim.

    seed, made_ms: of one that is `mine`: the same for all owners it has had. owner: of one that is mine, or runs.
    beats: of the process that runs it. kept: of one that is answered.
    """

    state: Literal["mine", "running", "answered", "reused", "full"]
    seed: str = ""
    made_ms: int = 0
    kept: Kept | None = None
    owner: str = ""
    beats: str = ""


def slot_of(key_id: str, route: str, function: str, text: bytes) -> Slot:
    """Return the slot of an Idempotency-Key's value: the API key's own, on this route and function."""
    digest = hashlib.sha256(text).hexdigest()[:32]
    return Slot(key_id, f"{key_id}:{route}:{function}:{digest}")


def new_ids(claim: Claim) -> Callable[[int], str]:
    """Return what stands in for `layout.new_job_id`: the n-th id it gives is the same for each owner of the claim."""
    numbers = itertools.count()

    def new_id(_now_ms: int) -> str:
        digest = hashlib.sha256(f"{claim.seed}:{next(numbers)}".encode()).hexdigest()
        return f"{claim.made_ms:012x}{digest[:12]}"

    return new_id


class Idempotency:
    """The claims of one process."""

    def __init__(self, redis: redis_async.Redis, limits: Limits) -> None:
        self.limits = limits
        self._redis = redis
        self._process = token_hex(8)
        self._numbers = itertools.count(1)
        self._asking = asyncio.Semaphore(MAX_ASKS)

    async def claim(self, slot: Slot, print_: str, silent: Claim | None = None) -> Claim:
        """Claim a slot for a request with this fingerprint. silent: a claim seen `running` whose owner has not beaten
        since: it is taken over.

        Raises: StoreUnavailable; StoreFull when Redis has no memory left.
        """
        owner, limits = f"{self._process}:{next(self._numbers)}", self.limits
        seen = (silent.owner, silent.beats) if silent is not None else ("", "")
        claiming = (print_, owner, token_hex(8), self._lifetime_ms, CLAIM_BYTES, limits.key_bytes)
        found = await self._eval(_CLAIM, slot, *claiming, *seen)
        state, more = found[0].decode(), [part.decode() for part in found[1:] if found[0] != b"answered"]
        if state == "mine":
            return Claim(state="mine", owner=owner, seed=more[0], made_ms=int(more[1]))
        if state == "answered":
            return Claim(state="answered", kept=msgspec.msgpack.decode(found[1], type=Kept))
        if state == "running":
            return Claim(state="running", owner=more[0], beats=more[1])
        return Claim(state=state)

    async def keep(self, slot: Slot, print_: str, claim: Claim, kept: Kept) -> Kept | bool:
        """Keep the answer of a claim that is mine; return True. False: it would be more than Redis may keep of the API
        key. The answer of another owner, if that one took the claim over and was first.

        A small answer is kept although Redis is full. Raises: StoreUnavailable, StoreFull.
        """
        data = msgspec.msgpack.encode(kept)
        is_small = len(data) <= _SMALL_BYTES
        most = _ANY_BYTES if is_small else self.limits.key_bytes
        arguments = (print_, claim.owner, data, self._lifetime_ms, keys.idempotency_channel(slot.name), most)
        found = await self._eval(_KEEP_SMALL if is_small else _KEEP_LARGE, slot, *arguments)
        if isinstance(found, bytes):
            return msgspec.msgpack.decode(found, type=Kept) if found else True
        return bool(found)

    async def release(self, slot: Slot, claim: Claim) -> None:
        """Whoever comes next with the request may claim it. Raises: StoreUnavailable."""
        await self._eval(_RELEASE, slot, claim.owner, keys.idempotency_channel(slot.name))

    async def beat(self) -> None:
        """The claims of this process hold on. Raises: StoreUnavailable."""
        with translating("the Idempotency-Keys"):
            await self._redis.hincrby(keys.IDEMPOTENCY_OWNERS, self._process, 1)

    async def leave(self) -> None:
        """This process holds no claims. Raises: StoreUnavailable."""
        with translating("the Idempotency-Keys"):
            await self._redis.hdel(keys.IDEMPOTENCY_OWNERS, self._process)

    @property
    def _lifetime_ms(self) -> int:
        return int(self.limits.lifetime_s * 1000)

    async def _eval(self, script: str, slot: Slot, *arguments: Any) -> Any:
        async with self._asking:
            return await self._ask(script, slot, arguments)

    async def _ask(self, script: str, slot: Slot, arguments: tuple[Any, ...]) -> Any:
        names = (keys.idempotency(slot.name), keys.idempotency_bytes(slot.key_id), keys.IDEMPOTENCY_OWNERS)
        with translating("the Idempotency-Keys"):
            return await self._redis.eval(script, len(names), *names, *arguments)


def object_key(slot: Slot, claim: Claim, lifetime_s: float, now_s: float) -> str:
    """Return where a body lies that is kept until `now_s + lifetime_s`, unix seconds: keys sort by when they expire."""
    hour = int((now_s + lifetime_s) // HOUR_S) + 1
    digest = hashlib.sha256(f"{slot.name}:{claim.owner}".encode()).hexdigest()[:32]
    return f"{OBJECTS}{hour:010d}/{digest}"


def delete_expired(objects: ObjectStore, now_s: float) -> int:
    """Delete the bodies whose time is over; return how many. Blocking. Raises: StoreUnavailable."""
    num_deleted = 0
    for info in objects.list(OBJECTS):
        if info.key >= f"{OBJECTS}{int(now_s // HOUR_S) + 1:010d}/":
            break
        objects.delete(info.key)
        num_deleted += 1
    return num_deleted
