"""Jobs as people read them: states, why one waits, how far it is. Pure; this module does not know verbs or consoles."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from samovar.cli.text import duration, size
from samovar.job_requests import WAIT_WORDS, failure_of
from samovar.jobs import TERMINAL, JobEvent, JobState, JobView

if TYPE_CHECKING:
    from rich.table import Table

_COLOURS = {"finished": "green", "failed": "red", "started": "cyan", "canceled": "yellow"}
_MAX_SHOWN = 1000


def jobs_table(views: list[JobView], now_s: float) -> Table | str:
    """Return jobs as a table, as they come."""
    from rich.table import Table
    from rich.text import Text

    if not views:
        return "no such jobs"
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("job", no_wrap=True, min_width=max(len(view.id) for view in views))  # people copy it
    for column in ("function", "state", "age", "try"):
        table.add_column(column, no_wrap=column != "function")
    table.add_column("what", overflow="fold")
    for view in views:
        age = duration(now_s - view.created_at_s) if view.created_at_s else ""
        state = Text(str(view.state), style=_COLOURS.get(view.state, ""))
        table.add_row(view.id, view.function, state, age, attempts(view), Text(note(view, now_s)))
    return table


def attempts(view: JobView) -> str:
    """Return which attempt it is, and of how many."""
    if not view.attempt:
        return ""
    return f"{view.attempt}/{view.retries + 1}" if view.retries else str(view.attempt)


def note(view: JobView, now_s: float) -> str:
    """Return what matters most about a job: its error, what it waits for, or how far it is."""
    if view.state is JobState.FINISHED:
        return f"took {duration(view.ended_at_s - view.started_at_s)}" if view.started_at_s else ""
    if view.state in TERMINAL:
        return error_text(view)
    if view.state is JobState.STARTED:
        return progress_text(view)
    return "; ".join(waits(view, now_s))


def error_text(view: JobView) -> str:
    """Return why a job ended without a result, "" if it did not."""
    failure = failure_of(view)
    if failure is None or view.state is JobState.CANCELED:
        return ""
    return f"{failure.code}: {failure.detail}"


def progress_text(view: JobView) -> str:
    """Return how far a job says it is, "" if it says nothing."""
    if view.progress is None:
        return ""
    return f"{view.progress.fraction:.0%} {view.progress.message}".strip()


def waits(view: JobView, now_s: float) -> Iterator[str]:
    """Yield why a job does not run yet, and since or until when, each as words."""
    if view.wait_reason:
        yield WAIT_WORDS.get(view.wait_reason, view.wait_reason)
    if view.due_at_s > now_s:
        yield f"due in {duration(view.due_at_s - now_s)}"
    if view.position is not None:
        yield f"{view.position} in front of it"
    if view.estimated_start_s is not None:
        yield f"starts in about {duration(view.estimated_start_s)}"


def job_lines(view: JobView, now_s: float) -> Iterator[tuple[str, str]]:
    """Yield everything there is to say of a job: what, and its words."""
    yield "function", f"{view.function}@{view.version}" if view.version else view.function
    yield "state", "; ".join([str(view.state), *(waits(view, now_s) if view.state not in TERMINAL else ())])
    yield "submitted", _when(view.created_at_s, now_s)
    if view.attempt:
        failed = f", {view.failures} failed" if view.failures else ""
        crashed = f", {view.crashes} took the instance down" if view.crashes else ""
        yield "attempt", f"{view.attempt} of at most {max(view.retries + 1, view.attempt)}{failed}{crashed}"
    if view.started_at_s:
        yield "started", _when(view.started_at_s, now_s)
    if view.ended_at_s:
        yield "ended", _when(view.ended_at_s, now_s)
    if view.state is JobState.SCHEDULED and view.failures and view.due_at_s > now_s:
        yield "next try", f"in {duration(view.due_at_s - now_s)}"
    if view.progress is not None:
        yield "progress", progress_text(view)
    if view.error:
        yield "error", f"{view.error.get('code', '')}: {view.error.get('detail', '')}"
    if view.result_bytes and view.result is None:
        yield "result", f"{size(view.result_bytes)} of {view.result_type}: samovar jobs get {view.id} --result"
    yield from _belongings(view, now_s)


def _belongings(view: JobView, now_s: float) -> Iterator[tuple[str, str]]:
    if view.priority != "normal":
        yield "priority", view.priority
    if view.group:
        yield "group", f"{view.group}, number {view.index + 1} of it"
    if view.tags:
        yield "tags", ", ".join(f"{name}={value}" for name, value in view.tags.items())
    if view.expires_at_s > now_s:
        yield "forgotten", f"in {duration(view.expires_at_s - now_s)}"


def event_text(event: JobEvent) -> str:
    """Return an event as one line without its time."""
    data = dict(event.data)
    if event.kind == "log":
        return str(data.get("line", data.get("message", "")))
    if event.kind == "progress":
        return f"{float(data.get('fraction', 0)):.0%} {data.get('message', '')}".strip()
    reason, error = str(data.pop("wait_reason", "")), data.pop("error", None)
    data.pop("started_at_s", None)
    words = [event.kind]
    if (start_s := data.pop("estimated_start_s", None)) is not None and "due_at_s" not in data:
        words.append(f"to start in about {duration(float(start_s))}")
    if "due_at_s" in data:
        words.append(f"in {duration(float(data.pop('due_at_s')) - event.at_s)}")
    words += [f"{name}={_short(value)}" for name, value in data.items() if value not in (None, "", [], {}, 0)]
    why = WAIT_WORDS.get(reason, reason) or (f"{error.get('code')}: {error.get('detail')}" if error else "")
    return " ".join(words) + (f": {why}" if why else "")


def counts_text(counts: Mapping[str, int]) -> str:
    """Return counts by state as words, the ended ones last."""
    order = [state for state in JobState if state not in TERMINAL] + [state for state in JobState if state in TERMINAL]
    return ", ".join(f"{counts[state]:,} {state}" for state in order if counts.get(state))


def _when(at_s: float, now_s: float) -> str:
    stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(at_s))
    return f"{stamp} ({duration(now_s - at_s)} ago)" if at_s <= now_s else f"{stamp} (in {duration(at_s - now_s)})"


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= _MAX_SHOWN else f"{text[:_MAX_SHOWN]}…"
