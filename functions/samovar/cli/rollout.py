"""`samovar canary`, `promote`, `rollback`, `pin`, `mirror`, `undo` and `why`: who gets a function's calls, and why."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

import click

from samovar.cli.manage import Duration, function_path
from samovar.cli.session import Session, verb
from samovar.cli.text import duration, traffic

C = TypeVar("C", bound=Callable[..., Any])
_NUM_LINES = 20
_EVENTS = ("boot_failed", "lost", "prepare", "replace", "promote", "rollback")  # they say nothing about a target


def trial_options(command: C) -> C:
    """Add the options of a canary beside its percent."""
    sticky = "Who keeps to a version: 'key' (callers by API key), 'header:NAME', or '' (nobody)."
    for option in (
        click.option("--sticky", help=sticky),
        click.option("--bake", "bake_s", type=Duration(), help="With --auto: how long it is watched [10m]."),
        click.option("--auto/--no-auto", default=None, help="Promote it, or roll it back, by what its calls show."),
    ):
        command = option(command)
    return command


def trial_of(auto: bool | None, bake_s: float | None, sticky: str | None) -> dict[str, Any]:
    """Return what was asked of a canary, as the gateway takes it; empty if nothing was."""
    given = {"auto": auto, "bake_s": bake_s, "sticky": sticky}
    return {key: value for key, value in given.items() if value is not None}


@click.command()
@click.argument("name")
@click.option("--to", "version", type=click.IntRange(min=1), help="The version [the canary there is, or the latest].")
@click.option("--percent", type=click.IntRange(1, 99), required=True, help="Its share of the calls.")
@trial_options
@verb()
def canary(session: Session, name: str, version: int | None, percent: int, **trial: Any) -> None:
    """Give version --to of NAME --percent of the calls, once it is ready."""
    _change(session, name, "canary", {"version": version or 0, "percent": percent, **trial_of(**trial)})


@click.command()
@click.argument("name")
@verb()
def promote(session: Session, name: str) -> None:
    """Give the canary of NAME all traffic, as fast as it comes up."""
    _change(session, name, "promote", {})


@click.command()
@click.argument("name")
@click.option("--to", "version", type=click.IntRange(min=1), help="The version [what had the traffic before].")
@click.option("--reason", default="", help="Kept in the route's history.")
@verb()
def rollback(session: Session, name: str, version: int | None, reason: str) -> None:
    """Take the canary of NAME, or else its newest version, out of use: it is not routed to again."""
    _change(session, name, "rollback", {"to": version or 0, "reason": reason})


@click.command()
@click.argument("name")
@click.argument("version", type=click.IntRange(min=1), required=False)
@click.option("--off", is_flag=True, help="Let deploys move traffic again.")
@verb()
def pin(session: Session, name: str, version: int | None, off: bool) -> None:
    """Give VERSION of NAME (the one with the most traffic) all traffic; deploys move none away from it."""
    if off and version is not None:
        raise click.UsageError("give a version, or --off")
    _change(session, name, "pin", {"off": True} if off else {"version": version or 0})


@click.command()
@click.argument("name")
@click.option("--to", "version", type=click.IntRange(min=1), help="The version [the mirror there is, or the latest].")
@click.option("--percent", type=click.IntRange(0, 100), required=True, help="Of the calls; 0 ends it.")
@verb()
def mirror(session: Session, name: str, version: int | None, percent: int) -> None:
    """Send copies of --percent of the calls of NAME to version --to. Its answers are compared, never returned."""
    _change(session, name, "mirror", {"version": version or 0, "percent": percent})


@click.command()
@click.argument("name")
@verb()
def undo(session: Session, name: str) -> None:
    """Take back the last change of the route of NAME; undoing an undo does it again."""
    _change(session, name, "undo", {})


@click.command()
@click.argument("name")
@verb()
def why(session: Session, name: str) -> None:
    """Show who gets the calls of NAME, what changed that, and the last decisions about its instances."""
    found = session.get(f"{function_path(name)}/why")
    now_s = time.time()
    session.emit(found, lambda: _why_text(found, now_s))


def _change(session: Session, name: str, command: str, body: dict[str, Any]) -> None:
    answer = session.post(f"{function_path(name)}/route/{command}", body)
    session.emit(answer, lambda: f"{name}: {answer['changed']}\n  {_route_text(answer['route'])}")


def _route_text(route: dict[str, Any]) -> str:
    shares = traffic(route)
    parts = [", ".join(f"version {version}: {shares[version]}" for version in route["shares"])]
    if trial := route.get("canary"):
        auto = f", by itself after {duration(trial['bake_s'])}" if trial["auto"] else ""
        parts.append(f"canary {trial['version']}: {trial['percent']} %{auto}")
    if how := route.get("sticky"):
        parts.append(f"sticky by {how}")
    if copies := route.get("mirror"):
        parts.append(f"mirror {copies['version']}: {copies['percent']} %")
    if route.get("pinned"):
        parts.append(f"pinned to {route['pinned']}")
    if route.get("rejected"):
        parts.append(f"rejected: {', '.join(map(str, route['rejected']))}")
    return " · ".join(parts)


def _breaker_text(breaker: dict[str, Any]) -> str:
    reason = breaker["reason"].replace("_", " ")
    if breaker["state"] == "half_open":
        return f"its breaker lets probes through ({reason})"
    return f"its breaker is open ({reason}), next probe in {duration(breaker['retry_after_s'])}"


def _why_text(found: dict[str, Any], now_s: float) -> str:
    ready = ", ".join(f"version {version}: {count}" for version, count in found["ready"].items())
    lines = [f"{found['name']}: {_route_text(found['route'])}", f"  ready: {ready or 'none'}"]
    if calls := found.get("calls"):
        by = ", ".join(f"{protocol} {number}" for protocol, number in sorted(calls.items()))
        lines.append(f"  calls at this gateway: {by}")
    if found["serving"] != "target":
        before = ", ".join(found["route"]["previous"])
        lines.append(f"  version {before} still serves: its successor is {_state_of(found)}")
    for failure in found["boot_failures"].values():
        lines.append(f"  {failure['ref']} does not come up: {failure['detail']}")
    lines += [f"  {ref}: {_breaker_text(one)}" for ref, one in found["breakers"].items() if one["state"] != "closed"]
    if report := found.get("trial"):
        lines.append(f"  canary {report['ref']}: {report['action']} ({report['rule']}): {report['reason']}")
    if report := found.get("mirror"):
        lines += _mirror_lines(report)
    lines.append("changes, newest first")
    lines += [f"  {_ago(change, now_s)}  {_change_text(change)}" for change in found["route"]["history"]]
    lines.append("decisions, newest first")
    lines += [f"  {_ago(one, now_s)}  {_decision_text(one)}" for one in found["decisions"][:_NUM_LINES]]
    return "\n".join(lines)


def _mirror_lines(report: dict[str, Any]) -> list[str]:
    counts = ", ".join(f"{report[kind]} {kind}" for kind in ("equal", "different", "failed", "skipped"))
    paths = [f"    differs {count} times at {path}" for path, count in list(report["paths"].items())[:_NUM_LINES]]
    return [f"  mirrored answers: {counts}", *paths]


def _state_of(found: dict[str, Any]) -> str:
    return "coming up" if found["serving"] == "moving" else "not ready"


def _ago(entry: dict[str, Any], now_s: float) -> str:
    return f"{duration(now_s - float(entry['at_s'])):>6} ago"


def _change_text(change: dict[str, Any]) -> str:
    by = f" (by {change['by']})" if change.get("by") else ""
    return f"{change['what']}: {change['reason']}{by}"


def _decision_text(decision: dict[str, Any]) -> str:
    text = f"{decision['ref']} {decision['action']} ({decision['rule']})"
    return text if decision["action"] in _EVENTS else f"{text}, wanted {decision['desired']}"
