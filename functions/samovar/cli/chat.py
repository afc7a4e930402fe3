"""`samovar chat NAME`: a conversation with a function that generates text.

    read a line ─► an order: do it
              └──► a message: ask, show the answer as it comes, remember both

Answers go to stdout, everything else to stderr. Ctrl-C stops an answer, and its call; once more, it leaves.
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import click

from samovar.cli.conversation import HELP, Conversation, Reply, order_of
from samovar.cli.session import Session, verb
from samovar.cli.styling import Paper, Plain, Raw, Styled, printable
from samovar.errors import RequestError, SamovarError
from samovar.tasks import PARTS

RESUME_S = 30.0
PROMPT = "\x01\x1b[1;32m\x02›\x01\x1b[0m\x02 "  # \x01 … \x02: takes no room, says readline
CLEAR_LINE = "\r\x1b[2K"
MAX_HISTORY = 1000
PHASES = {
    "queue": "waiting for a free place",
    "boot": "an instance is starting",
    "connect": "an instance has started",
    "": "the model reads",
}


@click.command()
@click.argument("name")
@click.option("--system", default="", metavar="TEXT", help="What the model is told before everything else.")
@click.option("--temperature", type=float, help="0 = always the likeliest word, to 2.")
@click.option("--top-p", type=float, help="Only of the likeliest words that together have this share.")
@click.option("--max-tokens", type=int, help="Longest answer.")
@click.option("--seed", type=int, help="The same conversation with the same seed gives the same answers.")
@click.option("--timeout", "timeout_s", type=click.FloatRange(min=0, min_open=True), help="Of an answer, in seconds.")
@verb()
def chat(session: Session, name: str, system: str, timeout_s: float | None, **settings: Any) -> int:
    """Talk with the function NAME, of the task text-generation, or one that sees, too.

    What is piped in is one message, and its answer the whole output: echo hi | samovar chat NAME.
    With --json each answer is one line of JSON, with its figures.
    """
    check_task(session, name)
    conversation = Conversation(system)
    conversation.check({key: value for key, value in settings.items() if value is not None})
    talk = Talk(session, name, conversation, timeout_s)
    if sys.stdin is not None and sys.stdin.isatty():
        return talk.run()
    text = "" if sys.stdin is None else sys.stdin.read().strip()
    if not text:
        raise click.UsageError("there is no message: pipe one in, or run it on a terminal")
    return 0 if talk.ask(text) else 130


def check_task(session: Session, name: str) -> None:
    """Return if one can talk with this function. Raises: RequestError saying what it is instead; FunctionNotFound."""
    manifests = session.get(f"/v1/functions/{quote(name, safe='')}")["manifests"]
    tasks = {manifest.get("task", "") for manifest in manifests.values()}
    if tasks.isdisjoint(PARTS):
        what = f"of the task {'/'.join(sorted(filter(None, tasks)))}" if any(tasks) else "a function without a task"
        raise RequestError(
            f"{name} does not generate text: it is {what}. `samovar invoke {name}` calls it; "
            '@sv.function(task="text-generation") makes a function one to talk with'
        )


class Talk:
    """One conversation on this terminal."""

    def __init__(self, session: Session, name: str, conversation: Conversation, timeout_s: float | None) -> None:
        self._session = session
        self._function = session.client.function(name)
        self._conversation = conversation
        self._timeout_s = timeout_s
        self._is_hinting = False
        self._is_warned = False  # the next Ctrl-C leaves

    def run(self) -> int:
        """Talk until the person leaves; return the exit code."""
        self._session.note(f"{self._function.name}: /help lists what can be typed, Ctrl-D leaves")
        with history():
            while True:
                try:
                    line = input(PROMPT if sys.stdout.isatty() and not self._session.as_json else "").strip()
                    if line and self._obey(line):
                        return 0
                except EOFError:
                    self._session.note("")
                    return 0
                except KeyboardInterrupt:
                    self._session.note("" if self._is_warned else "\nCtrl-C once more, or Ctrl-D, leaves")
                    if self._is_warned:
                        return 0
                    self._is_warned = True
                except SamovarError as error:
                    self._fail(error)

    def _obey(self, line: str) -> bool:
        """Do what a line says; return whether it says to leave. Raises: SamovarError."""
        self._is_warned = False
        order = order_of(line)
        if order is None:
            self._is_warned = not self.ask(line[1:] if line.startswith("//") else line)
            return False
        if order[0] == "/exit":
            return True
        self._do(*order)
        return False

    def _do(self, order: str, argument: str) -> None:
        conversation = self._conversation
        if order == "/help":
            width = max(map(len, HELP))
            self._session.note("\n".join(f"{usage:<{width}}  {text}" for usage, text in HELP.items()))
        elif order == "/reset":
            conversation.messages.clear()
            self._session.note("forgotten")
        elif order == "/system":
            conversation.system = argument or conversation.system
            self._session.note(f"system: {conversation.system or 'nothing'}")
        elif order == "/set":
            name, _, value = argument.partition(" ")
            if name:
                conversation.set(name, value.strip())
            shown = ", ".join(f"{key} {value}" for key, value in conversation.settings.items())
            self._session.note(shown or "as the function has it")
        elif order == "/save":
            self._save(argument)

    def _save(self, path: str) -> None:
        if not path:
            raise RequestError("/save needs the name of a file")
        text = json.dumps(
            {"function": self._function.name, **self._conversation.settings} | self._messages(), ensure_ascii=False
        )
        try:
            with Path(path).expanduser().open("x", encoding="utf-8") as file:
                file.write(text + "\n")
        except OSError as error:
            raise RequestError(f"{path}: {error.strerror}; nothing was written") from None
        self._session.note(f"saved to {path}")

    def _messages(self) -> dict[str, Any]:
        return {"messages": self._conversation.all_messages()}

    # ---- answers ---------------------------------------------------------------------------------------------------

    def ask(self, text: str) -> bool:
        """Show the answer to `text` as it comes; return whether it came to its end, False if Ctrl-C stopped it.

        Raises: SamovarError; what had come until then is shown, but not remembered.
        """
        reply, is_whole = Reply(time.monotonic()), True
        try:
            self._show(reply, self._conversation.request(text))
        except KeyboardInterrupt:
            is_whole = False
        finally:
            self._hint("")
        if reply.text or is_whole:
            self._conversation.enter(text, reply.text)
        if self._session.as_json:
            click.echo(json.dumps(reply.facts(), ensure_ascii=False))
        elif is_whole:
            self._session.note(reply.summary())
        else:
            self._session.note("stopped; Ctrl-C once more leaves")
        return is_whole

    def _show(self, reply: Reply, request: dict[str, Any]) -> None:
        from samovar.events import Log, Output, Waiting

        paper = _paper()
        events = self._function.events(request, timeout_s=self._timeout_s, resume_s=RESUME_S)
        with contextlib.closing(events):
            try:
                for event in events:
                    if isinstance(event, Waiting) and not reply.text:
                        self._hint(f"{PHASES.get(event.phase, 'waiting')} · {time.monotonic() - reply.asked_s:.0f} s")
                    elif isinstance(event, Output):
                        self._write(paper.feed(reply.take(event.value, time.monotonic())))
                    elif isinstance(event, Log):
                        self._hint("")
                        self._session.note(printable(event.line))
            finally:
                is_open = bool(reply.text) and not reply.text.endswith("\n")
                self._write(paper.end() + "\n" * is_open)

    def _write(self, text: str) -> None:
        """Show a piece of an answer at once."""
        self._hint("")
        if not self._session.as_json:
            click.echo(text, nl=False, color=True)  # colours are `paper`'s business

    def _hint(self, text: str) -> None:
        """Show on the line below the question what is waited for; "" takes it away."""
        if self._session.as_json or not sys.stderr.isatty() or not (text or self._is_hinting):
            return
        self._is_hinting = bool(text)
        click.echo(CLEAR_LINE + (click.style(text, dim=True) if text else ""), nl=False, err=True)

    def _fail(self, error: SamovarError) -> None:
        self._session.fail(error)
        if error.extra.get("reason") == "context_length_exceeded":
            self._session.note("  the conversation is longer than the model can read: /reset begins anew")


def _paper() -> Paper:
    """Return how text is written to stdout: what was said to a pipe, printable to a terminal, coloured if it can."""
    if not sys.stdout.isatty():
        return Raw()
    return Plain() if "NO_COLOR" in os.environ or os.environ.get("TERM", "") == "dumb" else Styled()


@contextlib.contextmanager
def history() -> Iterator[None]:
    """Let lines be edited, and brought back with the arrow keys, also those of earlier conversations."""
    try:
        import readline
    except ImportError:  # a Python without it: lines are read all the same
        yield
        return
    from samovar.connection import data_dir

    path = data_dir() / "chat_history"
    with contextlib.suppress(OSError):
        readline.read_history_file(path)
    readline.set_history_length(MAX_HISTORY)
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
            path.touch(mode=0o600)
            readline.write_history_file(path)
