"""`samovar logs NAME`: what the function's instances wrote to stdout and stderr; with --requests, its request log."""

from __future__ import annotations

import json
import time
from typing import Any
from urllib.parse import quote

import click

from samovar.cli.manage import Duration
from samovar.cli.session import Session, verb

_STREAM_COLOURS = {"stderr": "yellow"}


class Milliseconds(click.ParamType[float]):
    """Milliseconds, written as 200ms or as a duration such as 1.5s."""

    name = "time"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the milliseconds; a usage error if it is no time."""
        text = str(value).strip()
        if text.endswith("ms") and text[:-2].replace(".", "", 1).isdigit():
            return float(text[:-2])
        return 1000 * Duration().convert(text, param, ctx)


@click.command()
@click.argument("name")
@click.option("-f", "--follow", is_flag=True, help="Go on with new lines until Ctrl-C.")
@click.option("--lines", "num_lines", type=click.IntRange(0, 10_000), default=100, show_default=True)
@click.option("--requests", is_flag=True, help="Show the calls themselves instead: a record each.")
@click.option("--since", "since_s", type=Duration(), default="1h", show_default=True, help="How far back: 10m, 2d.")
@click.option("--status", help="Only calls that ended so: 404, 5xx.")
@click.option("--slower", "slower_ms", type=Milliseconds(), help="Only calls that took longer: 200ms, 2s.")
@click.option("--version", type=click.IntRange(min=0), help="Only calls of this version.")
@click.option("--limit", type=click.IntRange(1, 1_000), default=100, show_default=True, help="At most so many calls.")
@click.option("--summary", is_flag=True, help="Calls by outcome and latency percentiles of each version instead.")
@click.option("--sql", help="Ask the table `requests` in SQL (DuckDB, read-only).")
@verb()
def logs(
    session: Session, name: str, follow: bool, num_lines: int, requests: bool, summary: bool, sql: str | None, **q: Any
) -> None:
    """Show the last lines that NAME printed, the newest last; with --requests, its last calls."""
    if not requests:
        if summary or sql is not None or q["status"] or q["slower_ms"] is not None or q["version"] is not None:
            raise click.UsageError("--status, --slower, --version, --summary and --sql need --requests")
        _lines(session, name, follow, num_lines)
        return
    if follow:
        raise click.UsageError("--follow is for what it prints, not for --requests")
    if summary and sql is not None:
        raise click.UsageError("give --summary or --sql, not both")
    from samovar.cli import requests as log

    if sql is not None:
        log.show_sql(session, name, sql, q)
    elif summary:
        log.show_summary(session, name, q)
    else:
        log.show_records(session, name, q)


def _lines(session: Session, name: str, follow: bool, num_lines: int) -> None:
    path = f"/v1/functions/{quote(name, safe='')}/logs?lines={num_lines}&follow={int(follow)}"
    with session.client.lines("GET", path, timeout_s=None if follow else 30.0) as (_, lines):
        is_silent = True
        for line in lines:
            is_silent = False
            click.echo(line if session.as_json else _text(json.loads(line)))
    if is_silent and num_lines:
        session.note(f"{name} has printed nothing yet")


def _text(entry: dict[str, Any]) -> str:
    at = time.strftime("%H:%M:%S", time.localtime(float(entry.get("at_s", 0))))
    who = click.style(f"{at} {entry.get('ref', '')} {str(entry.get('instance', ''))[-8:]}", dim=True)
    return f"{who} {click.style(str(entry.get('line', '')), fg=_STREAM_COLOURS.get(str(entry.get('stream'))))}"
