"""`samovar logs NAME`: what the function's instances wrote to stdout and stderr."""

from __future__ import annotations

import json
import time
from typing import Any
from urllib.parse import quote

import click

from samovar.cli.session import Session, verb

_STREAM_COLOURS = {"stderr": "yellow"}


@click.command()
@click.argument("name")
@click.option("-f", "--follow", is_flag=True, help="Go on with new lines until Ctrl-C.")
@click.option("--lines", "num_lines", type=click.IntRange(0, 10_000), default=100, show_default=True)
@verb()
def logs(session: Session, name: str, follow: bool, num_lines: int) -> None:
    """Show the last lines that NAME printed, the newest last."""
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
