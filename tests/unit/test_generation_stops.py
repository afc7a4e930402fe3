"""Stop strings: the same cut however the text is chopped, and never a character of a stop let through."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samovar_instance.engines.generation.stops import StopFinder

few = st.text("ab\n", max_size=30)


def offline(text: str, stops: list[str]) -> tuple[str, str]:
    """Return the text in front of the stop that is complete first, and that stop; of several the longest."""
    for end in range(len(text) + 1):
        for stop in sorted(stops, key=len, reverse=True):
            if text[:end].endswith(stop):
                return text[: end - len(stop)], stop
    return text, ""


def streamed(pieces: list[str], stops: list[str]) -> tuple[str, str]:
    finder, passed = StopFinder(stops), ""
    for piece in pieces:
        passed += finder.add(piece)
        if finder.found:
            break
    return passed + finder.flush(), finder.found


def chopped(text: str, places: list[int]) -> list[str]:
    cuts = sorted({0, len(text), *(place % (len(text) + 1) for place in places)})
    return [text[start:end] for start, end in itertools.pairwise(cuts)]


@pytest.mark.parametrize(
    ("text", "stops", "cut"),
    [
        ("one two three", ["two"], "one "),
        ("one two three", [], "one two three"),
        ("one tw", ["two"], "one tw"),
        ("abcd", ["abcd", "bc"], "a"),
        ("abcd", ["bcd", "cd"], "a"),
        ("aaab", ["aab"], "a"),
        ("né\U0001f600!", ["\U0001f600"], "né"),
    ],
)
def test_a_table_of_cuts(text: str, stops: list[str], cut: str) -> None:
    assert streamed([text], stops)[0] == cut
    assert streamed(list(text), stops)[0] == cut


@given(text=few, stops=st.lists(st.text("ab\n", min_size=1, max_size=5), max_size=4), places=st.lists(st.integers(0)))
def test_any_chopping_gives_the_offline_cut(text: str, stops: list[str], places: list[int]) -> None:
    assert streamed(chopped(text, places), stops) == offline(text, stops)


@given(text=few, stops=st.lists(st.text("ab\n", min_size=1, max_size=5), min_size=1, max_size=3))
def test_what_is_passed_is_never_taken_back(text: str, stops: list[str]) -> None:
    """After every character: what was passed on stays in front of any stop, whatever follows."""
    finder, passed = StopFinder(stops), ""
    for at, char in enumerate(text):
        passed += finder.add(char)
        for stop in stops:
            for rest in (stop[taken:] for taken in range(len(stop) + 1)):
                assert offline(text[: at + 1] + rest, stops)[0].startswith(passed)


def test_text_is_held_only_as_long_as_it_may_become_a_stop() -> None:
    finder = StopFinder(["</end>"])
    assert [finder.add(piece) for piece in ("a<", "/e", "x", "b")] == ["a", "", "</ex", "b"]


def test_the_rest_of_the_piece_is_kept() -> None:
    finder = StopFinder(["|"])
    assert finder.add("a|b|c") == "a"
    assert (finder.found, finder.rest) == ("|", "b|c")
    assert finder.add("more") == ""
