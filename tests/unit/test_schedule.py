"""When schedules are due: fields, words, time zones, changes of clocks, long gaps."""

from __future__ import annotations

from datetime import datetime
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from samovar.errors import InvalidInput
from samovar.schedule import check_schedule, check_zone, due_after, due_between

LISBON, NEW_YORK = "Europe/Lisbon", "America/New_York"


def at(text: str, tz: str = "UTC") -> float:
    """Return unix seconds of an ISO time in a zone."""
    return datetime.fromisoformat(text).replace(tzinfo=ZoneInfo(tz)).timestamp()


def shown(instants: list[float], tz: str) -> list[str]:
    """Return instants as a wall clock with its offset shows them."""
    return [datetime.fromtimestamp(instant, ZoneInfo(tz)).strftime("%d %H:%M%z") for instant in instants]


@pytest.mark.parametrize(
    ("schedule", "first"),
    [
        ("0 3 * * *", "2026-01-01T03:00"),
        ("@hourly", "2026-01-01T01:00"),
        ("@daily", "2026-01-02T00:00"),
        ("@Midnight", "2026-01-02T00:00"),
        ("@weekly", "2026-01-04T00:00"),
        ("@monthly", "2026-02-01T00:00"),
        ("@yearly", "2027-01-01T00:00"),
        ("0 12 * feb MON-fri", "2026-02-02T12:00"),
        ("0 0 L * *", "2026-01-31T00:00"),
        ("0 0 29 2 *", "2028-02-29T00:00"),
        ("5,35 */6 1-3 * *", "2026-01-01T00:05"),
    ],
)
def test_fields_and_words(schedule: str, first: str) -> None:
    assert due_after(schedule, "UTC", at("2026-01-01T00:00"), 1) == [at(first)]


# from ten at night before the change, what the wall clock shows at the next runs: docs/cron.md shows some of these
CHANGES = [
    (LISBON, "2026-03-28", "30 1 * * *", ["29 02:00+0100", "30 01:30+0100"]),
    (LISBON, "2026-03-28", "15,45 1 * * *", ["29 02:00+0100", "30 01:15+0100"]),
    (LISBON, "2026-03-28", "0 2 * * *", ["29 02:00+0100", "30 02:00+0100"]),
    (LISBON, "2026-03-28", "0 1-2 * * *", ["29 02:00+0100", "30 01:00+0100"]),
    (LISBON, "2026-03-29", "0 * * * *", ["29 23:00+0100", "30 00:00+0100"]),
    (LISBON, "2026-10-24", "30 1 * * *", ["25 01:30+0100", "26 01:30+0000"]),
    (LISBON, "2026-10-24", "0 0 * * *", ["25 00:00+0100", "26 00:00+0000"]),
    (NEW_YORK, "2026-03-07", "30 2 * * *", ["08 03:00-0400", "09 02:30-0400"]),
    (NEW_YORK, "2026-03-07", "0 3 * * *", ["08 03:00-0400", "09 03:00-0400"]),
    (NEW_YORK, "2026-10-31", "30 1 * * *", ["01 01:30-0400", "02 01:30-0500"]),
    (LISBON, "2026-03-28", "30 2 * * *", ["29 02:30+0100", "30 02:30+0100"]),
    (LISBON, "2026-10-24", "30 2 * * *", ["25 02:30+0000", "26 02:30+0000"]),
    (NEW_YORK, "2026-03-07", "30 1 * * *", ["08 01:30-0500", "09 01:30-0400"]),
    (NEW_YORK, "2026-10-31", "30 2 * * *", ["01 02:30-0500", "02 02:30-0500"]),
    (NEW_YORK, "2026-10-31", "0 1,2 * * *", ["01 01:00-0400", "01 02:00-0500"]),
]


