"""`samovar warm`, `scale` and `rm`: tell the platform how many instances a function gets, or that it goes."""

from __future__ import annotations

import sys
from typing import Any
from urllib.parse import quote

import click

from samovar.cli.session import Session, verb
from samovar.cli.text import duration, parse_duration_s


class Duration(click.ParamType[float]):
    """Seconds, written as 90, 90s, 30m or 1h30m."""

    name = "duration"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return the seconds; a usage error if it is no duration."""
        if isinstance(value, float):
            return value
        try:
            return parse_duration_s(str(value))
        except ValueError as error:
            self.fail(str(error), param, ctx)


def function_path(name: str) -> str:
    """Return the path of a function's routes."""
    return f"/v1/functions/{quote(name, safe='')}"


@click.command()
@click.argument("name")
@click.option("--instances", type=click.IntRange(min=0), default=1, show_default=True, help="How many; 0 ends it.")
@click.option("--for", "for_s", type=Duration(), default="30m", show_default=True, help="How long: 90s, 30m, 1h30m.")
@verb()
def warm(session: Session, name: str, instances: int, for_s: float) -> None:
    """Keep --instances of NAME ready for a while, whatever the demand."""
    answer = session.post(f"{function_path(name)}/warm", {"instances": instances, "for_s": for_s})
    session.emit(answer, lambda: f"{name}: {instances} instances kept ready for {duration(for_s)}")


@click.command()
@click.argument("name")
@click.option("--min", "min_instances", type=click.IntRange(min=0), help="Instances kept when there is no demand.")
@click.option("--max", "max_instances", type=click.IntRange(min=1), help="Most instances.")
@click.option("--buffer", "buffer_instances", type=click.IntRange(min=0), help="Idle instances beyond the demand.")
@click.option("--target-concurrency", type=click.FloatRange(min=0, min_open=True), help="Invocations per instance.")
@click.option("--window", "scale_down_window_s", type=Duration(), help="Quiet time before instances go: 90s, 5m.")
@verb()
def scale(session: Session, name: str, **wanted: Any) -> None:
    """Change how many instances NAME may have; what is not given stays."""
    body = {key: value for key, value in wanted.items() if value is not None}
    if not body:
        raise click.UsageError("say what to change: --min, --max, --buffer, --target-concurrency or --window")
    answer = session.post(f"{function_path(name)}/scale", body)
    changes = ", ".join(f"{key} {value:g}" for key, value in body.items())
    session.emit(answer, lambda: f"{name}: {changes}")


@click.command()
@click.argument("name")
@click.option("--yes", is_flag=True, help="Do not ask.")
@verb()
def rm(session: Session, name: str, yes: bool) -> None:
    """Remove the function NAME and all its versions."""
    if not yes:
        if not sys.stdin.isatty():
            raise click.UsageError("removing needs --yes when nobody can be asked")
        if not click.confirm(f"Remove {name} and all its versions?", err=True):
            raise click.UsageError("nothing was removed")
    session.client.request("DELETE", function_path(name))
    session.emit({"name": name, "removed": True}, lambda: f"removed {name}")
