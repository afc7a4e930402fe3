"""The newest minutes of the request log in Redis: frames in a stream per function, capped by bytes, records and age.

This module does not know the spool or object storage: what is trimmed here is, or will be, there.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec
import redis as redis_sync
import redis.asyncio as redis_async

from samovar_storage import keys
from samovar_storage.failures import translating
from samovar_storage.requestlog.rows import Frame, decode_frame

# KEYS: stream, hash of its size. ARGV: frame, records in it, max bytes, max records, lifetime ms.
# The frame is added; then the oldest go until all three caps hold.
_ADD = """
redis.call('XADD', KEYS[1], '*', 'f', ARGV[1], 'n', ARGV[2])
local bytes = redis.call('HINCRBY', KEYS[2], 'bytes', #ARGV[1])
local records = redis.call('HINCRBY', KEYS[2], 'records', ARGV[2])
local time = redis.call('TIME')
local oldest_ms = time[1] * 1000 - ARGV[5]
while true do
  local first = redis.call('XRANGE', KEYS[1], '-', '+', 'COUNT', 1)[1]
  if not first then break end
  local is_old = tonumber(string.match(first[1], '^%d+')) < oldest_ms
  if not is_old and bytes <= tonumber(ARGV[3]) and records <= tonumber(ARGV[4]) then break end
  redis.call('XDEL', KEYS[1], first[1])
  bytes = redis.call('HINCRBY', KEYS[2], 'bytes', -#first[2][2])
  records = redis.call('HINCRBY', KEYS[2], 'records', -first[2][4])
end
redis.call('PEXPIRE', KEYS[1], ARGV[5])
redis.call('PEXPIRE', KEYS[2], ARGV[5])
return records
"""


class LiveFrame(NamedTuple):
    """A packed frame on its way to Redis."""

    function: str
    data: bytes
    num_records: int


async def add_frames(redis: redis_async.Redis, frames: Sequence[LiveFrame], max_bytes: int) -> None:
    """The frames are the newest of their functions, each of which keeps at most `max_bytes`; one round trip."""
    if not frames:
        return
    caps: list[Any] = [max_bytes, keys.MAX_LIVE_REQUESTS, keys.LIVE_REQUESTS_LIFETIME_S * 1000]
    with translating("the newest requests"):
        async with redis.pipeline(transaction=False) as pipe:
            for frame in frames:
                names = [keys.requests(frame.function), keys.requests_size(frame.function)]
                pipe.eval(_ADD, 2, *names, frame.data, frame.num_records, *caps)
            await pipe.execute()


def read_frames(redis: redis_sync.Redis, function: str, since_s: float) -> list[Frame]:
    """Return the frames of a function that were written at or after `since_s` (unix), oldest first."""
    with translating("the newest requests"):
        rows: Any = redis.xrange(keys.requests(function), min=max(0, int(since_s * 1000)))
    frames = []
    for _, fields in rows:
        try:
            frames.append(decode_frame(fields[b"f"]))
        except msgspec.DecodeError:
            continue  # of a newer or older release; it is in object storage too
    return frames
