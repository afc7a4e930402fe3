"""Frames as they pass, and our errors as gRPC's."""

from __future__ import annotations

from urllib.parse import quote

import grpc
import pytest
from hypothesis import given
from hypothesis import strategies as st

from samovar import errors
from samovar.errors import QueueFull, RateLimited, SamovarError, by_code
from samovar_gateway.rpc.frames import GOAWAY, HEAD_BYTES, Frames
from samovar_gateway.rpc.statuses import MAX_DETAILS_BYTES, STATUSES, details_of, metadata_of, status_of

SAFE = "".join(chr(code) for code in range(0x20, 0x7F) if chr(code) != "%")


def frame(payload: bytes) -> bytes:
    return len(payload).to_bytes(3, "big") + b"\0" * 6 + payload


@given(st.lists(st.binary(max_size=40), min_size=1), st.data())
def test_frames_end_where_they_end_however_they_come(payloads: list[bytes], data: st.DataObject) -> None:
    stream = b"".join(map(frame, payloads))
    ends = {sum(len(frame(one)) for one in payloads[:count]) for count in range(len(payloads) + 1)}
    cuts = [*sorted(data.draw(st.sets(st.integers(0, len(stream))))), len(stream)]
    frames, position = Frames(), 0
    for cut in cuts:
        frames.feed(stream[position:cut])
        position = cut
        assert frames.is_between == (cut in ends)
        assert frames.has_begun == (cut >= len(frame(payloads[0])))


def test_goaway_is_one_frame_of_no_stream_without_an_error() -> None:
    frames = Frames()
    frames.feed(GOAWAY)
    assert frames.is_between and GOAWAY[3] == 7 and GOAWAY[5:HEAD_BYTES] == b"\0" * 4
    assert GOAWAY[HEAD_BYTES:] == (2**31 - 1).to_bytes(4, "big") + b"\0" * 4


@pytest.mark.parametrize("cls", by_code().values(), ids=lambda cls: cls.__name__)
def test_an_error_without_a_row_has_the_http_status_of_the_one_it_takes_the_row_of(cls: type[SamovarError]) -> None:
    row = next(parent for parent in cls.__mro__ if parent in STATUSES)
    assert cls.status == row.status, f"{cls.__name__} says {cls.status}: it needs a row of its own"


def test_rows_are_of_errors_that_exist() -> None:
    assert all(getattr(errors, cls.__name__) is cls for cls in STATUSES)
    assert grpc.StatusCode.OK not in STATUSES.values()


def test_what_is_told_beside_the_status() -> None:
    error = QueueFull("too many wait", retry_after_s=1.25)
    assert status_of(error) is grpc.StatusCode.UNAVAILABLE
    told = dict(metadata_of(error, "id-7"))
    assert told == {
        "samovar-code": "queue_full",
        "x-request-id": "id-7",
        "retry-after": "2",
        "grpc-retry-pushback-ms": "1250",
    }
    assert dict(metadata_of(QueueFull("…"), "1"))["retry-after"] == "1", "as the header of a 503"
    assert "retry-after" not in dict(metadata_of(RateLimited("…"), "1"))


@pytest.mark.parametrize("letter", ["a", "%", "\n", "ä", "茶", "🫖"])
def test_details_are_cut_so_that_clients_take_the_trailers(letter: str) -> None:
    """A client drops the whole call, status and all, when what comes with its end is too large."""
    told = details_of(SamovarError(letter * 20_000))
    assert 1000 < len(quote(told, safe=SAFE)) <= MAX_DETAILS_BYTES + len(quote("…")) and told.endswith("…")
    assert details_of(SamovarError(letter * 100)) == letter * 100
