"""`samovar jobs submit|ls|get|wait|cancel|retry|logs|purge`: queued work at the command line.

Many jobs from a file are in `bulk`. This module does not know how jobs are run.
"""

from __future__ import annotations

import difflib
import itertools
import json
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click
import msgspec

from samovar.cli.job_options import job_options, json_input, read_json, terms_of
from samovar.cli.manage import Duration, function_path
from samovar.cli.session import Session, verb
from samovar.cli.text import pretty_json
from samovar.errors import JobNotFound, SamovarError
from samovar.jobs import JobState

if TYPE_CHECKING:
    from samovar.job_client import Job
    from samovar.jobs import JobEvent, JobView

STATES = [*map(str, JobState), "quarantined"]
_MAX_LOOKED_AT = 500  # newest jobs whose ids an unknown one is compared with
_SILENCE_S = 1.0  # a job that says nothing for so long has said what there is


@click.group()
def jobs() -> None:
    """Queue work, and look after it."""


@jobs.command(short_help="Queue a job, or one for every line of a file.")
@click.argument("name")
@json_input
@click.option(
    "--file", type=click.Path(dir_okay=False, path_type=Path), help="One input per line, as JSON: a job each."
)
@click.option("--output", type=click.Path(dir_okay=False, path_type=Path), help="Where the results go, a line each.")
@click.option("--wait", is_flag=True, help="Wait for the results.")
@click.option("--progress", is_flag=True, help="Show how far it is; waits.")
@click.option(
    "--batch", "batch_size", type=click.IntRange(1, 10_000), default=200, show_default=True, help="Per request."
)
@click.option(
    "--max-in-flight", type=click.IntRange(min=1), default=5000, show_default=True, help="Unfinished at a time."
)
@click.option("--reduce", metavar="FUNCTION", help='Call this with {"results": [...]} once all are there.')
@click.option("--restart", is_flag=True, help="Forget an earlier run on this file and start anew.")
@click.option("--cancel-on-interrupt", is_flag=True, help="Ctrl-C cancels the jobs; else they go on.")
@click.option("--unique", help="At most one unfinished job of this function has this text.")
@click.option("--after", "depends_on", multiple=True, metavar="JOB", help="Starts when this one has finished.")
@click.option(
    "--allow-failed",
    is_flag=True,
    default=None,
    help="… or has ended in any other way; with --reduce: although some failed.",
)
@click.option("--idempotency-key", metavar="KEY", help="The same key with the same input makes one job.")
@job_options
@verb(json_flag=False)
def submit(
    session: Session,
    name: str,
    given: tuple[str, ...],
    file: Path | None,
    wait: bool,
    progress: bool,
    idempotency_key: str | None,
    **options: Any,
) -> int:
    """Queue a job for the function NAME, with --json; or one for every line of --file.

    With --file, results go to --output (default: beside the file) once asked for by --wait, --progress or --output. Run
    again after it was stopped, it goes on where it was and submits nothing twice.
    """
    from samovar.cli import bulk

    has_input, value = read_json(session, given)
    allow_failed = options.pop("allow_failed")
    how = {key: options.pop(key) for key in bulk.Wishes.__dataclass_fields__ if key in options}
    how["allow_failed"] = bool(allow_failed) and how["reduce"] is not None
    terms = terms_of(options | ({} if how["allow_failed"] else {"allow_failed": allow_failed}))
    if file is not None:
        if has_input or idempotency_key or "unique" in terms:
            raise click.UsageError("--json, --idempotency-key and --unique are for one job, not for --file")
        wishes = bulk.Wishes(wait=wait or progress or how["output"] is not None, progress=progress, **how)
        return bulk.run(session, name, file, terms, wishes)
    if how["output"] or how["reduce"] or how["restart"]:
        raise click.UsageError("--output, --reduce and --restart need --file")
    job = session.client.function(name).submit(value, idempotency_key=idempotency_key, **terms)
    if not (wait or progress):
        session.emit(_plain(job.view), lambda: job.id)
        return 0
    return _await_one(session, job, progress, bool(how["cancel_on_interrupt"]))


