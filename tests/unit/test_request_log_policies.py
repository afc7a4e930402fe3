"""What the request log keeps of a payload: redacted wherever it lies, cut, hashed, sampled; bounded whatever comes."""

from __future__ import annotations

import hashlib
import json
from types import SimpleNamespace
from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samovar.errors import QueueFull
from samovar.policies import Log
from samovar.spec import BlobRef, Manifest
from samovar.wire import Result
from samovar_dispatch.ask import CACHED, COLD, FALLBACK, RETRIED, SHADOW, Ask
from samovar_dispatch.call import Call, Version
from samovar_dispatch.functions import FunctionEntry
from samovar_dispatch.requestlog import log as log_module
from samovar_dispatch.requestlog.books import PACKED_ROWS
from samovar_dispatch.requestlog.copies import copy_for
from samovar_dispatch.requestlog.log import RequestLog
from samovar_dispatch.requestlog.policy import PayloadPolicy
from samovar_dispatch.requestlog.redaction import MAX_REDACTED_BYTES, REDACTED, parse_path, redact
from samovar_dispatch.requestlog.writer import newest, parts, slices_of, treat
from samovar_dispatch.stream import ChunkStream
from samovar_storage.requestlog.live import LiveFrame
from samovar_storage.requestlog.rows import CUT, HASH, NONE, WHOLE, Row, decode_frame

PLANTED = "planted-secret"
BODY = Row.__struct_fields__.index("body")
LEAVES = st.none() | st.booleans() | st.integers(-5, 5) | st.text(max_size=5)
TREES = st.recursive(
    LEAVES, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from("abcd"), inner, max_size=3)
)
STEPS = st.lists(st.sampled_from("abcd") | st.integers(0, 2), max_size=4)


@pytest.mark.parametrize(
    ("path", "before", "after"),
    [
        ("$", {"a": 1}, REDACTED),
        ("$.a", {"a": 1, "b": 2}, {"a": REDACTED, "b": 2}),
        ("$.a.b", {"a": {"b": [1, 2]}}, {"a": {"b": REDACTED}}),
        ("$.a[*].b", {"a": [{"b": "x", "n": 1}, {"n": 2}]}, {"a": [{"b": REDACTED, "n": 1}, {"n": 2}]}),
        ("$[1]", [1, 2, 3], [1, REDACTED, 3]),
        ("$.a", {}, {}),
        ("$[*][0]", [[1, 2], [], [3]], [[REDACTED, 2], [], [REDACTED]]),
        ("$.a[5].b", {"a": [1], "c": 2}, {"a": [1], "c": 2}),
        ("$.a.b", {"a": [{"b": 1}], "c": 2}, {"a": REDACTED, "c": 2}),
        ("$.a[*].b", {"a": {"b": 1}, "c": 2}, {"a": REDACTED, "c": 2}),
        ("$.a[*].b", {"a": ["text", {"b": 1}, None]}, {"a": [REDACTED, {"b": REDACTED}, None]}),
        ("$.a.b", {"a": None}, {"a": None}),
        ("$.a", "text", REDACTED),
        ("$.user-id", {"user-id": 7}, {"user-id": REDACTED}),
    ],
)  # fmt: skip
def test_a_path_names_what_is_redacted(path: str, before: Any, after: Any) -> None:
    assert redact(before, [parse_path(path)]) == after


@given(TREES, STEPS, st.lists(st.booleans(), min_size=4, max_size=4))
def test_what_lies_at_a_path_is_gone_and_nothing_else(tree: Any, steps: list[str | int], stars: list[bool]) -> None:
    planted = _plant(json.loads(json.dumps(tree)), steps)
    path = "$" + "".join(
        f".{step}" if isinstance(step, str) else "[*]" if star else f"[{step}]"
        for step, star in zip(steps, stars, strict=False)
    )
    data, form = PayloadPolicy.of(Log(payload="full", redact=[path])).apply(json.dumps(planted).encode())
    assert form == WHOLE and data is not None
    assert PLANTED.encode() not in data and REDACTED.encode() in data
    if not any(stars):
        assert json.loads(data) == _plant(planted, steps, REDACTED)


