"""`samovar chat` as people have it: a real terminal, a real gateway, a real instance of a parrot."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import pytest

from support.gateway import ADMIN_KEY
from support.instance_driver import FUNCTIONS, Zygote
from support.openai_gateway import Platform, running_platform
from support.terminal import Terminal, on_terminal
from support.waiting import wait_until

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def platform(valkey: Any, seaweed: Any, session_zygote: Zygote) -> Iterator[Platform]:
    with running_platform(valkey, seaweed, session_zygote) as running:
        running.serve("parrot")
        running.serve("tells")
        yield running
    session_zygote.clean()


class Chatter:
    """Starts `samovar chat`."""

    def __init__(self, platform: Platform, folder: Path) -> None:
        self._folder = folder
        self._environment = {name: value for name, value in os.environ.items() if not name.startswith("SAMOVAR_")} | {
            "SAMOVAR_URL": platform.gateway.url,
            "SAMOVAR_API_KEY": ADMIN_KEY,
            "SAMOVAR_DATA_DIR": str(folder / "data"),
            "TERM": "xterm-256color",
            "COLUMNS": "100",
        }

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "samovar.cli", *arguments]

    def talk(self, *arguments: str) -> AbstractContextManager[Terminal]:
        """Chat on a terminal."""
        return on_terminal(self.command("chat", *arguments), self._environment)

    def pipe(self, given: str, *arguments: str) -> subprocess.CompletedProcess[str]:
        """Run any verb without a terminal."""
        return subprocess.run(
            self.command(*arguments),
            input=given,
            env=self._environment,
            cwd=self._folder,
            capture_output=True,
            encoding="utf-8",
            errors="surrogateescape",
            timeout=60,
            check=False,
        )


@pytest.fixture
def chatter(platform: Platform, tmp_path: Path) -> Chatter:
    return Chatter(platform, tmp_path)


def leave(terminal: Terminal, after: int) -> None:
    """Press Ctrl-D once there is a prompt."""
    terminal.see("› ", after=after)
    terminal.type("\x04")
    assert terminal.end() == 0


def test_a_conversation_on_a_terminal(chatter: Chatter, tmp_path: Path) -> None:
    with chatter.talk("parrot", "--system", "be kind", "--seed", "7") as terminal:
        place = terminal.see("› ")
        terminal.type("tea is **ready**\n")
        place = terminal.see("tea is **ready**\n", after=place)
        place = terminal.see("tea is **ready**\n", after=place)
        place = terminal.see("3 tokens · ", after=place)
        assert "first after 0." in terminal.text[place:] or terminal.see("first after 0.", after=place)
        terminal.type("/set temperature 0.2\n")
        place = terminal.see("seed 7, temperature 0.2", after=place)
        terminal.type("/set temprature 1\n")
        place = terminal.see("did you mean temperature?", after=place)
        terminal.type("/set temperature 9\n")
        place = terminal.see("temperature is a number from 0 to 2", after=place)
        terminal.type("/system\n")
        place = terminal.see("system: be kind", after=place)
        terminal.type("/help\n")
        place = terminal.see("/save FILE", after=place)
        terminal.type(f"/save {tmp_path}/chat.json\n")
        place = terminal.see("saved to", after=place)
        terminal.type(f"/save {tmp_path}/chat.json\n")
        place = terminal.see("nothing was written", after=place)
        terminal.type("/reset\n")
        place = terminal.see("forgotten", after=place)
        leave(terminal, place)
    assert "\x1b[1m**ready**\x1b[0m" in terminal.shown, "bold is shown bold"
    saved = json.loads((tmp_path / "chat.json").read_text())
    assert [message["role"] for message in saved["messages"]] == ["system", "user", "assistant"]
    assert (saved["seed"], saved["temperature"], saved["function"]) == (7, 0.2, "parrot")


def test_ctrl_c_stops_the_answer_and_its_call_and_a_second_leaves(chatter: Chatter, platform: Platform) -> None:
    instance = platform.instances["parrot"]
    with chatter.talk("parrot") as terminal:
        terminal.see("› ")
        terminal.type("one two three !pause=0.1 !repeat=100\n")
        place = terminal.see("three one two")
        terminal.type("\x03")
        place = terminal.see("stopped", after=place)
        wait_until(lambda: "parrot: cancelled after" in instance.log_text(), what="the generator ended")
        terminal.type("\x03")
        assert terminal.end() == 0
    assert "Traceback" not in terminal.text


def test_lines_come_back_in_the_next_conversation(chatter: Chatter) -> None:
    for typed in ("polly\n", "\x1b[A\x1b[A\n"):
        with chatter.talk("parrot") as terminal:
            place = terminal.see("› ")
            terminal.type(typed)
            terminal.see("1 token ·", after=place)
            terminal.type("/exit\n")
            assert terminal.end() == 0
    assert terminal.text.count("polly") >= 2


def test_while_an_instance_starts_it_says_so(chatter: Chatter, platform: Platform) -> None:
    platform.deploy(FUNCTIONS / "parrot", name="sleeper")
    with chatter.talk("sleeper", "--timeout", "6") as terminal:
        terminal.see("› ")
        terminal.type("hello\n")
        terminal.see("an instance is starting · 2 s")
        place = terminal.see("the deadline passed")
        leave(terminal, place)
    assert "\r\x1b[2K" in terminal.shown and "Traceback" not in terminal.text[place:]


def test_errors_are_told_and_the_conversation_goes_on(chatter: Chatter) -> None:
    with chatter.talk("parrot") as terminal:
        place = terminal.see("› ")
        for typed, seen in (
            ("!fail", "the parrot fell off its perch"),
            ("!break tea", "the parrot lost its voice"),
            ("/set max_tokens 6000", "max_tokens 6000"),
            ("tea", "/reset begins anew"),
            ("/set max_tokens", "as the function has it"),
            ("/nonsense", "/help lists"),
            ("//exit", "1 token ·"),
            ("\udcff", "text that UTF-8 cannot carry"),  # a byte that is none
        ):
            terminal.type(typed + "\n")
            place = terminal.see(seen, after=place)
        leave(terminal, place)


def test_bytes_that_are_no_text_are_refused_whichever_way_they_come(chatter: Chatter) -> None:
    for given, arguments in (
        ("\udcff", ("chat", "parrot")),
        ("tea", ("chat", "parrot", "--system", "\udcff")),
        ("", ("invoke", "parrot", "--json", '{"prompt": "\udcff"}')),
    ):
        done = chatter.pipe(given, *arguments)
        assert done.returncode == 6 and "UTF-8" in done.stderr and "bug" not in done.stderr, arguments


def test_what_could_steer_a_terminal_is_not_shown(chatter: Chatter) -> None:
    done = chatter.pipe("a\x1b[31mb\x07c", "chat", "parrot")
    assert done.stdout == "a\x1b[31mb\x07c\n", "a pipe gets what was said"
    with chatter.talk("parrot") as terminal:
        terminal.see("› ")
        terminal.type("bell\x16\x07 \x16\x1b]0;title\n")
        leave(terminal, terminal.see("2 tokens ·"))
    answer = terminal.shown[terminal.shown.rindex("bell") :]
    assert "\x07" not in answer and "\x1b]" not in answer


def test_in_a_pipe_the_answer_is_all_there_is(chatter: Chatter) -> None:
    done = chatter.pipe("tea is ready\n", "chat", "parrot")
    assert (done.returncode, done.stdout) == (0, "tea is ready\n") and "3 tokens" in done.stderr
    done = chatter.pipe("tea is ready", "chat", "parrot", "--json", "--max-tokens", "2")
    facts = json.loads(done.stdout)
    assert facts["content"] == "tea is" and facts["finish_reason"] == "length" and done.stderr == ""
    assert facts["usage"]["completion_tokens"] == 2 and facts["first_token_s"] > 0
    assert chatter.pipe(" ", "chat", "parrot").returncode == 2
    failed = chatter.pipe("!fail", "chat", "parrot", "--json")
    assert failed.returncode == 7 and json.loads(failed.stderr)["error"]["code"] == "function_raised"


def test_one_talks_with_functions_that_generate_text_alone(chatter: Chatter) -> None:
    refused = chatter.pipe("hi", "chat", "tells")
    assert refused.returncode == 6 and "tells does not generate text: it is a function without a task" in refused.stderr
    assert chatter.pipe("hi", "chat", "nobody").returncode == 5
    assert "temperature is a number from 0 to 2" in chatter.pipe("hi", "chat", "parrot", "--temperature", "3").stderr


def test_a_call_tells_what_happens_meanwhile(chatter: Chatter) -> None:
    done = chatter.pipe('{"n": 2}', "invoke", "tells", "--events", "-v")
    assert (done.returncode, done.stdout) == (0, '{"i": 0}\n{"i": 1}\n')
    told = done.stderr.splitlines()
    assert told[:3] == ["  the kettle is on", "    0% cup 0", "   50% cup 1"] and "tells@1: 2 outputs" in told
    failed = chatter.pipe("", "invoke", "tells", "-N", "--json", '{"n": 3, "fail_at": 1}', "--json")
    events = [json.loads(line) for line in failed.stdout.splitlines()]
    assert failed.returncode == 7 and json.loads(failed.stderr)["error"]["code"] == "function_raised"
    assert [event["event"] for event in events] == ["log", "progress", "output"] and events[2]["data"] == {"i": 0}
    both = chatter.pipe("", "invoke", "tells", "--json", "1", "--json", "2")
    assert both.returncode == 2 and "one of it" in both.stderr
