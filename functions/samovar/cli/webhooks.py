"""`samovar webhooks ls|replay|enable|secret`: what could not be told to those who wanted it, and the signing secret.

The secret is printed by `secret` alone. This module does not know how events are delivered.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from samovar.cli.manage import Duration
from samovar.cli.session import Session, verb
from samovar.cli.text import duration

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.table import Table


@click.group()
def webhooks() -> None:
    """Look after those who are told when jobs end."""


@webhooks.command()
@verb()
def ls(session: Session) -> None:
    """List events that were not delivered, and endpoints that fail."""
    found = session.get("/v1/webhooks")
    if session.as_json or not (found["events"] or found["endpoints"]):
        session.emit(found, lambda: "everything was delivered")
        return
    for table in _tables(found, time.time()):
        session.out.print(table)
    if found.get("dropped"):
        session.note(f"{found['dropped']:,} events were not kept: too many were open")


@webhooks.command()
@click.argument("event", required=False)
@click.option("--job", metavar="JOB", help="All events of this job instead.")
@verb()
def replay(session: Session, event: str | None, job: str | None) -> None:
    """Send EVENT (see `samovar webhooks ls`) once more, also if it was delivered."""
    if bool(event) == bool(job):
        raise click.UsageError("say what: EVENT, or --job")
    answer = session.post("/v1/webhooks/replay", {"event": event} if event else {"job": job})
    session.emit(answer, lambda: _sent(answer))


@webhooks.command()
@click.argument("endpoint", metavar="URL")
@verb()
def enable(session: Session, endpoint: str) -> None:
    """Tell the disabled endpoint URL again, beginning with what is kept for it."""
    answer = session.post("/v1/webhooks/enable", {"url": endpoint})
    session.emit(answer, lambda: f"{endpoint} is told again; {_sent(answer)}")


@webhooks.command()
@click.option("--rotate", is_flag=True, help="Replace it first.")
@click.option(
    "--overlap", "overlap_s", type=Duration(), default="24h", show_default=True, help="The old one signs, too."
)
@verb()
def secret(session: Session, rotate: bool, overlap_s: float) -> None:
    """Print the secret that this key's webhooks are signed with."""
    if rotate:
        made = session.post("/v1/webhooks/secret/rotate", {"overlap_s": overlap_s})
        ends = f"signs for another {duration(overlap_s)}, too" if overlap_s else "signs no more"
        session.note(f"The old secret {ends}.")
    else:
        made = session.get("/v1/webhooks/secret")
    session.emit(made, lambda: str(made["secret"]))


def _sent(answer: dict[str, Any]) -> str:
    return "1 event is sent now" if answer["replayed"] == 1 else f"{answer['replayed']:,} events are sent now"


def _tables(found: dict[str, Any], now_s: float) -> list[RenderableType]:
    shown: list[RenderableType] = []
    if found["endpoints"]:
        table = _table("endpoint", "failures", "failing for", "state", "last error")
        table.columns[0].overflow = "fold"  # people copy it
        for one in found["endpoints"]:
            failing = duration(now_s - one["failing_since_s"])
            state = "disabled" if one.get("disabled_at_s") else "is tried"
            _add(table, one["url"], str(one["failures"]), failing, state, one["last_error"])
        shown += [table, ""]
    if found["events"]:
        table = _table("event", "function", "age", "tries", "state", "last error")
        table.columns[0].min_width = max(len(one["id"]) for one in found["events"])  # people copy it
        for one in found["events"]:
            age, state = duration(now_s - one["created_at_s"]), "given up" if one.get("gave_up_at_s") else "waits"
            _add(table, one["id"], one["function"], age, str(one.get("attempts", 0)), state, one.get("last_error", ""))
        shown.append(table)
    return shown


def _table(*columns: str) -> Table:
    from rich.table import Table

    return Table(*columns, box=None, pad_edge=False, header_style="bold")


def _add(table: Table, *cells: str) -> None:
    from rich.text import Text

    table.add_row(*map(Text, cells))  # what endpoints answer is no markup