def _await_one(session: Session, job: Job, progress: bool, cancel_on_interrupt: bool) -> int:
    """Print the job's result once it is there. Raises its error."""
    session.note(f"job {job.id}")
    try:
        if progress:
            for event in job.events():
                _note_event(session, event)
        result = job.result()
    except KeyboardInterrupt:
        if cancel_on_interrupt:
            job.cancel()
            session.note(f"job {job.id} is cancelled")
        else:
            session.note(f"job {job.id} goes on: samovar jobs wait {job.id}")
        raise
    session.emit(_plain(job.view), lambda: _result_text(result))
    return 0


@jobs.command(short_help="List jobs, newest first.")
@click.option("--function", help="Only of this function.")
@click.option("--state", type=click.Choice(STATES), help="Only in this state; quarantined: the dead letters.")
@click.option("--group", help="Only of this group.")
@click.option("--limit", type=click.IntRange(1, 100_000), default=50, show_default=True, help="The newest.")
@verb()
def ls(session: Session, limit: int, **query: str | None) -> None:
    """List jobs, newest first: state, age, attempt, and what they wait for or failed of."""
    from samovar.cli.job_text import counts_text, jobs_table

    found = session.client.jobs(**{name: value or "" for name, value in query.items()})
    views = [job.view for job in itertools.islice(found, limit) if job.view is not None]
    if query["group"]:
        group = session.client.group(query["group"]).status()
        session.note(f"group {group.id}: {group.num_jobs:,} jobs, {counts_text(group.counts)}")
    elif query["function"] and not views:
        session.get(function_path(query["function"]))  # a name that is not known at all is an error
    session.emit(list(map(_plain, views)), lambda: jobs_table(views, time.time()))


@jobs.command()
@click.argument("job_id")
@click.option("--result", "only_result", is_flag=True, help="Print its result alone; its error, if it has none.")
@verb()
def get(session: Session, job_id: str, only_result: bool) -> None:
    """Show one job: state, why it waits, attempts, error, result."""
    from samovar.cli.job_text import job_lines

    with _near_ids(session, job_id):
        job = session.client.job(job_id)
        view = job.status()
    if only_result:
        result = job.result(timeout_s=0)
        session.emit(result, lambda: _result_text(result))
        return
    width = max(len(what) for what, _ in job_lines(view, time.time())) + 2
    lines = [f"{what:<{width}}{text}" for what, text in job_lines(view, time.time())]
    shown = [_result_text(view.result)] if view.result is not None else []
    session.emit(_plain(view), lambda: "\n".join([f"{'job':<{width}}{view.id}", *lines, *shown]))


@jobs.command()
@click.argument("job_ids", nargs=-1, required=True)
@click.option("--timeout", "timeout_s", type=Duration(), help="Longest wait for all of them together: 90s, 30m.")
@verb()
def wait(session: Session, job_ids: tuple[str, ...], timeout_s: float | None) -> int:
    """Wait until these jobs have ended. The exit code is 0 if all of them finished, else that of the first failure."""
    from samovar.cli.job_text import jobs_table
    from samovar.job_requests import failure_of

    until_s = None if timeout_s is None else time.monotonic() + timeout_s
    views = []
    for job_id in job_ids:
        left_s = None if until_s is None else max(0.0, until_s - time.monotonic())
        with _near_ids(session, job_id):
            views.append(session.client.job(job_id).wait(left_s))
    session.emit(list(map(_plain, views)), lambda: jobs_table(views, time.time()))
    failures = [failure for view in views if (failure := failure_of(view))]
    return failures[0].exit_code if failures else 0


@jobs.command(short_help="Cancel jobs; those that run are stopped.")
@click.argument("job_ids", nargs=-1)
@click.option("--group", help="All jobs of this group that have not ended.")
@verb()
def cancel(session: Session, job_ids: tuple[str, ...], group: str | None) -> None:
    """Cancel jobs: those that wait at once; those that run are stopped."""
    if bool(job_ids) == bool(group):
        raise click.UsageError("say which: JOB_IDS, or --group")
    if group:
        left = session.client.group(group).cancel()
        session.emit(msgspec.to_builtins(left), lambda: f"group {group}: no further job starts")
        return
    views = [_cancelled(session, job_id) for job_id in job_ids]
    session.emit(list(map(_plain, views)), lambda: "\n".join(map(_cancel_text, views)))


