"""What an answer to a delivery means, and when the next attempt is: pure.

| answer                        | event                        | host                           | endpoint
|-------------------------------|------------------------------|--------------------------------|------------------------
| 2xx                           | delivered                    | well                           | well
| 410                           | given up                     | well                           | disabled at once
| 429, 503 with Retry-After     | again then                   | gets nothing until then        | fails
| any other status, a redirect  | again after a pause          | well: it answers               | fails
| nothing, within the time      | again after a pause          | one at a time, after a pause   | fails
| its address is refused        | again after a pause          | well                           | fails

An endpoint that fails for a day is disabled, an event that was not delivered within a day is given up: both by the
store. Pauses double from 5 s to 1 h for an event, to 60 s for a host, with full jitter.
This module does not know HTTP libraries or Redis.
"""

from __future__ import annotations

from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import Literal

from samovar.values import Struct
from samovar_storage.jobs.webhooks import Event, Failure

FIRST_PAUSE_S, MAX_PAUSE_S = 5.0, 3600.0
MAX_SILENCE_S = 60.0
MAX_RETRY_AFTER_S = 86_400.0
MAX_ERROR = 300
_MAX_DOUBLINGS = 30


class Answer(Struct, frozen=True, kw_only=True):
    """What came back. status: of HTTP, 0 = nothing came, and `error` says why. retry_after: that header, "" = none.

    kind: "answered"; "silent" = no answer in time, or no connection; "refused" = its address may not be called.
    """

    status: int = 0
    retry_after: str = ""
    error: str = ""
    kind: Literal["answered", "silent", "refused"] = "answered"


def failure_of(event: Event, answer: Answer, body: bytes, now_s: float, luck: float) -> Failure | None:
    """Return what is to be recorded of a delivery that failed, None for one that was delivered.

    Args:
        now_s: unix seconds. luck: drawn from [0, 1), for the jitter.
    """
    if 200 <= answer.status < 300:
        return None
    error = (answer.error or f"answered {answer.status}")[:MAX_ERROR]
    asked_s = retry_after_s(answer.retry_after, now_s)
    retry_s = max(asked_s, pause_s(event.attempts, MAX_PAUSE_S, luck))
    silence_s = 0.0
    if answer.kind == "silent":
        silence_s = max(1.0, pause_s(event.lane_failures, MAX_SILENCE_S, luck))
    elif answer.status in (429, 503):
        silence_s = asked_s
    return Failure(error=error, retry_s=retry_s, silence_s=silence_s, body=body, is_gone=answer.status == 410)


def pause_s(num_failures: int, most_s: float, luck: float) -> float:
    """Return how long to wait after `num_failures` earlier failures (>= 0), seconds. luck: within [0, 1)."""
    longest_s = min(most_s, FIRST_PAUSE_S * 2.0 ** min(num_failures, _MAX_DOUBLINGS))
    return luck * longest_s


def retry_after_s(text: str, now_s: float) -> float:
    """Return the seconds that a Retry-After header asks for, at most a day; 0 for one that cannot be read.

    Source: RFC 9110, 10.2.3: seconds, or a date.
    """
    text = text.strip()
    if text.isascii() and text.isdecimal():
        return min(MAX_RETRY_AFTER_S, float(text[:10]))
    try:
        then = parsedate_to_datetime(text)
    except (ValueError, TypeError, IndexError):
        return 0.0
    then_s = (then if then.tzinfo else then.replace(tzinfo=UTC)).timestamp()
    return min(MAX_RETRY_AFTER_S, max(0.0, then_s - now_s))
