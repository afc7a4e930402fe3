"""The verbs by name, with one line of help each: listing them imports none of them."""

from __future__ import annotations

import importlib

import click

from samovar import __version__

VERBS: dict[str, tuple[str, str]] = {
    "up": ("samovar.cli.up:up", "Start the whole platform on this machine, in the foreground"),
    "init": ("samovar.cli.init:init", "Write a folder with a working function"),
    "deploy": ("samovar.cli.deploy:deploy", "Upload a function and make it live"),
    "ls": ("samovar.cli.show:ls", "List functions"),
    "ps": ("samovar.cli.show:ps", "List instances"),
    "invoke": ("samovar.cli.invoke:invoke", "Call a function"),
    "chat": ("samovar.cli.chat:chat", "Talk with a function that generates text"),
    "logs": ("samovar.cli.logs:logs", "Show what a function printed, or its calls"),
    "jobs": ("samovar.cli.jobs:jobs", "Queue work, and look after it"),
    "cron": ("samovar.cli.cron:cron", "Queue work by the clock"),
    "webhooks": ("samovar.cli.webhooks:webhooks", "Look after those who are told when jobs end"),
    "warm": ("samovar.cli.manage:warm", "Keep instances ready for a while"),
    "scale": ("samovar.cli.manage:scale", "Set how many instances a function may have"),
    "canary": ("samovar.cli.rollout:canary", "Give a version some percent of the calls"),
    "promote": ("samovar.cli.rollout:promote", "Give the canary all traffic"),
    "rollback": ("samovar.cli.rollout:rollback", "Take a version out of use and go back"),
    "pin": ("samovar.cli.rollout:pin", "Keep all traffic on a version, whatever is deployed"),
    "mirror": ("samovar.cli.rollout:mirror", "Send copies of calls to a version and compare its answers"),
    "undo": ("samovar.cli.rollout:undo", "Take back the last change of a function's route"),
    "why": ("samovar.cli.rollout:why", "Show why traffic and instances are as they are"),
    "rm": ("samovar.cli.manage:rm", "Remove a function"),
    "keys": ("samovar.cli.keys:keys", "List, create, rotate and revoke API keys"),
    "audit": ("samovar.cli.keys:audit", "Show what was changed, and by whom"),
    "doctor": ("samovar.cli.doctor:doctor", "Check this machine and the platform"),
}


class Verbs(click.Group):
    """A group whose commands are imported on use."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(VERBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in VERBS:
            return None
        module, _, attribute = VERBS[cmd_name][0].partition(":")
        command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Verbs"):
            formatter.write_dl([(name, text) for name, (_, text) in VERBS.items()])


@click.group(cls=Verbs, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, message="samovar %(version)s")
def cli() -> None:
    """Model functions that stay warm: deploy, invoke, scale from zero."""
