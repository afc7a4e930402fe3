"""`samovar ls` and `samovar ps`: functions and instances as the platform knows them now."""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any

import click

from samovar.cli.manage import function_path
from samovar.cli.session import Session, verb
from samovar.cli.text import duration, sandbox, size, traffic
from samovar.errors import NotFound

if TYPE_CHECKING:
    from rich.table import Table

# beyond this, the list alone: one request per function would take long
MAX_DETAILED = 100
_NUM_STREAMS = 8
_STATE_COLOURS = {"ready": "green", "draining": "yellow", "blank": "dim"}


@click.command()
@verb()
def ls(session: Session) -> None:
    """List functions: latest version, instances, route and the last decision about them."""
    found = session.get("/v1/functions")
    if len(found) <= MAX_DETAILED:
        with ThreadPoolExecutor(_NUM_STREAMS) as pool:
            found = list(pool.map(partial(_detailed, session), found))
    now_s = time.time()
    session.emit(found, lambda: _functions_table(found, now_s))


@click.command()
@click.argument("name", required=False)
@verb()
def ps(session: Session, name: str | None) -> None:
    """List instances: of the function NAME, or all with the blank ones."""
    found = session.get("/v1/instances")
    if name is not None:
        found = [instance for instance in found if instance.get("ref", "").rpartition("@")[0] == name]
        if not found:
            session.get(function_path(name))  # a name that is not known at all is an error, with those it may mean
    now_s = time.time()
    session.emit(found, lambda: _instances_table(found, now_s))


def _detailed(session: Session, function: dict[str, Any]) -> dict[str, Any]:
    """Return the list's entry with the status of its versions and the last decisions; as it was if it has gone."""
    try:
        detail = session.get(function_path(function["name"]))
    except NotFound:
        return function
    return function | {"status": detail["status"], "decisions": detail["decisions"]}


def _table(*columns: str) -> Table:
    from rich.table import Table

    return Table(*columns, box=None, pad_edge=False, header_style="bold")


def _functions_table(found: list[dict[str, Any]], now_s: float) -> Table | str:
    if not found:
        return "no functions yet: samovar init my-fn && samovar deploy my-fn/app.py"
    table = _table("function", "latest", "ready/desired", "route", "last decision")
    for function in sorted(found, key=lambda entry: str(entry["name"])):
        route = function["route"]
        shares = ", ".join(f"{version}: {percent}" for version, percent in traffic(route).items())
        table.add_row(
            function["name"], str(route["latest"]), _ready_of(function), shares, _decision_text(function, now_s)
        )
    return table


def _ready_of(function: dict[str, Any]) -> str:
    statuses = (function.get("status") or {}).values()
    if not statuses:
        return f"{function.get('states', {}).get('ready', 0)}/-"
    return f"{sum(status['ready'] for status in statuses)}/{sum(status['desired'] for status in statuses)}"


def _decision_text(function: dict[str, Any], now_s: float) -> str:
    decisions = function.get("decisions") or []
    if not decisions:
        return ""
    last = decisions[0]
    return f"{last['action']} ({last['rule']}) {duration(now_s - float(last['at_s']))} ago"


def _instances_table(found: list[dict[str, Any]], now_s: float) -> Table | str:
    if not found:
        return "no instances"
    table = _table("instance", "function", "state", "pid", "memory", "age", "idle", "device", "boot", "sandbox")
    table.columns[0].min_width = max(len(instance["instance_id"]) for instance in found)  # people copy it
    for instance in sorted(found, key=lambda entry: (entry.get("ref", ""), entry.get("started_at_s", 0))):
        state = str(instance["state"])
        colour = _STATE_COLOURS.get(state, "")
        table.add_row(
            instance["instance_id"],
            instance.get("ref") or "-",
            f"[{colour}]{state}[/{colour}]" if colour else state,
            str(instance.get("pid", "")),
            size(instance["memory_bytes"]) if instance.get("memory_bytes") else "",
            duration(now_s - float(instance.get("started_at_s") or now_s)),
            duration(now_s - float(instance["idle_since_s"])) if instance.get("idle_since_s") else "",
            str(instance.get("device", "")) + (" (simulated)" if instance.get("simulated") else ""),
            _boot_text(instance),
            sandbox(instance.get("sandbox") or []),
        )
    return table


def _boot_text(instance: dict[str, Any]) -> str:
    total_ms = sum(float(ms) for ms in (instance.get("boot_ms") or {}).values())
    text = f"{total_ms:.0f} ms" if total_ms else ""
    return f"{text} from template".strip() if instance.get("from_template") else text
