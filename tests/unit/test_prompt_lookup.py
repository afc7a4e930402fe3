"""Drafts out of a sequence's own tokens."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samovar.acceleration.speculation import MATCH_TOKENS
from samovar_instance.engines.generation.proposals import Echo


@pytest.mark.parametrize(
    ("tokens", "expected"),
    [
        ([], []),
        ([1, 2, 3], []),
        ([1, 2, 3, 4, 5, 1, 2, 3], [4, 5, 1, 2]),
        ([1, 2, 3, 4, 1, 2, 3, 5, 1, 2, 3], [5, 1, 2, 3]),
        ([9, 8, 1, 2, 3, 4, 7, 1, 2, 3, 5, 9, 8, 1, 2, 3], [4, 7, 1, 2]),
        ([1, 2, 1, 2], []),
        ([7, 7, 7, 7], [7]),
    ],
    ids=[
        "nothing",
        "no second time",
        "what followed then",
        "of two times the later one",
        "unless more of the earlier one matches",
        "two alike are chance",
        "runs of one token",
    ],
)
def test_proposals(tokens: list[int], expected: list[int]) -> None:
    assert Echo().propose(tokens, 4) == expected


rows = st.lists(st.integers(0, 2), max_size=60)


@given(rows, st.integers(1, 8))
def test_what_is_proposed_followed_the_same_tokens_before(tokens: list[int], max_tokens: int) -> None:
    drafts = Echo().propose(tokens, max_tokens)
    assert len(drafts) <= max_tokens
    size = min(MATCH_TOKENS)
    last = tokens[-size:]
    before = [tokens[end : end + len(drafts)] for end in range(size, len(tokens)) if tokens[end - size : end] == last]
    assert drafts in before if drafts else not before


def test_what_has_to_match_is_a_choice() -> None:
    tokens = [1, 2, 9, 1, 2]
    assert (Echo().propose(tokens, 2), Echo([2]).propose(tokens, 2)) == ([], [9, 1])


@given(rows, st.lists(st.integers(1, 5), max_size=20))
def test_growing_with_the_sequence_is_as_good_as_reading_it_anew(tokens: list[int], steps: list[int]) -> None:
    echo, end = Echo(), 0
    for step in steps:
        end = min(len(tokens), end + step)
        assert echo.propose(tokens[:end], 4) == Echo().propose(tokens[:end], 4)
