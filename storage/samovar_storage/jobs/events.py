"""What the handler of a job says meanwhile: a stream, told at once. Few jobs have one.

It holds about the newest MAX_EVENTS and goes ten minutes after the job has ended. Its entries are numbered through the
whole job and named `token-number` (`story.py`). This module does not know who listens.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec
import redis.asyncio as redis_async

from samovar.jobs import JobEvent, Progress
from samovar_storage import keys
from samovar_storage.failures import translating
from samovar_storage.jobs.layout import job_key
from samovar_storage.jobs.story import START, EventId

MAX_EVENTS = 1000
MAX_LINE_BYTES = 8 * 1024
MAX_MESSAGE_BYTES = 1024
MAX_ITEM_BYTES = 16 * 1024
LIFETIME_S = 7 * 24 * 3600  # since the last event of a job that goes on
ENDED_LIFETIME_S = 600

# KEYS: job, its stream. ARGV: token, most events, lifetime ms, channel, and each event as JSON without its id.
# Returns how many were added: none of a job that has ended, or that another attempt holds.
_APPEND = """#!lua
local job = redis.call('HMGET', KEYS[1], 'status', 'sv_token')
if job[2] ~= ARGV[1] or job[1] == 'finished' or job[1] == 'failed' or job[1] == 'canceled' then return 0 end
for at = 5, #ARGV do
  local id = ARGV[1] .. '-' .. string.format('%d', redis.call('HINCRBY', KEYS[1], 'sv_said', 1))
  redis.call('XADD', KEYS[2], 'MAXLEN', '~', ARGV[2], id, 'e', ARGV[at])
  redis.call('PUBLISH', ARGV[4], '{"id":"' .. id .. '",' .. string.sub(ARGV[at], 2))
end
redis.call('PEXPIRE', KEYS[2], ARGV[3])
return #ARGV - 4
"""


class _Said(msgspec.Struct):
    """An event as the stream holds it."""

    kind: str
    at_s: float
    data: dict[str, Any] = {}


def log_event(line: str, at_s: float) -> JobEvent:
    """Return the event of a line that the handler logged; `cut_bytes` says how much of a long one is missing."""
    return JobEvent(id="", kind="log", at_s=at_s, data=_cut("line", line, MAX_LINE_BYTES))


def progress_event(progress: Progress, at_s: float) -> JobEvent:
    """Return the event of how far the job is."""
    data = {"fraction": progress.fraction, **_cut("message", progress.message, MAX_MESSAGE_BYTES)}
    return JobEvent(id="", kind="progress", at_s=at_s, data=data)


def output_event(item: bytes, at_s: float) -> JobEvent:
    """Return the event of one item (JSON) of a handler that yields; of a large one only its size is told."""
    if len(item) > MAX_ITEM_BYTES:
        return JobEvent(id="", kind="output", at_s=at_s, data={"omitted_bytes": len(item)})
    return JobEvent(id="", kind="output", at_s=at_s, data={"item": msgspec.Raw(item)})


def retry_event(
    attempt: int, started_at_s: float, error: Mapping[str, Any] | None, due_at_s: float, at_s: float
) -> JobEvent:
    """Return the event of an attempt that came to nothing and is repeated. attempt: which it was, >= 1.

    started_at_s, due_at_s: when it began, and when the next may, unix seconds. error: a problem document.
    """
    said = {"code": (error or {}).get("code", ""), **_cut("detail", str((error or {}).get("detail", "")), 2048)}
    data = {"attempt": attempt, "started_at_s": started_at_s, "due_at_s": due_at_s, "error": said}
    return JobEvent(id="", kind="retry", at_s=at_s, data=data)


async def append_events(redis: redis_async.Redis, job_id: str, token: int, events: Sequence[JobEvent]) -> int:
    """The events are told and kept in this order, if `token` is that of the job's newest attempt and the job has not
    ended; return how many were. One round trip.

    Raises: StoreUnavailable.
    """
    if not events:
        return 0
    names = (job_key(job_id), keys.job_events(job_id))
    told = (_encode(event) for event in events)
    with translating("the events of a job"):
        arguments: tuple[Any, ...] = (token, MAX_EVENTS, LIFETIME_S * 1000, keys.job_channel(job_id), *told)
        return int(await redis.eval(_APPEND, len(names), *names, *arguments))


async def read_events(
    redis: redis_async.Redis, job_id: str, after: EventId = START, count: int = MAX_EVENTS
) -> list[JobEvent]:
    """Return up to `count` events of the stream that come after an id, oldest first. Raises: StoreUnavailable."""
    with translating("the events of a job"):
        rows: Any = await redis.xrange(keys.job_events(job_id), f"({after}", "+", count=count)
    return [_decode(entry_id.decode(), fields[b"e"]) for entry_id, fields in rows]


def _encode(event: JobEvent) -> bytes:
    return msgspec.json.encode(_Said(event.kind, event.at_s, event.data))


def _decode(entry_id: str, data: bytes) -> JobEvent:
    said = msgspec.json.decode(data, type=_Said)
    return JobEvent(id=entry_id, kind=said.kind, at_s=said.at_s, data=said.data)


def _cut(name: str, text: str, most: int) -> dict[str, Any]:
    data = text.encode()
    if len(data) <= most:
        return {name: text}
    return {name: data[:most].decode(errors="ignore"), "cut_bytes": len(data) - most}
