"""`samovar up`: become the supervisor. It has the flags; they are passed on as they are."""

from __future__ import annotations

import os
import sys

import click


@click.command(
    add_help_option=False,
    context_settings={"ignore_unknown_options": True, "allow_extra_args": True, "allow_interspersed_args": False},
)
@click.argument("flags", nargs=-1, type=click.UNPROCESSED)
def up(flags: tuple[str, ...]) -> None:
    """Start the whole platform on this machine, in the foreground."""
    sys.stdout.flush()
    os.execv(sys.executable, [sys.executable, "-P", "-m", "samovar_up", *flags])  # noqa: S606