@pytest.mark.parametrize(("tz", "day", "schedule", "runs"), CHANGES)
def test_a_change_of_clocks_skips_no_run_and_repeats_none(tz: str, day: str, schedule: str, runs: list[str]) -> None:
    assert shown(due_after(schedule, tz, at(f"{day}T22:00", tz), 2), tz) == runs


def test_intervals_go_on_through_a_change_of_clocks() -> None:
    spring = due_after("*/30 * * * *", LISBON, at("2026-03-29T00:15", LISBON), 3)
    assert shown(spring, LISBON) == ["29 00:30+0000", "29 02:00+0100", "29 02:30+0100"]
    autumn = due_after("0 * * * *", LISBON, at("2026-10-25T00:30", LISBON), 3)
    assert shown(autumn, LISBON) == ["25 01:00+0100", "25 01:00+0000", "25 02:00+0000"]


def test_within_the_second_of_two_hours_alike_the_first_run_does_not_come_again() -> None:
    second = datetime(2026, 10, 25, 1, 20, tzinfo=ZoneInfo(LISBON), fold=1).timestamp()
    assert shown(due_after("30 1 * * *", LISBON, second, 1), LISBON) == ["26 01:30+0000"]
    assert shown(due_between("30 1 * * *", LISBON, second - 7200, second, 5), LISBON) == ["25 01:30+0100"]


def test_of_a_long_gap_only_the_newest_are_returned() -> None:
    until_s = at("2026-01-01T00:00")
    found = due_between("* * * * *", "UTC", at("1990-01-01T00:00"), until_s, 100)
    assert found == [until_s - 60 * number for number in range(99, -1, -1)]


SCHEDULES = st.sampled_from(["*/7 * * * *", "30 1 * * *", "0,15 1-3 * * *", "0 */5 * * *", "5 4 * * sun", "@monthly"])


@settings(max_examples=25)
@given(SCHEDULES, st.sampled_from([LISBON, NEW_YORK, "UTC"]), st.integers(0, 366 * 24 * 60), st.integers(0, 20_000))
def test_looking_back_finds_what_looking_ahead_does(schedule: str, tz: str, minute: int, minutes: int) -> None:
    after_s = at("2026-01-01T00:00") + 60.0 * minute
    until_s = after_s + 60.0 * minutes
    ahead = [due_s for due_s in due_after(schedule, tz, after_s, 3000) if due_s <= until_s]
    assert due_between(schedule, tz, after_s, until_s, 50) == ahead[-50:]
    assert ahead == sorted(set(ahead))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "five fields"),
        ("* * * *", "five fields"),
        ("* * * * * *", "five fields"),
        ("@never", "five fields"),
        ("60 * * * *", "Bad minute"),
        ("* 24 * * *", "Bad hour"),
        ("* * 0 * *", "Bad day-of-month"),
        ("* * 31 2 *", "Bad day-of-month"),
        ("* * * 13 *", "Bad month"),
        ("* * * * 8", "Bad day-of-week"),
        ("*/0 * * * *", "Bad minute"),
    ],
)
def test_a_bad_schedule_is_explained(text: str, words: str) -> None:
    with pytest.raises(InvalidInput, match=words):
        check_schedule(text)


@given(st.text("0123456789*/,-L#W MONJA\t٣", max_size=20))
def test_any_text_is_a_schedule_or_refused(text: str) -> None:
    for schedule in (text, f"{text} * * * *", f"* * {text} * *", f"* * * * {text}"):
        try:
            check_schedule(schedule)
        except InvalidInput as error:
            assert error.extra["path"] == "$.schedule"


@pytest.mark.parametrize(
    ("name", "near"),
    [("Europe/Lisboa", "Europe/Lisbon"), ("America/New York", "America/New_York"), ("", ""), ("../etc/passwd", "")],
)
def test_an_unknown_zone_is_refused_with_near_names(name: str, near: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        check_zone(name)
    assert near in " ".join(caught.value.extra["near"])
    check_zone("Europe/Lisbon")