def _plant(tree: Any, steps: list[str | int], value: str = PLANTED) -> Any:
    """Return `tree` with `value` at a path, made where it is missing."""
    if not steps:
        return value
    step, rest = steps[0], steps[1:]
    if isinstance(step, str):
        tree = tree if isinstance(tree, dict) else {}
        tree[step] = _plant(tree.get(step), rest, value)
        return tree
    tree = tree if isinstance(tree, list) else []
    tree += [None] * (step + 1 - len(tree))
    tree[step] = _plant(tree[step], rest, value)
    return tree


@pytest.mark.parametrize(
    "payload",
    [b"not json " + PLANTED.encode(), b"\xff\xfe", b'{"a": 1', b"[" * 100_000, b'"' + b"x" * MAX_REDACTED_BYTES + b'"'],
)
def test_what_cannot_be_redacted_is_hashed(payload: bytes) -> None:
    data, form = PayloadPolicy.of(Log(payload="full", redact=["$.a"])).apply(payload)
    assert (data, form) == (hashlib.sha256(payload).digest(), HASH)


def test_a_key_written_twice_or_in_escapes_is_redacted_too() -> None:
    policy = PayloadPolicy.of(Log(payload="full", redact=["$.key"]))
    for text in ('{"key": "planted-secret", "key": 1}', '{"\\u006bey": "planted-secret"}'):
        data, _ = policy.apply(text.encode())
        assert data is not None and PLANTED.encode() not in data


def test_payloads_are_cut_hashed_or_not_kept() -> None:
    assert PayloadPolicy.of(Log(payload="full", max_bytes=4)).apply(b"123456") == (b"1234", CUT)
    assert PayloadPolicy.of(Log(payload="full", max_bytes=6)).apply(b"123456") == (b"123456", WHOLE)
    assert PayloadPolicy.of(Log(payload="hash")).apply(b"1") == (hashlib.sha256(b"1").digest(), HASH)
    assert PayloadPolicy.of(Log(payload="full")).apply(None) == (None, NONE)
    assert not PayloadPolicy.of(Log()).keeps and not PayloadPolicy.of(Log(payload="full", sample=0)).keeps


def version(number: int = 1, log: Log | None = None) -> Version:
    manifest = Manifest(
        name="f",
        version=number,
        entry="app:f",
        kind="function",
        handler="sync",
        code=BlobRef(sha256="0" * 64, size_bytes=1),
        log=log or Log(payload="full"),
    )
    return Version(manifest)


def ended(
    log: RequestLog,
    of: Version | None,
    outcome: Any,
    marks: int = 0,
    body: bytes = b"{}",
    cold: bool = False,
    chosen: Version | None = None,
) -> None:
    """Note one invocation that arrived at 10 s and ended at 10.25 s."""
    entry = cast(FunctionEntry, SimpleNamespace(record=SimpleNamespace(name="f"), only=None))
    ask = Ask(entry, "k1", 10.0, 99.0, {b"authorization": PLANTED.encode()}, b"r1")
    ask.body, ask.marks, ask.version = body, marks, chosen or of
    call = None
    if of is not None:
        record = SimpleNamespace(instance_id="i1", boot_ms={"load": 4.0})
        seat = SimpleNamespace(owner=SimpleNamespace(record=record))
        stream = outcome if isinstance(outcome, ChunkStream) else None
        times = {"submitted_s": 10.0, "sent_s": 10.05, "ended_s": 10.25}
        call = cast(Call, SimpleNamespace(version=of, num_attempts=0, seat=seat, cold=cold, stream=stream, **times))
    log.note(ask, call, outcome, getattr(outcome, "code", "ok"))


