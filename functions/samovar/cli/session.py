"""What every verb shares: the options, the connection, the way results and errors are printed.

Results go to stdout, as tables for people or as JSON with `--json`; progress and errors go to stderr.
This module does not know any verb.
"""

from __future__ import annotations

import functools
import json
import sys
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Any

import click

from samovar.cli.text import duration
from samovar.errors import ConnectError, SamovarError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from samovar.client import Client

Verb = Callable[..., int | None]


@dataclass
class Session:
    """One run of a verb: where the gateway is, and how to speak."""

    url: str | None = None
    api_key: str | None = None
    as_json: bool = False
    debug: bool = False

    @cached_property
    def client(self) -> Client:
        """The gateway; nothing is sent before the first request. Raises ConfigError if none is known."""
        from samovar.client import Client

        return Client(self.url, self.api_key)

    @cached_property
    def out(self) -> Console:
        """stdout, for results."""
        return _console(stderr=False)

    @cached_property
    def err(self) -> Console:
        """stderr, for progress and errors."""
        return _console(stderr=True)

    def close(self) -> None:
        """Close the connections to the gateway, if any was opened."""
        if "client" in self.__dict__:
            self.client.close()

    def get(self, path: str) -> Any:
        """Return what the gateway says at `path`, decoded."""
        return json.loads(self.client.request("GET", path).content)

    def post(self, path: str, body: Any) -> Any:
        """Send `body` as JSON and return the answer, decoded; None for an empty one."""
        content = self.client.request("POST", path, json.dumps(body).encode()).content
        return json.loads(content) if content else None

    def emit(self, data: Any, people: Callable[[], Table | str]) -> None:
        """Print `data` as JSON if asked to, else what `people` returns."""
        shown = json.dumps(data, ensure_ascii=False) if self.as_json else people()
        if isinstance(shown, str):
            click.echo(shown)
        else:
            self.out.print(shown)

    def note(self, text: str) -> None:
        """Tell people, not programs, what happens."""
        if not self.as_json:
            click.secho(text, dim=True, err=True)

    def fail(self, error: SamovarError) -> None:
        """Print one clear sentence about `error`; JSON with --json."""
        if self.debug:
            traceback.print_exception(error)
        if self.as_json:
            click.echo(json.dumps(_as_data(error), default=str), err=True)
            return
        place = _place(error)
        click.secho("error", fg="red", bold=True, nl=False, err=True)
        click.echo(f" {place}{error.detail}", err=True)
        if isinstance(error, ConnectError):
            click.secho("  is it running? `samovar up` starts a platform on this machine", dim=True, err=True)
        if error.retry_after_s:
            click.secho(f"  try again in {duration(error.retry_after_s)}", dim=True, err=True)
        for line in error.extra.get("log_tail") or []:
            click.secho(f"  | {_line_text(line)}", dim=True, err=True)


def verb(*, connects: bool = True, json_flag: bool = True) -> Callable[[Verb], Callable[..., int]]:
    """Give a command its common options and a `Session` as first argument; its SamovarErrors become exit codes.

    connects: add --url and --api-key. json_flag: add --json for machine-readable results.
    """

    def decorate(callback: Verb) -> Callable[..., int]:
        @functools.wraps(callback)
        def wrapped(**options: Any) -> int:
            session = Session(
                options.pop("url", None),
                options.pop("api_key", None),
                options.pop("as_json", False),
                options.pop("debug"),
            )
            try:
                return callback(session, **options) or 0
            except SamovarError as error:
                session.fail(error)
                return error.exit_code
            finally:
                session.close()

        _add_options(wrapped, connects, json_flag)
        return wrapped

    return decorate


def _add_options(command: Callable[..., int], connects: bool, json_flag: bool) -> None:
    options = [click.option("--debug", is_flag=True, help="Show tracebacks.")]
    if json_flag:
        options.append(click.option("--json", "as_json", is_flag=True, help="Print JSON instead of tables."))
    if connects:
        text = "An API key; better set as SAMOVAR_API_KEY, where other users' `ps` does not show it."
        options.append(click.option("--api-key", metavar="KEY", help=text))
        text = "The gateway's address [SAMOVAR_URL; default: the local `samovar up`]."
        options.append(click.option("--url", metavar="URL", help=text))
    for option in options:
        option(command)  # click keeps a list on the function itself


def _console(stderr: bool) -> Console:
    from rich.console import Console

    file = sys.stderr if stderr else sys.stdout
    # a pipe has no width of its own: tables must not be cut to 80 columns there
    return Console(stderr=stderr, highlight=False, soft_wrap=True, width=None if file.isatty() else 200)


def _as_data(error: SamovarError) -> dict[str, Any]:
    extra = {key: value for key, value in error.extra.items() if key not in ("code", "detail", "exit_code")}
    if error.retry_after_s is not None:
        extra["retry_after_s"] = error.retry_after_s
    return {"error": {"code": error.code, "detail": error.detail, "exit_code": error.exit_code, **extra}}


def _place(error: SamovarError) -> str:
    file, line = error.extra.get("file"), error.extra.get("line")
    return f"{file}:{line}: " if file and line else f"{file}: " if file and "/" in str(file) else ""


def _line_text(line: Any) -> str:
    return str(line.get("line", line)) if isinstance(line, dict) else str(line)