def _cancelled(session: Session, job_id: str) -> JobView:
    with _near_ids(session, job_id):
        return session.client.job(job_id).cancel()


def _cancel_text(view: JobView) -> str:
    return f"{view.id} cancelled" if view.state is JobState.CANCELED else f"{view.id} is being stopped"


@jobs.command(short_help="Submit the same again, as new jobs.")
@click.argument("job_ids", nargs=-1, required=True)
@verb()
def retry(session: Session, job_ids: tuple[str, ...]) -> None:
    """Submit the same inputs again, as new jobs, and print their ids."""
    made = []
    for job_id in job_ids:
        with _near_ids(session, job_id):
            made.append(session.client.job(job_id).retry())
    session.emit([_plain(job.view) for job in made], lambda: "\n".join(job.id for job in made))


@jobs.command()
@click.argument("job_id")
@click.option("-f", "--follow", is_flag=True, help="Go on until the job ends, or Ctrl-C.")
@click.option("--events", "all_events", is_flag=True, help="Everything that happened to it, not only its log.")
@verb()
def logs(session: Session, job_id: str, follow: bool, all_events: bool) -> None:
    """Show what a job wrote with ctx.log."""
    is_silent = True
    with _near_ids(session, job_id):
        for event in session.client.job(job_id).events(silence_s=None if follow else _SILENCE_S):
            if all_events or event.kind == "log":
                is_silent = False
                click.echo(json.dumps(msgspec.to_builtins(event)) if session.as_json else _event_line(event))
    if is_silent:
        session.note(f"{job_id} has logged nothing{'' if follow else ' yet'}")


@jobs.command(short_help="Forget the ended jobs of a function.")
@click.argument("name")
@click.option(
    "--state", type=click.Choice([str(state) for state in ("finished", "failed", "canceled")]), help="Only these."
)
@click.option("--older-than", "older_than_s", type=Duration(), default="0", help="Ended that long ago: 12h, 7d.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@verb()
def purge(session: Session, name: str, state: str | None, older_than_s: float, yes: bool) -> None:
    """Forget the ended jobs of the function NAME, with their inputs and results."""
    if not yes:
        if not sys.stdin.isatty():
            raise click.UsageError("purging needs --yes when nobody can be asked")
        if not click.confirm(f"Forget the {state or 'ended'} jobs of {name}, with their results?", err=True):
            raise click.UsageError("nothing was deleted")
    body = {"function": name, "older_than_s": older_than_s} | ({"state": state} if state else {})
    answer = session.post("/v1/jobs/purge", body)
    session.emit(answer, lambda: f"{name}: {answer['deleted']:,} jobs deleted")


@contextmanager
def _near_ids(session: Session, job_id: str) -> Iterator[None]:
    """Tell which ids an unknown one may mean."""
    try:
        yield
    except JobNotFound as error:
        if near := _near(session, job_id):
            error.detail = f"{error.detail}; did you mean {', '.join(near)}?"
        raise


def _near(session: Session, job_id: str) -> list[str]:
    try:
        known = [job.id for job in itertools.islice(session.client.jobs(), _MAX_LOOKED_AT)]
    except SamovarError:
        return []
    parts = [known_id for known_id in known if len(job_id) >= 4 and job_id in known_id]
    return parts[:3] or difflib.get_close_matches(job_id, known, n=3, cutoff=0.8)


def _plain(view: JobView | None) -> Any:
    return msgspec.to_builtins(view)


def _result_text(result: Any) -> str:
    """Return a result as text: indented on a terminal, one line in a pipe."""
    if isinstance(result, bytes):
        return result.decode(errors="replace")
    return pretty_json(result) if sys.stdout.isatty() else json.dumps(result, ensure_ascii=False)


def _event_line(event: JobEvent) -> str:
    from samovar.cli.job_text import event_text

    at = time.strftime("%H:%M:%S", time.localtime(event.at_s))
    return f"{click.style(at, dim=True)} {event_text(event)}"


def _note_event(session: Session, event: JobEvent) -> None:
    if not session.as_json:
        click.echo(_event_line(event), err=True)