ANSWER = Result(id=1, body=b'{"y": 1}', wait_us=1000, run_us=200_000, batch_size=3, load=0)


def only_row(log: RequestLog) -> Row:
    (book,) = log.take()
    treat(book)
    (row,) = book.rows
    return row


def test_a_row_tells_how_the_call_went() -> None:
    log = RequestLog()
    ended(log, version(2), ANSWER, cold=True)
    row = only_row(log)
    assert (row.seq, row.version, row.instance, row.request_id, row.key_id) == (1, 2, "i1", b"r1", "k1")
    assert (row.status, row.code, row.run_us, row.batch_size) == (200, "ok", 200_000, 3)
    assert row.total_s == pytest.approx(0.25) and row.queue_s == pytest.approx(0.051)
    assert row.marks == COLD and row.boot_ms == {"load": 4.0}
    assert (row.body, row.body_form, row.answer, row.answer_form) == (b"{}", WHOLE, b'{"y": 1}', WHOLE)
    assert PLANTED not in repr(row)


@pytest.mark.parametrize(
    ("log", "kept"),
    [
        (Log(payload="full"), (b"one\ntwo\n", WHOLE)),
        (Log(payload="full", max_bytes=5), (b"one\nt", CUT)),
        (Log(payload="hash"), (hashlib.sha256(b"one\ntwo\n").digest(), HASH)),
        (Log(payload="full", redact=["$.a"]), (hashlib.sha256(b"one\ntwo\n").digest(), HASH)),
        (Log(), (None, NONE)),
    ],
)
def test_a_stream_is_kept_as_its_reader_got_it(log: Log, kept: tuple[bytes | None, int]) -> None:
    taken, of, copy = RequestLog(), version(log=log), copy_for(log)
    for item in (b"one", b"two"):
        copy.add(item)
    stream = ChunkStream(cast(Any, None), lambda _: None, copy)
    ended(taken, of, stream)
    row = only_row(taken)
    assert (row.answer, row.answer_form) == kept and row.bytes_out == 8 and row.status == 200


def test_an_invocation_without_a_version_keeps_no_payload() -> None:
    log = RequestLog()
    ended(log, None, QueueFull("full", retry_after_s=1.0))
    row = only_row(log)
    assert (row.version, row.status, row.code, row.body, row.body_form) == (0, 503, "queue_full", None, NONE)


def test_a_sample_keeps_about_its_share_of_payloads_and_every_row() -> None:
    log, of = RequestLog(), version(log=Log(payload="full", sample=0.25))
    for _ in range(2000):
        ended(log, of, ANSWER)
    (book,) = log.take()
    bodies = [row[BODY] for data, _ in book.packed for row in decode_frame(data).rows]
    bodies += [row.body for row in book.rows]
    assert len(bodies) == book.num_rows == 2000 and 350 < sum(body is not None for body in bodies) < 650


def test_rows_are_packed_as_they_come_in_order_but_never_an_untreated_one() -> None:
    log, plain, careful = RequestLog("run-1"), version(1), version(2, log=Log(payload="full", redact=["$.key"]))
    for _ in range(PACKED_ROWS * 3):
        ended(log, plain, ANSWER)
        ended(log, careful, ANSWER, body=b'{"key": "planted-secret"}')
    books = {book.number: book for book in log.take()}
    frames = [decode_frame(data) for data, _ in books[1].packed]
    assert [frame.run for frame in frames] == ["run-1"] * len(frames) and len(frames) >= 2
    seqs = [row[0] for frame in frames for row in frame.rows] + [row.seq for row in books[1].rows]
    assert seqs == sorted(seqs) and len(seqs) == PACKED_ROWS * 3
    assert books[2].packed == [] and len(books[2].untreated) == PACKED_ROWS * 3


