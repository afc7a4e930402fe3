"""The whole story of a job: what its handler said (`events.py`), all else from its record.

    0-1           queued                     synthesised: it was accepted
    T-0           started                    synthesised: attempt under the fencing token T
    T-1, T-2, …   progress log output retry  the stream, numbered through the whole job
    T-1e12+n      queued                     only live: it waits (again), and what it waits for
    (T+1)-0       finished failed canceled   synthesised: T was the last token

An id is a token and a number, so ids rise whatever clocks do, and a replay gives every event the id it had before.
Pure; this module does not know where events are kept, nor who listens.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any, NamedTuple

from samovar.jobs import TERMINAL, JobEvent, JobState
from samovar_storage.jobs.records import JobRecord

_WAITING_FROM = 10**12  # numbers of events about waiting: behind all that an attempt says
_NUMBER_BITS = 64


class EventId(NamedTuple):
    """Where an event stands among those of its job. token: of the attempt, 0 before the first."""

    token: int
    number: int

    def __str__(self) -> str:
        return f"{self.token}-{self.number}"


START = EventId(0, 0)
ACCEPTED = EventId(0, 1)


def parse_id(text: str) -> EventId:
    """Return the id that a client saw last; START for what is none of ours, so that it gets everything."""
    token, _, number = text.partition("-")
    if not (token.isascii() and token.isdecimal() and number.isascii() and number.isdecimal()):
        return START
    found = EventId(int(token), int(number))
    return found if max(found) < 1 << (_NUMBER_BITS - 1) else START


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
