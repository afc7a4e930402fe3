"""`samovar keys ls|create|rm`: API keys; a secret is shown once, when it is made."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import click

from samovar.cli.session import Session, verb

if TYPE_CHECKING:
    from rich.table import Table

SCOPES = ("admin", "deploy", "invoke")


@click.group()
def keys() -> None:
    """List, create and revoke API keys (needs an admin key)."""


@keys.command("ls")
@verb()
def list_keys(session: Session) -> None:
    """List keys; secrets are not kept, so none is shown."""
    found = session.get("/v1/keys")
    session.emit(found, lambda: _table(found))


@keys.command("create")
@click.argument("name")
@click.option("--scope", "scopes", type=click.Choice(SCOPES), multiple=True, default=("invoke",), show_default=True)
@click.option("--function", "functions", multiple=True, help="Bind the key to this function; may be repeated.")
@verb()
def create_key(session: Session, name: str, scopes: tuple[str, ...], functions: tuple[str, ...]) -> None:
    """Create a key called NAME and print it, this once."""
    made = session.post("/v1/keys", {"name": name, "scopes": list(scopes), "functions": list(functions)})
    session.note("This is shown once; only its hash is kept.")
    session.emit(made, lambda: str(made["key"]))


@keys.command("rm")
@click.argument("key_id")
@verb()
def remove_key(session: Session, key_id: str) -> None:
    """Revoke the key KEY_ID (see `samovar keys ls`)."""
    session.client.request("DELETE", f"/v1/keys/{quote(key_id, safe='')}")
    session.emit({"key_id": key_id, "removed": True}, lambda: f"revoked {key_id}")


def _table(found: list[dict[str, Any]]) -> Table:
    from rich.table import Table

    table = Table("key id", "name", "scopes", "functions", box=None, pad_edge=False, header_style="bold")
    for key in found:
        bound = ", ".join(key.get("functions") or ()) or "all"
        table.add_row(key["key_id"], key["name"], ", ".join(key["scopes"]), bound)
    return table
