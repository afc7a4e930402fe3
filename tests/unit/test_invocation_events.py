"""Server-sent events of invocations: who asks for them, how they are written, what waits to be told."""

from __future__ import annotations

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from samovar.wire import LogLine, Progress
from samovar_gateway.events.accept import prefers_events
from samovar_gateway.events.encoding import as_json, comment, event
from samovar_gateway.events.heard import MAX_LINES, Heard


@pytest.mark.parametrize(
    ("accept", "is_preferred"),
    [
        ("text/event-stream", True),
        ("Text/Event-Stream; charset=utf-8", True),
        ("text/event-stream, */*;q=0.1", True),
        ("*/*, text/event-stream", True),
        ("application/x-ndjson, text/event-stream", True),
        ("text/event-stream;q=0.5, application/json", True),
        ("application/x-ndjson, text/event-stream;q=0.5", False),
        ("text/event-stream;q=0.5, application/*;q=0.6", False),
        ("text/event-stream;q=0.5, application/*, application/x-ndjson;q=0.4", True),
        ("text/event-stream;q=0.5, */*", False),
        ("text/event-stream;q=0", False),
        ("text/event-stream;q=2", False),
        ("text/event-stream;q=much", False),
        ("text/event-stream;q=nan", False),
        ("text/*", False),
        ("*/*", False),
        ("text/event-streams", False),
        ("", False),
        (",;,=;q", False),
    ],
)
def test_events_are_for_those_who_name_them_and_like_them_as_well(accept: str, is_preferred: bool) -> None:
    assert prefers_events(accept, "application/x-ndjson") is is_preferred


@given(st.text())
def test_any_header_is_read(accept: str) -> None:
    assert prefers_events(accept, "application/json") in (True, False)


def test_an_event_is_one_block_however_many_lines_its_json_has() -> None:
    assert event(7, "output", b'{"a":1}') == b'id: 7\nevent: output\ndata: {"a":1}\n\n'
    block = event(8, "output", b'{\r\n"a":\r1\n}')
    assert block == b'id: 8\nevent: output\ndata: {\ndata: "a":\ndata: 1\ndata: }\n\n'
    assert comment("running") == b": running\n\n"


@given(st.recursive(st.none() | st.text(), st.lists, max_leaves=5))
def test_data_comes_out_as_it_went_in(value: object) -> None:
    lines = event(1, "output", json.dumps(value, indent=1).encode()).decode().removesuffix("\n\n").split("\n")[2:]
    assert json.loads("\n".join(line.removeprefix("data: ") for line in lines)) == value


def test_what_is_no_json_is_put_into_json() -> None:
    assert as_json("application/json; charset=utf-8", b"[1]") == b"[1]"
    data = msgspec.json.decode(as_json("image/png", b"\x89PNG"))
    assert data == {"content_type": "image/png", "base64": "iVBORw=="}


def test_what_was_said_is_told_in_its_place() -> None:
    heard = Heard()
    heard.add(0, LogLine(1, "first"))
    heard.add(2, LogLine(1, "after two"))
    heard.add(2, Progress(1, 0.5))
    heard.add(2, Progress(1, 0.6))
    assert heard.take(0) == LogLine(1, "first")
    assert heard.take(0) is None and heard.take(1) is None
    assert heard.take(2) == LogLine(1, "after two")
    assert heard.take(2) == Progress(1, 0.6), "only the latest of a row"
    assert heard.take(2) is None


def test_what_waits_is_bounded_and_what_was_dropped_is_counted() -> None:
    heard = Heard()
    for number in range(MAX_LINES + 5):
        heard.add(0, LogLine(1, str(number)))
        heard.add(0, Progress(1, 0.5))
    told = [message for message in iter(lambda: heard.take(0), None) if isinstance(message, LogLine)]
    assert [message.line for message in told[:-1]] == [str(number) for number in range(MAX_LINES)]
    assert told[-1].line == "[samovar] 5 lines more: the client did not keep up"
    heard.add(0, LogLine(1, "again"))
    assert heard.take(0) == LogLine(1, "again")
