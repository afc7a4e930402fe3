"""What a client reads in answers: errors, retry times, phases, lines."""

from __future__ import annotations

import json
from itertools import pairwise

import httpx
import pytest
from hypothesis import given
from hypothesis import strategies as st

from samovar import errors
from samovar.problems import Lines, error_of, phases_of, stream_item
from samovar.transport import TRANSPORT_ERRORS, transport_error


@pytest.mark.parametrize("kind", errors.by_code().values(), ids=lambda kind: kind.code)
def test_every_error_survives_its_problem_document(kind: type[errors.SamovarError]) -> None:
    problem = {"type": "urn:samovar:problem:x", "title": "t", "status": kind.status, "detail": "why", "code": kind.code}
    error = error_of(kind.status, {"retry-after": "2"}, json.dumps(problem | {"path": "$.a"}).encode())
    assert type(error) is kind
    assert (error.detail, error.extra["path"], error.retry_after_s) == ("why", "$.a", 2.0)
    with pytest.raises(kind, match="why"):
        stream_item(json.dumps({"error": problem}).encode())


@pytest.mark.parametrize(
    ("status", "body", "kind"),
    [
        (503, b"<html>busy</html>", errors.Unavailable),
        (404, b"", errors.RequestError),
        (502, b"[1]", errors.SamovarError),
        (418, b'{"code": "teapot", "detail": "short and stout"}', errors.RequestError),
    ],
)
def test_what_is_no_problem_document_keeps_its_nature(status: int, body: bytes, kind: type[Exception]) -> None:
    assert type(error_of(status, {}, body)) is kind


def _all_subclasses(cls: type[Exception]) -> set[type[Exception]]:
    return {cls, *(found for child in cls.__subclasses__() for found in _all_subclasses(child))}


def test_every_error_of_httpx_is_mapped() -> None:
    theirs = _all_subclasses(httpx.HTTPError) | _all_subclasses(httpx.StreamError) | {httpx.InvalidURL}
    covered = tuple(kind for kind, _, _ in TRANSPORT_ERRORS)
    assert {kind for kind in theirs if not issubclass(kind, covered)} == set()
    for (earlier, _, _), (later, _, _) in pairwise(TRANSPORT_ERRORS):
        assert not issubclass(later, earlier), f"{later} never matches: {earlier} comes first"


@pytest.mark.parametrize(
    ("error", "kind", "text"),
    [
        (httpx.ConnectError("refused"), errors.ConnectError, "cannot reach the gateway at http://x: refused"),
        (httpx.ConnectTimeout(""), errors.ConnectError, "does not answer"),
        (httpx.ReadTimeout(""), errors.DeadlineExceeded, "no answer from http://x in time"),
        (httpx.RemoteProtocolError("gone"), errors.ConnectError, "broke before the answer came: gone"),
        (httpx.UnsupportedProtocol(""), errors.ConfigError, "not an http address"),
    ],
)
def test_transport_errors_say_what_happened(error: Exception, kind: type[errors.SamovarError], text: str) -> None:
    mapped = transport_error(error, "http://x")
    assert type(mapped) is kind
    assert text in mapped.detail


def test_items_that_look_like_errors_are_items() -> None:
    for item in ({"error": "text"}, {"error": {"type": "mine"}}, {"error": None}, {"error": {}, "more": 1}, [1], None):
        assert stream_item(json.dumps(item).encode()) == item


def test_phases() -> None:
    header = 'queue;dur=0.12, claim;desc="a blank";dur=3, total;dur=74.5, odd, bad;dur=x'
    assert phases_of({"server-timing": header}) == {"queue": 0.12, "claim": 3.0, "total": 74.5, "bad": 0.0}
    assert phases_of({}) == {}


@given(st.lists(st.text(alphabet="ab\u2028\r", min_size=1).filter(str.strip)), st.data())
def test_lines_are_cut_at_newlines_alone_however_they_arrive(texts: list[str], data: st.DataObject) -> None:
    sent = "".join(text + "\n" for text in texts).encode()
    cuts = sorted(data.draw(st.lists(st.integers(0, len(sent)), max_size=5)))
    lines, got = Lines(), list[bytes]()
    for start, end in pairwise([0, *cuts, len(sent)]):
        got += lines.feed(sent[start:end])
    assert [line.decode() for line in got + lines.end()] == texts
