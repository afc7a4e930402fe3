"""When a process hangs: a call past its deadline and grace, a load past its limit, a ready instance that fell silent.

Health is recent real work and the instance's own reports, never a check that a stuck process could still answer.
This module does not know how a process is killed.
"""

from __future__ import annotations

from dataclasses import dataclass

from samovar.lifecycle import State
from samovar.spec import Limits

STATS_EVERY_S = 5.0  # an instance reports at least this often
MAX_SILENCE_S = 4 * STATS_EVERY_S
START_LIMIT_S = 30.0  # from fork to the first Welcome
DEFAULT_LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class Vitals:
    """What is known of one process. since_s: in this state for so long. silent_s: since its last message.

    overrun_s: the running call is this long past its deadline. in_flight: calls there when it last reported.
    """

    state: State
    since_s: float
    silent_s: float
    overrun_s: float = 0.0
    in_flight: int = 0


def verdict(vitals: Vitals, limits: Limits) -> str:
    """Return why the process must be killed, or "" if it may live.

    A busy instance may hold the interpreter for a whole call, so silence is counted from the end of its longest call.
    """
    if vitals.state is State.STARTING and vitals.since_s > START_LIMIT_S:
        return f"it did not answer within {START_LIMIT_S:g} s of its fork"
    if vitals.state is State.LOADING and vitals.since_s > limits.load_timeout_s:
        return f"it did not load within {limits.load_timeout_s:g} s"
    if vitals.overrun_s > limits.overrun_grace_s:
        return f"a call ran {vitals.overrun_s:.1f} s past its deadline"
    allowed_s = MAX_SILENCE_S + (limits.timeout_s + limits.overrun_grace_s if vitals.in_flight else 0.0)
    if vitals.state in (State.READY, State.DRAINING) and vitals.silent_s > allowed_s:
        return f"it was silent for {vitals.silent_s:.0f} s"
    return ""
