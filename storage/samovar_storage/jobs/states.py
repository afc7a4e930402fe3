"""What a job's state may become, as one table. The scripts carry it out; a test drives both with the same events.

|state    |take   |finish  |fail  |stop    |repeat|put off  |reap  |cancel  |due   |free  |expire|lack  |
|---------|-------|--------|------|--------|------|---------|------|--------|------|------|------|------|
|queued   |started|        |      |        |      |         |      |canceled|      |      |failed|      |
|scheduled|       |        |      |        |      |         |      |canceled|queued|      |failed|      |
|deferred |       |        |      |        |      |         |      |canceled|      |queued|      |failed|
|started  |       |finished|failed|canceled|queued|scheduled|queued|started |      |      |      |      |

finished, failed and canceled are final: nothing happens to them. A started job that is cancelled goes on until its
worker has stopped it; then nothing makes it wait again (`Standing.canceling`).
This module does not know Redis, nor who decides what happens.
"""

from __future__ import annotations

from enum import StrEnum
from typing import NamedTuple

from samovar.jobs import TERMINAL, JobState


class Event(StrEnum):
    """repeat, put off: settled as queued, as scheduled. due: its instant came. free: nothing is left to wait for.
    expire: its deadline passed before it ran. lack: a job that it needs did not finish."""

    TAKE = "take"
    FINISH = "finish"
    FAIL = "fail"
    STOP = "stop"
    REPEAT = "repeat"
    PUT_OFF = "put off"
    REAP = "reap"
    CANCEL = "cancel"
    DUE = "due"
    FREE = "free"
    EXPIRE = "expire"
    LACK = "lack"


class Standing(NamedTuple):
    """canceling: asked to stop while it ran."""

    state: JobState
    canceling: bool = False


_Q, _S, _D, _R = JobState.QUEUED, JobState.SCHEDULED, JobState.DEFERRED, JobState.STARTED
TABLE: dict[tuple[JobState, Event], JobState] = {
    (_Q, Event.TAKE): JobState.STARTED,
    (_Q, Event.CANCEL): JobState.CANCELED,
    (_Q, Event.EXPIRE): JobState.FAILED,
    (_S, Event.CANCEL): JobState.CANCELED,
    (_S, Event.DUE): JobState.QUEUED,
    (_S, Event.EXPIRE): JobState.FAILED,
    (_D, Event.CANCEL): JobState.CANCELED,
    (_D, Event.FREE): JobState.QUEUED,
    (_D, Event.LACK): JobState.FAILED,
    (_R, Event.FINISH): JobState.FINISHED,
    (_R, Event.FAIL): JobState.FAILED,
    (_R, Event.STOP): JobState.CANCELED,
    (_R, Event.REPEAT): JobState.QUEUED,
    (_R, Event.PUT_OFF): JobState.SCHEDULED,
    (_R, Event.REAP): JobState.QUEUED,
    (_R, Event.CANCEL): JobState.STARTED,
}
SETTLED_BY: dict[JobState, Event] = {
    JobState.FINISHED: Event.FINISH,
    JobState.FAILED: Event.FAIL,
    JobState.CANCELED: Event.STOP,
    JobState.QUEUED: Event.REPEAT,
    JobState.SCHEDULED: Event.PUT_OFF,
}


def after(standing: Standing, event: Event) -> Standing | None:
    """Return how a job stands after an event; None if that cannot happen to it, which changes nothing."""
    state = TABLE.get((standing.state, event))
    if state is None:
        return None
    if standing.canceling and state not in TERMINAL and event != Event.CANCEL:
        state = JobState.CANCELED
    return Standing(state, state == JobState.STARTED and event == Event.CANCEL)
