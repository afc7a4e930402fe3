"""What a resumable stream keeps, who reads it, what its ids say, and how a client keeps its place. No connections."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samovar.errors import ConnectError, FunctionRaised, RequestError, StreamGone, Unavailable
from samovar.events import Blocks, Course, Done, Log, Output, Progress, Waiting
from samovar_gateway.events.encoding import comment, event, event_without_id, id_alone
from samovar_gateway.events.ledger import FLOOR_BYTES, STREAM_BYTES, Budget, Ledger
from samovar_gateway.events.letters import Got, Telling, Unwanted, decode, encode
from samovar_gateway.events.places import Place, place_of, prefix, resume_s

GATEWAY, STREAM = "9f86d081", "60303ae22b998861"


# ---- the ledger ----------------------------------------------------------------------------------------------------


def plenty() -> Budget:
    return Budget(1 << 40)


def test_when_all_streams_keep_too_much_the_read_ones_keep_little_and_the_others_wait() -> None:
    budget = Budget(4 * FLOOR_BYTES)
    read, away = (Ledger[str](keep_s=1.0, max_bytes=1 << 30, budget=budget) for _ in range(2))
    read.arrive("one", 0)
    num_used_up = 0
    for _ in range(10):
        read.add(b"x" * FLOOR_BYTES)
        num_used_up += budget.is_used_up
        assert away.has_room != budget.is_used_up and not read.has_room
        read.take("one")
        assert read.has_room and not budget.is_used_up and read.num_bytes < 4 * FLOOR_BYTES
    assert num_used_up == 3


def test_more_is_made_as_it_is_taken_and_away_from_readers_up_to_a_bound() -> None:
    ledger: Ledger[str] = Ledger(keep_s=10.0, max_bytes=5, budget=plenty())
    assert ledger.arrive("one", 0) is None and ledger.has_room
    ledger.add(b"aa")
    assert not ledger.has_room, "nobody took it yet"
    assert ledger.take("one") == (1, b"aa") and ledger.take("one") is None and ledger.has_room
    ledger.leave("one", 100.0)
    for _ in range(3):
        assert ledger.has_room
        ledger.add(b"bb")
    assert not ledger.has_room and ledger.num_bytes == 8
    assert (ledger.is_due(109.9), ledger.is_due(110.0)) == (False, True)


def test_what_was_taken_is_kept_as_far_as_there_is_room_and_what_was_not_in_any_case() -> None:
    ledger: Ledger[str] = Ledger(keep_s=1.0, max_bytes=5, budget=plenty())
    ledger.arrive("one", 0)
    for number in range(1, 5):
        ledger.add(b"ab")
        assert ledger.take("one") == (number, b"ab")
    assert ledger.first == 2 and ledger.num_bytes == 6
    ledger.arrive("two", 2)
    with pytest.raises(StreamGone, match="after event 0 is not kept any more, only what came after event 1"):
        ledger.arrive("three", 0)
    with pytest.raises(RequestError, match="no event 5"):
        ledger.arrive("three", 5)
    assert ledger.take("two") == (3, b"ab"), "a reader that was refused changes nothing"


def test_the_last_event_taken_is_kept_whatever_its_size() -> None:
    ledger: Ledger[str] = Ledger(keep_s=1.0, max_bytes=5, budget=plenty())
    ledger.arrive("one", 0)
    for _ in range(2):
        ledger.add(b"0123456789")
        ledger.take("one")
    ledger.arrive("two", 1)
    assert ledger.take("two") == (2, b"0123456789")


def test_the_newer_reader_counts() -> None:
    ledger: Ledger[str] = Ledger(keep_s=1.0, max_bytes=5, budget=plenty())
    ledger.arrive("one", 0)
    ledger.add(b"a", ends=True)
    assert ledger.arrive("two", 0) == "one" and ledger.take("one") is None
    ledger.leave("one", 5.0)
    assert ledger.reader == "two" and not ledger.is_due(1e9) and not ledger.is_told
    assert ledger.take("two") == (1, b"a") and not ledger.has_room
    ledger.leave("two", 6.0, is_told=True)
    assert ledger.is_told and ledger.is_due(7.0)
    ledger.arrive("three", 0)
    ledger.leave("three", 8.0)
    assert not ledger.is_told, "who broke off may come back"


STEP = st.tuples(st.sampled_from(["add", "take", "leave", "come"]), st.integers(0, 40))


@given(st.lists(STEP, max_size=200), st.integers(1, 60))
def test_whatever_happens_a_client_has_each_event_once_in_order(steps: list[tuple[str, int]], max_bytes: int) -> None:
    budget = plenty()
    ledger: Ledger[int] = Ledger(keep_s=1.0, max_bytes=max_bytes, budget=budget)
    reader = 0
    ledger.arrive(reader, 0)
    had: list[bytes] = []  # of the client, which may lose the last few of them on the way
    for step, number in steps:
        if step == "add" and ledger.has_room:
            ledger.add(b"x" * (1 + number % 7) + b"%d" % (ledger.last + 1))
        elif step == "take" and (taken := ledger.take(reader)) is not None:
            assert taken[0] == len(had) + 1
            had.append(taken[1])
        elif step == "leave":
            ledger.leave(reader, 1.0)
        elif step == "come":
            lost = min(number % 3, len(had))
            if len(had) - lost < ledger.first - 1:
                lost = len(had) - ledger.first + 1
            had = had[: len(had) - lost]
            reader += 1
            ledger.arrive(reader, len(had))
        assert ledger.num_bytes <= 2 * max_bytes + 40, "what was taken and what was not, but for an event each"
    assert budget.used == ledger.num_bytes + STREAM_BYTES
    ledger.close()
    assert budget.used == 0
    numbers = [int(data.lstrip(b"x")) for data in had]
    assert numbers == [*range(1, len(had) + 1)]


# ---- ids and letters -----------------------------------------------------------------------------------------------


def test_an_id_says_where_in_which_stream_of_which_gateway() -> None:
    data = event(17, "output", b"{}", prefix(GATEWAY, STREAM))
    last_id = data.split(b"\n")[0].removeprefix(b"id: ")
    assert place_of(last_id) == Place(GATEWAY, STREAM, 17)


@pytest.mark.parametrize(
    "last_id",
    [
        *("17", "", "x", f"{GATEWAY}-{STREAM}", f"{GATEWAY}-{STREAM}-", f"{GATEWAY}-{STREAM}-01"),
        *(f"{GATEWAY}-{STREAM}--1", f"{GATEWAY}-{STREAM}-{'9' * 16}", f"{GATEWAY.upper()}-{STREAM}-1"),
        *(f"{GATEWAY}-{STREAM}-1\n-2", "a" * 10_000),
    ],
)
def test_other_ids_are_refused_with_what_to_do(last_id: str) -> None:
    with pytest.raises(RequestError, match="Samovar-Resume: 60"):
        place_of(last_id.encode())


@given(st.binary(max_size=60))
def test_no_id_breaks_the_reader_of_ids(last_id: bytes) -> None:
    try:
        assert place_of(last_id).number >= 0
    except RequestError:
        pass


@pytest.mark.parametrize("asked", [b"0", b"0.5", b"61", b"nan", b"inf", b"-1", b"", b"long"])
def test_how_long_a_stream_is_kept_has_bounds(asked: bytes) -> None:
    assert resume_s(b"60") == 60.0 and resume_s(b"1.5") == 1.5
    with pytest.raises(RequestError, match="1 to 60"):
        resume_s(asked)


def test_letters_are_read_as_they_were_written_and_others_are_none() -> None:
    letters = (Got("r", 7), Telling("r", [(1, b"a"), (2, b"b")], 2, "done", "running"), Unwanted("", "s", "k", "f"))
    assert [decode(encode(letter)) for letter in letters] == [*letters]
    assert decode(b"") is None and decode(b"\x93\x63\x01\x02") is None and decode(b"text") is None


# ---- the client's place --------------------------------------------------------------------------------------------


def course_of(resume_s: float | None = 20.0) -> Course:
    return Course({"Content-Type": "application/json"}, resume_s)


def told(course: Course, data: bytes) -> list[object]:
    return [taken for block in Blocks().feed(data) if (taken := course.take(block)) is not None]


def test_events_are_read_with_their_types() -> None:
    stream = (
        comment("waiting, phase boot, 3 ahead")
        + comment("running")
        + event(1, "log", b'{"line": "tea"}')
        + event(2, "progress", b'{"fraction": 0.5, "message": "half"}')
        + event(3, "output", b'{"i":\n0}')
        + event(4, "later-invention", b"{}")
        + event(5, "done", b'{"num_outputs": 1, "timing_ms": {"run": 2.0}, "headers": {"samovar-version": "3"}}')
    )
    assert told(course_of(), stream) == [
        Waiting("boot", 3),
        Waiting(),
        Log("tea"),
        Progress(0.5, "half"),
        Output({"i": 0}),
        Done(1, {"run": 2.0}, {"samovar-version": "3"}),
    ]


@given(st.lists(st.integers(1, 80), max_size=60))
def test_however_bytes_are_cut_the_events_are_the_same(sizes: list[int]) -> None:
    data = b"".join(event(n, "output", b'"\xc3\xa9\xe2\x80\xa8 %d"' % n) for n in range(30))
    blocks, found, place = Blocks(), [], 0
    for size in [*sizes, len(data)]:
        found += blocks.feed(data[place : place + size])
        place += size
    assert [taken.value for block in found if isinstance(taken := course_of().take(block), Output)] == [
        f"é\u2028 {n}" for n in range(30)
    ]


def test_a_place_is_kept_over_connections_and_given_up_with_a_farewell() -> None:
    course = course_of()
    assert course.headers["Samovar-Resume"] == "20" and "Last-Event-ID" not in course.headers
    assert course.farewell() is None, "its call ends with its connection"
    told(course, id_alone(0, prefix(GATEWAY, STREAM)))
    assert course.headers["Last-Event-ID"] == f"{GATEWAY}-{STREAM}-0" and "Samovar-Resume" not in course.headers
    farewell = course.farewell()
    assert farewell is not None and farewell["Samovar-Resume"] == "0"
    told(course, event(1, "done", b'{"num_outputs": 0}', prefix(GATEWAY, STREAM)))
    assert course.is_over and course.farewell() is None
    assert "Samovar-Resume" not in course_of(None).headers


def test_a_lost_connection_is_made_up_for_and_only_that() -> None:
    lost = ConnectError("lost")
    course = course_of()
    assert course.pause_s(lost, 0.0, 0.5) is None, "there is no place to come back to"
    told(course, id_alone(0, prefix(GATEWAY, STREAM)))
    pauses = [course.pause_s(lost, now_s, 1.0) for now_s in (100.0, 101.0, 119.0, 119.9)]
    assert pauses[:2] == [0.1, 0.2] and pauses[3] is None, "20 s, from the first loss on"
    told(course, event(1, "output", b"1", prefix(GATEWAY, STREAM)))
    assert course.pause_s(lost, 200.0, 1.0) == 0.1, "an event begins a new count"
    assert course.pause_s(Unavailable("restarting", retry_after_s=1.0), 200.1, 0.0) == 1.0
    assert course.pause_s(StreamGone("gone"), 200.2, 0.5) is None


@pytest.mark.parametrize("is_of_call", [True, False])
def test_the_error_of_a_call_is_final_that_of_a_connection_may_not_be(is_of_call: bool) -> None:
    course = course_of()
    told(course, id_alone(0, prefix(GATEWAY, STREAM)))
    problem = b'{"code": "store_unavailable", "status": 503, "detail": "away"}'
    data = event(1, "error", problem, prefix(GATEWAY, STREAM)) if is_of_call else event_without_id("error", problem)
    with pytest.raises(Unavailable, match="away") as raised:
        told(course, data)
    assert (course.pause_s(raised.value, 0.0, 0.5) is None) == is_of_call


def test_an_error_has_its_own_class_again() -> None:
    with pytest.raises(FunctionRaised, match="tea spilt"):
        told(course_of(None), event(3, "error", b'{"code": "function_raised", "status": 500, "detail": "tea spilt"}'))
