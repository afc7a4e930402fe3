"""`samovar cron add|ls|get|rm|run|pause|resume`: jobs that the clock submits.

This module does not know when a schedule is due: the platform says so.
"""

from __future__ import annotations

import difflib
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import click
import msgspec

from samovar.cli.job_options import job_options, json_input, read_json, terms_of
from samovar.cli.session import Session, verb
from samovar.cli.text import duration
from samovar.errors import FunctionNotFound, NotFound, SamovarError
from samovar.jobs import CronJob, JobOptions

if TYPE_CHECKING:
    from rich.table import Table

NUM_UPCOMING = 3


@click.group()
def cron() -> None:
    """Queue work by the clock."""


@cron.command()
@click.argument("name")
@click.argument("function")
@click.option("--schedule", required=True, metavar="CRON", help="Minute, hour, day, month, weekday: '0 3 * * *'.")
@click.option("--tz", default="UTC", show_default=True, metavar="ZONE", help="The zone of these: Europe/Lisbon.")
@json_input
@click.option(
    "--missed",
    type=click.Choice(["skip", "last", "all"]),
    default="last",
    show_default=True,
    help="Runs nobody was there for.",
)
@click.option(
    "--overlap",
    type=click.Choice(["skip", "queue", "cancel"]),
    default="skip",
    show_default=True,
    help="While the last one has not ended; cancel: that one.",
)
@job_options
@verb(json_flag=False)
def add(session: Session, name: str, given: tuple[str, ...], **options: Any) -> None:
    """Call FUNCTION by the clock, under the name NAME; changes it if it is there."""
    _, value = read_json(session, given)
    decided = {key: options.pop(key) for key in ("function", "schedule", "tz", "missed", "overlap")}
    terms = msgspec.convert(terms_of(options), JobOptions)
    made = session.client.crons.put(CronJob(name=name, input={} if value is None else value, options=terms, **decided))
    session.emit(_plain(made), lambda: "\n".join([f"{name} calls {made.function}", *_upcoming(made)]))


@cron.command()
@verb()
def ls(session: Session) -> None:
    """List cron jobs: schedule, next run, last job."""
    found = sorted(session.client.crons.list(), key=lambda one: one.name)
    session.emit(list(map(_plain, found)), lambda: _table(found, time.time()))


@cron.command()
@click.argument("name")
@verb()
def get(session: Session, name: str) -> None:
    """Show the cron job NAME and its next runs."""
    with _near(session, name):
        found = session.client.crons.get(name)
    session.emit(_plain(found), lambda: "\n".join(_lines(found)))


@cron.command()
@click.argument("name")
@verb()
def rm(session: Session, name: str) -> None:
    """Remove the cron job NAME; jobs it has submitted stay."""
    with _near(session, name):
        session.client.crons.delete(name)
    session.emit({"name": name, "removed": True}, lambda: f"removed {name}")


@cron.command()
@click.argument("name")
@verb()
def run(session: Session, name: str) -> None:
    """Submit the job of NAME now, beside its schedule, and print its id."""
    with _near(session, name):
        job = session.client.crons.run(name)
    session.emit(_plain(job.view), lambda: job.id)


@cron.command()
@click.argument("name")
@verb()
def pause(session: Session, name: str) -> None:
    """Submit nothing more for NAME until it is resumed."""
    with _near(session, name):
        paused = session.client.crons.enable(name, enabled=False)
    session.emit(_plain(paused), lambda: f"{name} is paused")


@cron.command()
@click.argument("name")
@verb()
def resume(session: Session, name: str) -> None:
    """Let NAME run by its schedule again."""
    with _near(session, name):
        resumed = session.client.crons.enable(name)
    session.emit(_plain(resumed), lambda: "\n".join([f"{name} runs again", *_upcoming(resumed)]))


@contextmanager
def _near(session: Session, name: str) -> Iterator[None]:
    """Tell which cron jobs an unknown name may mean."""
    try:
        yield
    except FunctionNotFound:
        raise
    except NotFound as error:
        try:
            known = [one.name for one in session.client.crons.list()]
        except SamovarError:
            known = []
        if near := difflib.get_close_matches(name, known, n=3):
            error.detail = f"{error.detail}; did you mean {', '.join(near)}?"
        raise


def _plain(value: Any) -> Any:
    return msgspec.to_builtins(value)


def _upcoming(one: CronJob) -> list[str]:
    """Return the next runs, each as the schedule's zone and as we see it."""
    runs = (one.upcoming_s or [one.next_at_s])[:NUM_UPCOMING]
    return [f"  next  {_at(at_s, one.tz)}  (in {duration(at_s - time.time())})" for at_s in runs if at_s]


def _at(at_s: float, tz: str) -> str:
    """Return an instant in a zone, or in UTC if this machine does not know that zone."""
    from datetime import UTC, datetime
    from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

    try:
        return f"{datetime.fromtimestamp(at_s, ZoneInfo(tz)):%a %Y-%m-%d %H:%M:%S %Z}"
    except (ZoneInfoNotFoundError, ValueError):
        return f"{datetime.fromtimestamp(at_s, UTC):%a %Y-%m-%d %H:%M:%S UTC}"


def _lines(one: CronJob) -> Iterator[str]:
    yield f"cron      {one.name}{'' if one.enabled else ' (paused)'}"
    yield f"function  {one.function}"
    yield f"schedule  {one.schedule} ({one.tz})"
    yield f"input     {msgspec.json.encode(one.input).decode()}"
    plain, chosen = msgspec.to_builtins(JobOptions()), msgspec.to_builtins(one.options)
    if options := {name: value for name, value in chosen.items() if value != plain[name]}:
        yield f"options   {', '.join(f'{name}={value}' for name, value in options.items())}"
    yield f"missed    {one.missed}"
    yield f"overlap   {one.overlap}"
    if one.last_at_s:
        yield f"last      {_at(one.last_at_s, one.tz)}  {one.last_job}"
    if one.notice:
        yield f"notice    {one.notice}"
    if one.enabled:
        yield from (line.strip().replace("next  ", "next      ", 1) for line in _upcoming(one))


def _table(found: list[CronJob], now_s: float) -> Table | str:
    from rich.table import Table

    if not found:
        return "no cron jobs yet: samovar cron add NAME FUNCTION --schedule '0 3 * * *'"
    table = Table("cron", "function", "schedule", "next", "last job", box=None, pad_edge=False, header_style="bold")
    for one in found:
        following = f"in {duration(one.next_at_s - now_s)}" if one.enabled and one.next_at_s else "paused"
        table.add_row(one.name, one.function, f"{one.schedule} ({one.tz})", following, one.last_job or "")
    return table
