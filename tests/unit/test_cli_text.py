"""Numbers, times and JSON as the command line writes them."""

from __future__ import annotations

import base64
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samovar.cli.deploy import shown_body
from samovar.cli.text import bars, duration, parse_duration_s, pretty_json, sample, size
from samovar.spec import BlobRef, Manifest


@pytest.mark.parametrize(
    ("text", "seconds"), [("90", 90), ("1.5s", 1.5), ("30m", 1800), ("1h30m", 5400), (" 2D ", 172800), ("0", 0)]
)
def test_durations_are_read(text: str, seconds: float) -> None:
    assert parse_duration_s(text) == seconds


@pytest.mark.parametrize("text", ["", "m", "5x", "1h 30m", "-5", "30m!", "1e3"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration"):
        parse_duration_s(text)


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        *((-1, "0.0s"), (0, "0.0s"), (2e-5, "1ms"), (0.044, "44ms"), (0.44, "0.4s"), (59.4, "59s")),
        *((59.6, "1m00s"), (200, "3m20s"), (18120, "5h02m"), (273600, "3d4h")),
    ],
)
def test_durations_are_written(seconds: float, text: str) -> None:
    assert duration(seconds) == text


@pytest.mark.parametrize(
    ("count", "text"), [(0, "0 B"), (1023, "1023 B"), (1536, "1.5 KiB"), (90 * 2**20, "90.0 MiB"), (2**41, "2.0 TiB")]
)
def test_sizes(count: int, text: str) -> None:
    assert size(count) == text


def test_bars_are_as_long_as_their_share() -> None:
    lines = bars({"queue": 0.0, "run": 25.0, "total": 50.0, "load": 50.0})
    assert [line.split()[0] for line in lines] == ["queue", "load", "run", "total"]
    assert [line.count("█") for line in lines] == [0, 40, 20, 0]
    assert bars({}) == []
    assert bars({"run": 0.0})[0].endswith("ms")


_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=15,
)


@given(_json)
def test_pretty_json_is_the_same_json(value: Any) -> None:
    assert json.loads(pretty_json(value)) == value


def test_numbers_stay_on_one_line() -> None:
    assert (
        pretty_json({"a": [1, 2, 3], "b": [{"c": 1}]})
        == '{\n  "a": [1, 2, 3],\n  "b": [\n    {\n      "c": 1\n    }\n  ]\n}'
    )


TEXT = {"text": {"type": "string"}, "n": {"type": "integer", "default": 3}}
NUMBERS = {"x": {"type": "array", "items": {"type": "number"}}}


@pytest.mark.parametrize(
    ("schema", "value"),
    [
        ({"type": "object", "properties": TEXT, "required": ["text"]}, {"text": "text"}),
        ({"type": "object", "properties": NUMBERS, "required": ["x"]}, {"x": [1.0]}),
        ({"enum": ["a", "b"]}, "a"),
        ({"anyOf": [{"type": "integer"}, {"type": "null"}]}, 1),
        ({}, {}),
    ],
)
def test_a_sample_shows_what_a_call_looks_like(schema: dict[str, Any], value: Any) -> None:
    assert sample(schema) == value


def deployed(task: str, example: Any) -> Manifest:
    return Manifest(
        name="f",
        version=1,
        entry="a:f",
        kind="class",
        handler="sync",
        code=BlobRef(sha256="a" * 64, size_bytes=1),
        task=task,
        example=example,
    )


def test_how_a_function_is_called_can_be_typed_as_it_stands(tmp_path: Path) -> None:
    assert shown_body(deployed("", {"text": "it's tea"})) == ("", """'{"text": "it'"'"'s tea"}'""")
    piped, body = shown_body(deployed("automatic-speech-recognition", {"audio": [0.0] * 1600}))
    (tmp_path / "speech.wav").write_bytes(bytes(range(256)) * 1000)  # larger than an argument of a command may be
    done = subprocess.run(["/bin/sh", "-c", f"{piped} cat"], cwd=tmp_path, capture_output=True, check=True)
    assert base64.b64decode(json.loads(done.stdout)["audio"]) == bytes(range(256)) * 1000
    assert body == "@-"
