"""`samovar invoke NAME`: one call; the answer to stdout, the phases and errors to stderr."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from samovar.cli.session import Session, verb
from samovar.cli.text import bars, pretty_json

if TYPE_CHECKING:
    import httpx

    from samovar.transport import Priority


_JSON_HELP = "The input, as JSON. Without a value: print JSON; may be given in both ways."
_SAID = {"samovar-fallback": "fallback:", "cache-status": "cache:", "age": "age in seconds:"}


@click.command()
@click.argument("name")
@click.option("--json", "given", multiple=True, is_flag=False, flag_value="", metavar="[JSON]", help=_JSON_HELP)
@click.option("--file", type=click.Path(exists=True, dir_okay=False, path_type=Path), help="A file with the input.")
@click.option("--timeout", "timeout_s", type=click.FloatRange(min=0, min_open=True), help="Deadline in seconds.")
@click.option("--priority", type=click.Choice(["high", "normal", "low"]), help="Who waits behind whom in a queue.")
@click.option("-N", "--events", is_flag=True, help="Show what it tells meanwhile: waiting, progress, log, each output.")
@click.option("-v", "--verbose", is_flag=True, help="Show who answered and where the time went.")
@verb(json_flag=False)
def invoke(
    session: Session,
    name: str,
    given: tuple[str, ...],
    file: Path | None,
    timeout_s: float | None,
    priority: Priority | None,
    events: bool,
    verbose: bool,
) -> None:
    """Call the function NAME with --json, --file or stdin, and print its answer.

    Pretty on a terminal, the function's own bytes in a pipe; a stream is printed line by line as it arrives. --json
    without a value, last, prints errors (and with --events everything) as JSON.
    """
    from samovar.transport import invoke_path, terms

    session.as_json = "" in given
    body = _body([text for text in given if text], file)
    if events:
        from samovar.cli.invoke_events import show_events

        show_events(session, name, body, timeout_s, priority, verbose)
        return
    with session.client.lines("POST", invoke_path(name), body, **terms(timeout_s, priority)) as (response, lines):
        if response.headers.get("content-type", "").startswith("application/x-ndjson"):
            _print_stream(lines)
        else:
            _print_answer(response.read())
    if verbose:
        _print_receipt(name, response)


def _body(given: list[str], file: Path | None) -> bytes:
    if len(given) + (file is not None) > 1:
        raise click.UsageError("give --json or --file, not both, and one of it")
    if given:
        return os.fsencode(given[0])  # as it was typed: what is no UTF-8 is the gateway's to refuse
    if file is not None:
        return file.read_bytes()
    return b"" if sys.stdin is None or sys.stdin.isatty() else sys.stdin.buffer.read()


def _print_stream(lines: Iterator[bytes]) -> None:
    from samovar.problems import stream_item

    for line in lines:
        stream_item(line)
        click.echo(line)


def _print_answer(content: bytes) -> None:
    if not sys.stdout.isatty():
        click.echo(content, nl=not content.endswith(b"\n"))
        return
    try:
        value: Any = json.loads(content)
    except ValueError:
        click.echo(content)
        return
    click.echo(pretty_json(value))


def _stand_in(headers: httpx.Headers) -> str:
    """Return what the answer says of itself when it is not simply the function's."""
    said = [f"{what} {headers[name]}" for name, what in _SAID.items() if name in headers]
    return f" ({', '.join(said)})" if said else ""


def _print_receipt(name: str, response: httpx.Response) -> None:
    from samovar.problems import phases_of

    headers = response.headers
    total_ms = response.elapsed.total_seconds() * 1000
    who = f"{headers.get('samovar-function', name)}@{headers.get('samovar-version', '?')}"
    click.echo(
        f"{who}{_stand_in(headers)} answered in {total_ms:.1f} ms (request {headers.get('x-request-id', '?')})",
        err=True,
    )
    for line in bars(phases_of(headers)):
        click.echo(f"  {line}", err=True)
