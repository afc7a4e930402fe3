"""`samovar doctor`: a verdict per line, with what to do about it."""

from __future__ import annotations

from dataclasses import asdict
from typing import TYPE_CHECKING

import click

from samovar.cli.session import Session, verb

if TYPE_CHECKING:
    from rich.table import Table

    from samovar.cli.checks import Verdict

_MARKS = {"ok": "[green]✓[/green]", "note": "[yellow]•[/yellow]", "fail": "[red]✗[/red]"}


@click.command()
@verb()
def doctor(session: Session) -> int:
    """Check this machine and the platform; exit code 1 if something does not work."""
    from samovar.cli.checks import check_machine, check_platform

    def probe() -> str:
        session.client.request("GET", "/readyz")
        return session.client.connection.url

    verdicts = [*check_machine(), *check_platform(session.get, probe)]
    session.emit([asdict(verdict) for verdict in verdicts], lambda: _table(verdicts))
    return int(any(verdict.level == "fail" for verdict in verdicts))


def _table(verdicts: list[Verdict]) -> Table:
    from rich.markup import escape
    from rich.table import Table

    table = Table("", "what", "found", "what to do", box=None, pad_edge=False, header_style="bold")
    for verdict in verdicts:
        table.add_row(_MARKS[verdict.level], verdict.what, escape(verdict.detail), escape(verdict.advice))
    return table
