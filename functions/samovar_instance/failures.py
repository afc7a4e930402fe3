"""What went wrong in user code, as the caller is told: one table from exceptions to code, status and detail.

    SamovarError             as it is: a handler may raise InvalidInput and the caller gets 422
    MemoryError, device OOM  function_raised, reason "out_of_memory"
    broken device context    function_raised, reason "device_lost"; the process must go
    anything else            function_raised with its type; SystemExit and KeyboardInterrupt too

Tracebacks go to the log only. This module does not know frames or threads.
"""

from __future__ import annotations

import sys
import traceback
from dataclasses import dataclass, field
from types import TracebackType
from typing import Any

import msgspec

from samovar.errors import Cancelled, DeadlineExceeded, DeployRefused, FunctionRaised, SamovarError
from samovar_instance import devices
from samovar_instance.hints import hint_for

MAX_DETAIL_CHARS = 2000
OUT_OF_MEMORY = "out_of_memory"


@dataclass(frozen=True, slots=True)
class Fault:
    """What a Failure frame carries. must_exit: this process can do no more work."""

    code: str
    status: int
    detail: str
    extra: dict[str, Any] = field(default_factory=dict)
    must_exit: bool = False


CANCELLED = Fault("cancelled", 499, "the caller left")
ENDED_INSTANCE = "ended_instance"  # in extra: the call did not stop, and its instance ends because of it


def fault_of(error: BaseException) -> Fault:
    """Return how `error` is told to the caller."""
    if isinstance(error, SamovarError):
        extra = error.extra if error.retry_after_s is None else {**error.extra, "retry_after_s": error.retry_after_s}
        return Fault(error.code, error.status, _written(str(error.detail)), {key: _sent(extra[key]) for key in extra})
    if isinstance(error, Cancelled):
        return CANCELLED
    name = type(error).__name__
    extra = {"type": name}
    must_exit = devices.is_context_broken(error)
    if devices.is_out_of_memory(error):
        extra["reason"] = OUT_OF_MEMORY
    elif must_exit:
        extra["reason"] = "device_lost"
    return Fault(FunctionRaised.code, FunctionRaised.status, describe(error) + hint_for(error), extra, must_exit)


def expired(phase: str) -> Fault:
    """Return the fault of a call whose deadline passed in `phase` (queue or run)."""
    error = DeadlineExceeded(f"the deadline passed in phase {phase}", phase=phase)
    return Fault(error.code, error.status, error.detail, error.extra)


def describe(error: BaseException) -> str:
    """Return `Type: message`, of our own refusals the message; cut to MAX_DETAIL_CHARS.

    Survives exceptions whose `str` raises.
    """
    if isinstance(error, DeployRefused):
        return error.detail[:MAX_DETAIL_CHARS]
    try:
        text = str(error)
    except Exception as broken:  # noqa: BLE001 (a user's __str__ may raise anything)
        text = f"<its text cannot be read: {type(broken).__name__}>"
    name = type(error).__name__
    return _written(f"{name}: {text}" if text else name)[:MAX_DETAIL_CHARS]


def _written(text: str) -> str:
    """Return a text that UTF-8 can carry: half surrogates, as in names of files that are no text, are written out."""
    return text.encode(errors="backslashreplace").decode()


def _sent(value: Any) -> Any:
    """Return what a frame can carry of a field of an error: itself, or else of what type it is."""
    if isinstance(value, str):
        return _written(value)
    try:
        msgspec.msgpack.encode(value)
    except Exception:  # noqa: BLE001 (it may be any object)
        return f"<{type(value).__name__}>"
    return value


def log(error: BaseException) -> None:
    """Write the traceback to stderr, which is the instance's log, without the frames of this package."""
    try:
        traceback.print_exception(type(error), error, user_frames(error.__traceback__))
    except Exception:  # noqa: BLE001 (as in describe)
        sys.stderr.write(f"{type(error).__name__}\n")


def user_frames(tb: TracebackType | None) -> TracebackType | None:
    """Return the traceback from the first frame that is not ours; all of it if there is none."""
    first = tb
    while first is not None and first.tb_frame.f_globals.get("__name__", "").partition(".")[0] == "samovar_instance":
        first = first.tb_next
    return first or tb
