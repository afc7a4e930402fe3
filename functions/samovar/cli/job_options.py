"""The options of a job at the command line, for `jobs submit` and `cron add`; `--json` with and without a value.

This module does not know what is done with them.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click

from samovar.cli.manage import Duration

if TYPE_CHECKING:
    from samovar.cli.session import Session

T = TypeVar("T", bound=Callable[..., Any])

_OPTIONS = (
    click.option("--retries", type=click.IntRange(min=0), help="Further attempts after the function failed."),
    click.option("--retry-on", multiple=True, metavar="CLASS", help="Only for this exception; may be repeated."),
    click.option("--give-up-on", multiple=True, metavar="CLASS", help="Never for this exception; may be repeated."),
    click.option("--timeout", "timeout_s", type=Duration(), help="Of one attempt: 90s, 30m."),
    click.option("--deadline", "deadline_s", type=Duration(), help="Of all attempts, from now on: 2h."),
    click.option("--delay", "delay_s", type=Duration(), help="Not before: 10m."),
    click.option("--keep", "result_ttl_s", type=Duration(), help="How long it is kept once ended: 7d."),
    click.option("--priority", type=click.Choice(["normal", "low"]), help="low runs after all others."),
    click.option("--webhook", metavar="URL", help="Told when it has ended."),
    click.option("--durability", type=click.Choice(["aof", "fsync"]), help="fsync: it survives a power cut, too."),
    click.option("--tag", "tags", multiple=True, metavar="NAME=VALUE", help="Shown with the job; may be repeated."),
)


def job_options(command: T) -> T:
    """Give a command the options that every job has."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def json_input(command: T) -> T:
    """Give a command `--json`: with a value the input, without one (or a second time) JSON is printed."""
    text = "The input, as JSON. Without a value: print JSON; may be given in both ways."
    option = click.option("--json", "given", multiple=True, is_flag=False, flag_value="", metavar="[JSON]", help=text)
    return option(command)


def read_json(session: Session, given: tuple[str, ...]) -> tuple[bool, Any]:
    """Return whether an input was given, and it, decoded; the session prints JSON from now on if it was asked to."""
    session.as_json = "" in given
    values = [text for text in given if text]
    if len(values) > 1:
        raise click.UsageError("one job has one input: for several, give --file")
    try:
        return bool(values), json.loads(values[0]) if values else None
    except ValueError as error:
        raise click.UsageError(f"{values[0]!r} is not JSON ({error}); without a value, --json goes last") from error


def terms_of(options: dict[str, Any]) -> dict[str, Any]:
    """Return what was given of the options of a job, as `submit` takes it."""
    given = {name: list(value) if isinstance(value, tuple) else value for name, value in options.items()}
    if tags := given.pop("tags", None):
        given["tags"] = dict(map(_tag, tags))
    return {name: value for name, value in given.items() if value not in (None, [])}


def _tag(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not (name and equals):
        raise click.UsageError(f"--tag {text}: write NAME=VALUE")
    return name, value
