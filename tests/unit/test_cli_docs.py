"""docs/cli.md and docs/authoring.md name everything there is."""

from __future__ import annotations

import inspect
import typing
from collections.abc import Iterator
from pathlib import Path

import click
import msgspec
import pytest

import samovar as sv
from samovar import errors
from samovar.cli.root import VERBS, cli
from samovar.options import OPTION_TYPES

DOCS = Path(__file__).parents[2] / "docs"
COMMON = {"--url", "--api-key", "--json", "--debug", "--help"}


def _options(command: click.Command) -> Iterator[str]:
    if isinstance(command, click.Group):
        for name in command.list_commands(click.Context(command)):
            found = command.get_command(click.Context(command), name)
            assert found is not None
            yield from _options(found)
    for parameter in command.params:
        if isinstance(parameter, click.Option):
            yield max(parameter.opts, key=len)


@pytest.mark.parametrize("verb", VERBS)
def test_every_verb_and_option_is_documented(verb: str) -> None:
    text = (DOCS / "cli.md").read_text()
    assert f"`{verb}" in text
    command = cli.get_command(click.Context(cli), verb)
    assert command is not None
    assert [option for option in _options(command) if option not in text] == []


def test_every_exit_code_is_documented() -> None:
    rows = (DOCS / "cli.md").read_text().splitlines()
    codes = {kind.exit_code for kind in errors.by_code().values()} | {0, 2, 130}
    assert [code for code in codes if not any(row.startswith(f"| {code} |") for row in rows)] == []


def test_every_option_of_a_function_is_documented() -> None:
    text = (DOCS / "authoring.md").read_text()
    fields = [
        field.name
        for kind in (*OPTION_TYPES.values(), sv.Cached)
        if issubclass(kind, msgspec.Struct)
        for field in msgspec.structs.fields(kind)
    ]
    assert [name for name in [*OPTION_TYPES, *fields] if name not in text] == []


def test_the_decorator_accepts_what_its_signature_says() -> None:
    overloads = typing.get_overloads(sv.function)
    declared = {name for overload in overloads for name in inspect.signature(overload).parameters}
    assert declared - {"target"} == set(OPTION_TYPES)
