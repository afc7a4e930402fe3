"""JSON lines out of chunks: wherever they are cut, the same lines, and an offset from which the rest can be read."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samovar.errors import InvalidInput
from samovar_gateway.jobs import lines
from samovar_gateway.jobs.lines import BATCH_LINES, batches, count_lines

VALUES = st.lists(st.one_of(st.integers(), st.text(max_size=5), st.none()), max_size=20)


def chunked(data: bytes, size: int) -> list[bytes]:
    return [data[at : at + size] for at in range(0, len(data), size)]


@given(VALUES, st.integers(1, 30), st.sampled_from([b"\n", b"\r\n", b"\n\n"]), st.booleans())
def test_lines_are_the_same_however_they_are_cut(values: list[object], size: int, end: bytes, is_ended: bool) -> None:
    data = end.join(json.dumps(value).encode() for value in values) + (end if is_ended else b"")
    found = [line for batch in batches(chunked(data, size), 1000) for line in batch.lines]
    assert [json.loads(line) for line in found] == values


@given(st.integers(0, 8), st.integers(1, 40))
def test_the_rest_can_be_read_from_where_a_batch_ended(num_lines: int, size: int) -> None:
    data = b"".join(b'{"n": %d}\n' % n for n in range(num_lines))
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(lines, "BATCH_LINES", 3)
        for number, batch in enumerate(batches(chunked(data, size), 1000)):
            rest = [json.loads(line)["n"] for one in batches([data[batch.end_bytes :]], 1000) for line in one.lines]
            assert rest == list(range(3 * number + len(batch.lines), num_lines))


def test_a_batch_is_bounded() -> None:
    sizes = [len(batch.lines) for batch in batches([b"1\n" * (2 * BATCH_LINES + 1)], 100)]
    assert sizes == [BATCH_LINES, BATCH_LINES, 1]
    big = b'"' + b"x" * 3_000_000 + b'"\n'
    assert [len(batch.lines) for batch in batches([big * 5], 4_000_000)] == [2, 2, 1]


def test_lines_are_counted() -> None:
    assert count_lines([b'1\n\n{"a"', b": 2}\n[]"], 100, 3) == 3


@pytest.mark.parametrize(
    ("data", "line"),
    [
        (b"1\n{\n", 2),
        (b"1\n\n2 3\n", 2),
        (b"\xff\n", 1),
        (b'"' + b"x" * 100 + b'"\n1\n', 1),
        (b"[" * 5000 + b"]" * 5000 + b"\n", 1),
        (b"1\n2\n3\n4\n", None),
        (b"\n \n", None),
        (b"", None),
    ],
)
def test_what_is_no_list_of_inputs_is_refused(data: bytes, line: int | None) -> None:
    with pytest.raises(InvalidInput) as caught:
        count_lines([data], 20_000 if data.startswith(b"[") else 50, 3)
    assert caught.value.extra.get("line") == line and caught.value.extra["path"] == "$.upload"


def test_a_line_without_end_is_not_kept() -> None:
    with pytest.raises(InvalidInput):
        [*batches([b"x" * 60] * 2, 100)]
