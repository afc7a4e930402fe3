"""When a cron schedule is due, in a time zone: five fields as Debian's cron reads them, or a word such as `@daily`.

    minute 0-59   hour 0-23   day 1-31, L, LW   month 1-12, JAN-DEC   weekday 0-7, SUN-SAT, FRI#2, 5L   all: * , - /

When clocks are put forward, what falls into the gap is due once, at the first instant after it; when they are put back,
what falls into the hour that comes twice is due once, the first time. A schedule whose minute or hour begins with `*`
means intervals: it is due at each of them that really passes, in both of those hours, and none in the gap.
The calendar is cronsim's. This module does not know what is run, nor the present time.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, tzinfo
from itertools import islice, takewhile
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from cronsim import CronSim, CronSimError

from samovar.errors import InvalidInput

WORDS = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}
MAX_CHARS = 200
_SOME_DAY = datetime(2024, 1, 1, tzinfo=UTC)


def check_schedule(text: str) -> None:
    """Return if `text` is a schedule that is due at some time. Raises: InvalidInput saying which part is wrong."""
    if next(_calendar(text, _SOME_DAY), None) is None:
        raise InvalidInput(f"the schedule {text!r} is never due", path="$.schedule")


def check_zone(name: str) -> None:
    """Return if `name` is a time zone known here, such as Europe/Lisbon. Raises: InvalidInput with near names."""
    _zone(name)


def due_after(schedule: str, tz: str, after_s: float, most: int) -> list[float]:
    """Return the next `most` instants (unix seconds) at which a schedule is due, rising, all later than `after_s`.

    Raises: InvalidInput.
    """
    start = datetime.fromtimestamp(after_s, _zone(tz))
    return [*islice(_rising(_calendar(schedule, start), after_s), most)]


def due_between(schedule: str, tz: str, after_s: float, until_s: float, most: int) -> list[float]:
    """Return the newest `most` instants (unix seconds) in (after_s, until_s] at which a schedule is due, rising.

    The cost depends on `most`, not on how long ago `after_s` is. Raises: InvalidInput.
    """
    zone = _zone(tz)
    # looking back only finds a place to begin: next to a change of clocks it misses some
    back = (due.timestamp() for due in _calendar(schedule, datetime.fromtimestamp(until_s, zone), reverse=True))
    recent = [*takewhile(lambda due_s: due_s > after_s, islice(back, most + 1))]
    begin_s = recent[-1] - 1 if len(recent) > most else after_s
    ahead = _rising(_calendar(schedule, datetime.fromtimestamp(begin_s, zone)), begin_s)
    return [*takewhile(lambda due_s: due_s <= until_s, ahead)][-most:]


def _rising(found: Iterable[datetime], after_s: float) -> Iterator[float]:
    """Yield those that are later than all before: the second of two hours alike begins before the first ends."""
    for due in found:
        due_s = due.timestamp()
        if due_s > after_s:
            yield due_s
            after_s = due_s


def _calendar(text: str, start: datetime, reverse: bool = False) -> CronSim:
    fields = WORDS.get(text.strip().lower(), text)
    if len(text) > MAX_CHARS or len(fields.split()) != 5:
        rule = f"five fields (minute hour day month weekday), or one of {', '.join(WORDS)}"
        raise InvalidInput(f"the schedule {text[:MAX_CHARS]!r} is not {rule}", path="$.schedule")
    try:
        return CronSim(fields, start, reverse)
    except (CronSimError, ValueError, TypeError, AssertionError, IndexError) as error:
        what = str(error) if isinstance(error, CronSimError) else "cannot be read"
        raise InvalidInput(f"the schedule {text!r}: {what}", path="$.schedule") from error


def _zone(name: str) -> tzinfo:
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as error:
        near = difflib.get_close_matches(name[:100], available_timezones(), n=3, cutoff=0.5)
        hint = f"; did you mean {', '.join(near)}?" if near else ""
        raise InvalidInput(f"no time zone is named {name[:100]!r}{hint}", path="$.tz", near=near) from error
