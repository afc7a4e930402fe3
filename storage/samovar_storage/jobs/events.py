"""What happened to a job, in order: a stream for what its handler said, all else from its record.

    0-1           queued                     synthesised: it was accepted
    T-0           started                    synthesised: attempt under the fencing token T
    T-1, T-2, …   progress log output retry  the stream, numbered through the whole job
    T-1e12+n      queued                     only live: it waits (again), and what it waits for
    (T+1)-0       finished failed canceled   synthesised: T was the last token

An id is a token and a number, so ids rise whatever clocks do, and a replay gives every event the id it had before. Few
jobs have a stream; it holds about the newest MAX_EVENTS and goes ten minutes after the job has ended. This module does
not know who listens.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
import redis.asyncio as redis_async

from samovar.jobs import TERMINAL, JobEvent, JobState, Progress
from samovar_storage import keys
from samovar_storage.failures import translating
from samovar_storage.jobs.layout import job_key
from samovar_storage.jobs.records import JobRecord

MAX_EVENTS = 1000
MAX_LINE_BYTES = 8 * 1024
MAX_MESSAGE_BYTES = 1024
MAX_ITEM_BYTES = 16 * 1024
LIFETIME_S = 7 * 24 * 3600  # since the last event of a job that goes on
ENDED_LIFETIME_S = 600
_WAITING_FROM = 10**12  # numbers of events about waiting: behind all that an attempt says
_NUMBER_BITS = 64

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


class EventId(NamedTuple):
    """Where an event stands among those of its job. token: of the attempt, 0 before the first."""

    token: int
    number: int

    def __str__(self) -> str:
        return f"{self.token}-{self.number}"


START = EventId(0, 0)
ACCEPTED = EventId(0, 1)


class _Said(msgspec.Struct):
    """An event as the stream holds it."""

    kind: str
    at_s: float
    data: dict[str, Any] = {}


def parse_id(text: str) -> EventId:
    """Return the id that a client saw last; START for what is none of ours, so that it gets everything."""
    token, _, number = text.partition("-")
    if not (token.isascii() and token.isdecimal() and number.isascii() and number.isdecimal()):
        return START
    found = EventId(int(token), int(number))
    return found if max(found) < 1 << (_NUMBER_BITS - 1) else START


# ---- what a worker says ------------------------------------------------------------------------------------------


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


# ---- the whole story ---------------------------------------------------------------------------------------------


def history(record: JobRecord, said: Iterable[JobEvent], after: EventId = START) -> list[JobEvent]:
    """Return every event of a job that comes after an id, in order.

    said: of its stream, read after the record, so that nothing of a job that has ended is missing.
    """
    said = list(said)
    accepted = JobEvent(id=str(ACCEPTED), kind="queued", at_s=record.spec.created_at_s)
    events = [accepted, *_starts(record, said), *said]
    if record.state in TERMINAL:
        events.append(_end(record))
    events.sort(key=lambda event: parse_id(event.id))
    return [event for event in events if parse_id(event.id) > after]


def waiting_event(record: JobRecord, number: int, data: dict[str, Any], at_s: float) -> JobEvent:
    """Return the live event of a job that waits, and of what for. number: of such events in a row, >= 0."""
    event_id = EventId(record.token, _WAITING_FROM + number)
    return JobEvent(id=str(event_id), kind="queued", at_s=at_s, data=data)


def end_id(record: JobRecord) -> EventId:
    """Return the id of the event that a job has ended, or will have if it is not started again."""
    return EventId(record.token + 1, 0)


def next_number(after: EventId) -> int:
    """Return which number the first event about waiting has for a client whose last event had this id."""
    return max(0, after.number + 1 - _WAITING_FROM)


def _starts(record: JobRecord, said: Sequence[JobEvent]) -> list[JobEvent]:
    """Return the starts of all attempts that are known of: each that said something, and the newest."""
    starts: dict[int, JobEvent] = {}
    for event in said:
        token = parse_id(event.id).token
        if event.kind == "retry":
            data = {"attempt": event.data.get("attempt", 0)}
            starts[token] = _start(token, float(event.data.get("started_at_s") or event.at_s), data)
        elif token not in starts:
            starts[token] = _start(token, event.at_s, {})
    has_started = record.state is JobState.STARTED or (record.state in TERMINAL and record.attempt > 0)
    if has_started and record.started_at_s:
        data = {"attempt": record.attempt} | ({"version": record.version} if record.version else {})
        starts[record.token] = _start(record.token, record.started_at_s, data)
    return [*starts.values()]


def _start(token: int, at_s: float, data: dict[str, Any]) -> JobEvent:
    return JobEvent(id=str(EventId(token, 0)), kind="started", at_s=at_s, data=data)


def _end(record: JobRecord) -> JobEvent:
    data: dict[str, Any] = {"attempt": record.attempt}
    if record.state is JobState.FINISHED:
        data |= {"result_bytes": record.result_bytes, "result_type": record.result_type}
    elif record.error is not None:
        data["error"] = record.error
    return JobEvent(id=str(end_id(record)), kind=str(record.state), at_s=record.ended_at_s, data=data)
