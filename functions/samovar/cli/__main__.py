"""Entry point of `samovar` and `python -m samovar.cli`: run the verb, turn whatever happens into an exit code.

0 done · 2 wrong usage · 130 Ctrl-C · else the `exit_code` of the error (samovar.errors) · 1 a bug of ours
"""

from __future__ import annotations

import sys
import traceback

import click

from samovar.cli.root import cli

INTERRUPTED = 130


def run(arguments: list[str]) -> int:
    """Run one command line and return its exit code; nothing but `--debug` shows a traceback."""
    try:
        result = cli.main(arguments, prog_name="samovar", standalone_mode=False)
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        click.echo("interrupted", err=True)
        return INTERRUPTED
    except Exception as error:  # noqa: BLE001 (the last line of defence: people get a sentence)
        if "--debug" in arguments:
            traceback.print_exc()
        click.secho("error", fg="red", bold=True, nl=False, err=True)
        click.echo(f" {type(error).__name__}: {error} (a bug: run again with --debug to see where)", err=True)
        return 1
    return result if isinstance(result, int) else 0


def main() -> None:
    """Run the process's own command line and exit."""
    sys.exit(run(sys.argv[1:]))


if __name__ == "__main__":
    main()
