"""`samovar keys list|create|rotate|revoke` and `samovar audit`: who may call, and what was changed.

A secret is shown once, when it is made.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import click

from samovar.cli.manage import Duration
from samovar.cli.session import Session, verb
from samovar.cli.text import duration

if TYPE_CHECKING:
    from rich.table import Table

SCOPES = ("admin", "deploy", "invoke")
PRIORITIES = ("high", "normal", "low")


@click.group()
def keys() -> None:
    """List, create, rotate and revoke API keys (needs an admin key)."""


@keys.command("list")
@verb()
def list_keys(session: Session) -> None:
    """List keys, and when each was last used; secrets are not kept, so none is shown."""
    found = session.get("/v1/keys")
    session.emit(found, lambda: _table(found, time.time()))


@keys.command("create")
@click.argument("name")
@click.option("--scope", "scopes", type=click.Choice(SCOPES), multiple=True, default=("invoke",), show_default=True)
@click.option("--function", "functions", multiple=True, help="Bind the key to this function; may be repeated.")
@click.option("--rate", metavar="RATE", help="Limit its calls: 20/s, 300/m or 1000/h.")
@click.option("--burst", type=click.IntRange(min=1), help="Calls that may come at once [one second's worth].")
@click.option("--max-priority", type=click.Choice(PRIORITIES), help="Calls that ask for more are lowered to this.")
@click.option("--expires", "expires_s", type=Duration(), help="Stop working after 12h, 30d …")
@verb()
def create_key(session: Session, name: str, expires_s: float | None, **terms: Any) -> None:
    """Create a key called NAME and print it, this once."""
    body = {"name": name} | {option: value for option, value in terms.items() if value is not None}
    if expires_s is not None:
        body["expires_at_s"] = time.time() + expires_s
    made = session.post("/v1/keys", body)
    session.note(f"Key {made['key_id']} ({_terms(made, time.time())}). This is shown once; only its hash is kept.")
    session.emit(made, lambda: str(made["key"]))


@keys.command("rotate")
@click.argument("key_id")
@click.option("--overlap", "overlap_s", type=Duration(), default="24h", show_default=True, help="Old secret works on.")
@verb()
def rotate_key(session: Session, key_id: str, overlap_s: float) -> None:
    """Give the key KEY_ID a new secret and print it, this once; the old one works on for --overlap (0 = ends now)."""
    made = session.post(f"{_path(key_id)}/rotate", {"overlap_s": overlap_s})
    ends = f"works for another {duration(overlap_s)}" if overlap_s else "no longer works"
    session.note(f"The old secret of {key_id} {ends}. The new one is shown once.")
    session.emit(made, lambda: str(made["key"]))


@keys.command("revoke")
@click.argument("key_id")
@verb()
def revoke_key(session: Session, key_id: str) -> None:
    """Revoke the key KEY_ID (see `samovar keys list`): refused everywhere within a second."""
    session.client.request("DELETE", _path(key_id))
    session.emit({"key_id": key_id, "removed": True}, lambda: f"revoked {key_id}")


keys.add_command(list_keys, "ls")
keys.add_command(revoke_key, "rm")


@click.command()
@click.option("--since", "since_s", type=Duration(), default="1h", show_default=True, help="How far back: 30m, 1h, 7d.")
@click.option("--limit", type=click.IntRange(1, 10_000), default=1000, show_default=True, help="Newest entries shown.")
@verb()
def audit(session: Session, since_s: float, limit: int) -> None:
    """Show what was changed on the platform: when, by which key, what, and with what result (needs an admin key)."""
    found = session.get(f"/v1/audit?since_s={since_s:.3f}&limit={limit}")
    if not found:
        session.note(f"Nothing was changed in the last {duration(since_s)}.")
    session.emit(found, lambda: _audit_table(found))


def _path(key_id: str) -> str:
    return f"/v1/keys/{quote(key_id, safe='')}"


def _table(found: list[dict[str, Any]], now_s: float) -> Table:
    from rich.table import Table

    columns = ("key id", "name", "scopes", "functions", "terms", "last used")
    table = Table(*columns, box=None, pad_edge=False, header_style="bold")
    for key in found:
        bound = ", ".join(key.get("functions") or ()) or "all"
        used_s = key.get("last_used_at_s")
        used = f"{duration(now_s - used_s)} ago" if used_s else "never"
        table.add_row(key["key_id"], key["name"], ", ".join(key["scopes"]), bound, _terms(key, now_s), used)
    return table


def _terms(key: dict[str, Any], now_s: float) -> str:
    """Return a key's limits as people say them."""
    parts = []
    if key.get("rate"):
        parts.append(key["rate"] + (f", bursts of {key['burst']}" if key.get("burst") else ""))
    if key.get("max_priority", "high") != "high":
        parts.append(f"priority up to {key['max_priority']}")
    if ends_s := key.get("expires_at_s"):
        parts.append(f"expires in {duration(ends_s - now_s)}" if ends_s > now_s else "expired")
    if key.get("previous_until_s", 0) > now_s:
        parts.append(f"old secret for {duration(key['previous_until_s'] - now_s)}")
    return "; ".join(parts) or "no limits"


def _audit_table(found: list[dict[str, Any]]) -> Table:
    from rich.table import Table

    table = Table("when (UTC)", "key id", "call", "status", "change", box=None, pad_edge=False, header_style="bold")
    for entry in found:
        when = time.strftime("%Y-%m-%d %H:%M:%S", time.gmtime(entry["at_s"]))
        call = f"{entry['method']} {entry['path']}".strip()
        table.add_row(when, entry["key_id"] or "nobody", call, str(entry["status"]), _change(entry.get("change")))
    return table


def _change(change: Any) -> str:
    if not isinstance(change, dict):
        return "" if change is None else str(change)
    plain = {name: value for name, value in change.items() if value not in ("", 0, None, [], {}, "[left out]")}
    return ", ".join(f"{name}={value}" for name, value in plain.items())[:120]
