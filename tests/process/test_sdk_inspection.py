"""Inspecting an author's file in a process of its own: the draft, or the reason with file and line."""

from __future__ import annotations

from pathlib import Path

import pytest

from samovar.deploying import inspect
from samovar.errors import DeployRefused

pytestmark = pytest.mark.process

HEAD = "import samovar as sv\n"  # line 1

REFUSED: list[tuple[str, str, int, str]] = [
    ("import error", "import does_not_exist\n", 2, "cannot import app.py: ModuleNotFoundError"),
    ("syntax error", "def f(:\n", 2, "SyntaxError"),
    ("raises while imported", "\nraise RuntimeError('no tea')\n", 3, "RuntimeError: no tea"),
    ("leaves while imported", "\nraise SystemExit(0)\n", 3, "SystemExit"),
    ("no function", "x = 1\n", 1, "defines no function"),
    (
        "two functions",
        "@sv.function\ndef a(): ...\n@sv.function\ndef b(): ...\n",
        1,
        "several functions; name one: app.py:a, app.py:b",
    ),
    ("no handler", "@sv.function\nclass A: ...\n", 2, "A has no handler"),
    (
        "option twice",
        "\n@sv.function(limits=sv.Limits())\nclass A:\n    limits = sv.Limits()\n    def __call__(self): ...\n",
        3,
        "limits is set twice",
    ),
    ("decorator twice", "@sv.function\n@sv.function\ndef a(): ...\n", 2, "on a twice"),
    (
        "batch without a list",
        "@sv.function(batch=sv.Batch())\ndef a(text: str) -> list[str]: ...\n",
        2,
        "a batch handler must take a list",
    ),
    (
        "batch of two lists",
        "@sv.function(batch=sv.Batch())\ndef a(x: list[str], y: list[str]) -> list[str]: ...\n",
        2,
        "one list of items",
    ),
    (
        "batch that returns no list",
        "@sv.function(batch=sv.Batch())\ndef a(x: list[str]) -> str: ...\n",
        2,
        "must return a list",
    ),
    ("batch that yields", "@sv.function(batch=sv.Batch())\ndef a(x: list[str]):\n    yield 1\n", 2, "cannot yield"),
    ("no hint", "@sv.function\ndef a(text): ...\n", 2, "parameter 'text' needs a type hint"),
    ("unknown hint", "@sv.function\ndef a(text: 'Nope'): ...\n", 2, "name 'Nope' is not defined"),
    ("unreadable hint", "@sv.function\ndef a(text: object): ...\n", 2, "cannot be read from JSON"),
    ("variadic", "@sv.function\ndef a(*texts: str): ...\n", 2, "plain named parameters"),
    ("bad name", "@sv.function(name='Tea Time')\ndef a(): ...\n", 2, "function name 'Tea Time'"),
    ("bad scaling", "\n@sv.function(scaling=sv.Scaling(max_instances=0))\ndef a(): ...\n", 3, "max_instances"),
    ("wrong type", "\n@sv.function(scaling=sv.Scaling(min_instances='2'))\ndef a(): ...\n", 3, "whole numbers"),
    (
        "load without weights and device",
        "@sv.function\nclass A:\n    def load(self): ...\n    def __call__(self): ...\n",
        4,
        r"load must be a method load\(self, weights, device\)",
    ),
    (
        "constructor with arguments",
        "@sv.function\nclass A:\n    def __init__(self, x): ...\n    def __call__(self): ...\n",
        4,
        "may take no arguments",
    ),
    ("weights on a function", "@sv.function(weights=sv.Weights('m'))\ndef a(): ...\n", 2, "needs a class with load"),
    (
        "weights that are not there",
        "@sv.function(weights=sv.Weights('m'))\nclass A:\n    def __call__(self): ...\n",
        2,
        "do not exist",
    ),
    (
        "weights in no package",
        "@sv.function(weights=sv.Weights(package='no_such_package'))\nclass A:\n    def __call__(self): ...\n",
        2,
        "'no_such_package' that holds the weights is not installed",
    ),
    (
        "example that does not fit",
        "@sv.function(example={'text': 1})\ndef a(text: str): ...\n",
        2,
        r"example= does not match the handler's input: \$.text",
    ),
]


@pytest.mark.parametrize(("source", "line", "message"), [case[1:] for case in REFUSED], ids=[c[0] for c in REFUSED])
def test_refused_with_file_and_line(tmp_path: Path, source: str, line: int, message: str) -> None:
    app = tmp_path / "app.py"
    app.write_text(HEAD + source)
    with pytest.raises(DeployRefused, match=message) as caught:
        inspect(str(app))
    assert (caught.value.extra["file"], caught.value.extra["line"]) == (str(app), line)


@pytest.mark.parametrize(
    ("file", "message"),
    [("json.py", "would hide the module 'json'"), ("my-app.py", "cannot be imported"), ("none.py", "there is no file")],
)
def test_files_that_cannot_be_modules(tmp_path: Path, file: str, message: str) -> None:
    if file != "none.py":
        (tmp_path / file).write_text(HEAD)
    with pytest.raises(DeployRefused, match=message):
        inspect(str(tmp_path / file))


def test_a_file_that_kills_its_process_is_reported(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text("import os, signal\nos.kill(os.getpid(), signal.SIGKILL)\n")
    with pytest.raises(DeployRefused, match="signal SIGKILL"):
        inspect(str(tmp_path / "app.py"))


def test_a_draft_tells_everything(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "helper.py").write_text("NAME = 'poured'\n")
    (tmp_path / "model").mkdir()
    (tmp_path / "app.py").write_text(
        "import samovar as sv\nfrom helper import NAME\nprint('imported')\n"
        "@sv.function(name=NAME, weights=sv.Weights('model'), batch=sv.Batch(max_size=3), example={'text': 'tea'},\n"
        " jobs=sv.Jobs(retries=3, give_up_on=['ValueError']))\n"
        "class Pour:\n    def __call__(self, text: list[str]) -> list[int]: ...\n    def check(self): ...\n"
    )
    draft = inspect(str(tmp_path / "app.py"))
    manifest = draft.manifest
    assert (manifest.name, manifest.entry, manifest.kind, manifest.handler) == ("poured", "app:Pour", "class", "sync")
    assert (draft.root, draft.weights) == (str(tmp_path), str(tmp_path / "model"))
    assert manifest.batch is not None
    assert manifest.batch.max_size == 3
    assert manifest.has_check
    assert (manifest.jobs.retries, manifest.jobs.give_up_on) == (3, ["ValueError"])
    assert manifest.output_schema == {"type": "integer"}
    assert "imported" in capfd.readouterr().err, "what the author prints is shown, beside the answer"


def test_one_of_several_functions_can_be_named(tmp_path: Path) -> None:
    (tmp_path / "app.py").write_text(HEAD + "@sv.function\ndef a(): ...\n@sv.function\ndef b(): ...\n")
    assert inspect(f"{tmp_path}/app.py:b").manifest.entry == "app:b"
    with pytest.raises(DeployRefused, match="no function 'c'"):
        inspect(f"{tmp_path}/app.py:c")
