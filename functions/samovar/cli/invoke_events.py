"""`samovar invoke --events NAME`: a call told as it runs: outputs to stdout, progress and log to stderr."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import click
import msgspec

from samovar.cli.session import Session
from samovar.cli.styling import printable
from samovar.cli.text import bars
from samovar.event_client import read_events
from samovar.events import Course, Done, Event, Log, Output, Progress, Waiting
from samovar.transport import invoke_path, terms

if TYPE_CHECKING:
    from samovar.transport import Priority

RESUME_S = 30.0


def show_events(
    session: Session, name: str, body: bytes, timeout_s: float | None, priority: Priority | None, verbose: bool
) -> None:
    """Call the function and show what happens; with `--json` each event is a line of JSON on stdout.

    A connection that breaks is made up for within RESUME_S. Raises: what the call came to.
    """
    course = Course(terms(timeout_s, priority)["headers"], RESUME_S)
    for event in read_events(session.client, invoke_path(name), body, course):
        if session.as_json:
            _print_json(event)
        elif isinstance(event, Output):
            click.echo(json.dumps(event.value, ensure_ascii=False))
        elif isinstance(event, Done):
            if verbose:
                session.note(f"{name}@{event.headers.get('samovar-version', '?')}: {event.num_outputs} outputs")
                for line in bars(event.timing_ms):
                    session.note(f"  {line}")
        else:
            session.note(_words(event))


def _print_json(event: Event) -> None:
    if not isinstance(event, Waiting):
        data: Any = event.value if isinstance(event, Output) else msgspec.to_builtins(event)
        click.echo(json.dumps({"event": type(event).__name__.lower(), "data": data}, ensure_ascii=False))


def _words(event: Waiting | Progress | Log) -> str:
    if isinstance(event, Log):
        return f"  {printable(event.line)}"
    if isinstance(event, Progress):
        return f"  {event.fraction:4.0%} {printable(event.message)}".rstrip()
    return f"  waiting: {event.phase}, {event.ahead} ahead" if event.phase else "  running"