def test_no_payload_leaves_untreated() -> None:
    log, of = RequestLog(), version(log=Log(payload="full", redact=["$.key"]))
    ended(log, of, ANSWER, body=b'{"key": "planted-secret"}')
    ended(log, of, ANSWER, body=b"planted-secret")
    (book,) = log.take()
    treat(book)
    assert [row.body_form for row in book.rows] == [WHOLE, HASH]
    assert all(PLANTED.encode() not in row.body for row in book.rows if row.body)


def test_memory_is_bounded_and_what_does_not_fit_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    hurried: list[int] = []
    monkeypatch.setattr(log_module, "MAX_BYTES", 100_000)
    monkeypatch.setattr(log_module, "HURRY_BYTES", 50_000)
    log, of = RequestLog(), version(log=Log(payload="full", max_bytes=1 << 20))
    log.hurry = lambda: hurried.append(log.num_noted)
    for _ in range(200):
        ended(log, of, ANSWER, body=b"x" * 9_000)
    assert hurried and hurried[0] < 10
    assert log.num_noted == 200 and log.num_dropped > 180
    (book,) = log.take()
    assert len(book.rows) == 200 - log.num_dropped <= 12
    assert book.tallies()[0].ok == 200, "traffic counts them all the same"
    ended(log, of, ANSWER)
    assert len(log.take()[0].rows) == 1


def test_a_log_that_is_off_counts_traffic_alone() -> None:
    log = RequestLog(is_on=False)
    ended(log, version(), ANSWER)
    (book,) = log.take()
    assert not book.rows and book.tallies()[0].ok == 1 and not log.num_dropped


def test_traffic_tells_calls_copies_fallbacks_and_cached_answers_apart() -> None:
    log, of = RequestLog(), version()
    for marks in (0, 0, RETRIED, CACHED, FALLBACK, SHADOW):
        ended(log, of, ANSWER, marks)
    ended(log, of, QueueFull("full", retry_after_s=1.0))
    ended(log, of, QueueFull("full", retry_after_s=1.0), SHADOW)
    (one,) = slices_of(log.take(), "g", 5.0, 1.0)
    assert (one.ref, one.gateway, one.at_s, one.span_s) == ("f@1", "g", 5.0, 1.0)
    assert (one.calls.ok, one.calls.cached, one.calls.fallback, one.calls.shed) == (3, 1, 1, 1)
    assert (one.shadow.ok, one.shadow.shed) == (1, 1)
    assert sum(one.calls.total.values()) == sum(one.calls.run.values()) == 3


def test_what_another_version_answered_counts_for_the_one_that_should_have() -> None:
    log, trial = RequestLog(), version(2)
    ended(log, version(1), ANSWER, FALLBACK, chosen=trial)
    ended(log, None, QueueFull("full", retry_after_s=1.0), chosen=trial)
    (book,) = log.take()
    assert book.ref == "f@2" and [row.version for row in book.rows] == [2, 2]
    assert (book.tallies()[0].fallback, book.tallies()[0].shed) == (1, 1)


def test_frames_are_small_and_lose_no_row() -> None:
    log, of = RequestLog(), version(log=Log(payload="full", max_bytes=1 << 20))
    for size in [10] * 250 + [300_000] * 3:
        ended(log, of, ANSWER, body=b"x" * size)
    (book,) = log.take()
    packed = [[row[0] for row in decode_frame(data).rows] for data, _ in book.packed]
    made = [*packed, *([row.seq for row in part] for part in parts(book.rows))]
    assert [seq for part in made for seq in part] == [*range(1, 254)]
    assert len(packed) == 7 and max(map(len, made)) <= 100 and [len(part) for part in made[-2:]] == [1, 1]


def test_of_too_many_frames_the_newest_are_shown() -> None:
    frames = [LiveFrame("f", bytes(10), number) for number in range(5)]
    assert newest(frames, 25) == frames[3:]
    assert newest(frames, 1000) == frames
    assert newest(frames, 5) == []
