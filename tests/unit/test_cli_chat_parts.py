"""What a chat consists of, and how answers look on a terminal."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samovar.cli.conversation import Conversation, Reply, order_of
from samovar.cli.styling import BOLD, CODE, PLAIN, Styled, printable
from samovar.errors import RequestError

COLOURS = re.compile("|".join(map(re.escape, (BOLD, CODE, PLAIN))))


def shown(*pieces: str) -> str:
    styled = Styled()
    return "".join([*map(styled.feed, pieces), styled.end()])


def test_a_conversation_goes_along_with_each_question() -> None:
    talk = Conversation("be kind")
    talk.set("temperature", "0.2")
    talk.set("stop", "END")
    talk.enter("hi", "hello")
    request = talk.request("and now?")
    assert [message["role"] for message in request["messages"]] == ["system", "user", "assistant", "user"]
    assert (request["temperature"], request["stop"]) == (0.2, ["END"])
    talk.set("temperature", "")
    assert "temperature" not in talk.request("x")


@pytest.mark.parametrize(
    ("name", "value", "said"),
    [
        ("temprature", "1", "did you mean temperature"),
        ("temperature", "hot", "temperature is a number, not 'hot'"),
        ("temperature", "nan", "from 0 to 2"),
        ("max_tokens", "1.5", "max_tokens is a whole number"),
        ("max_tokens", "0", "at least 1"),
        ("top_p", "0", "above 0"),
    ],
)
def test_a_wrong_setting_changes_nothing(name: str, value: str, said: str) -> None:
    talk = Conversation(settings={"seed": 3})
    with pytest.raises(RequestError, match=said):
        talk.set(name, value)
    assert talk.settings == {"seed": 3}


def test_lines_are_orders_or_messages() -> None:
    assert order_of("/set seed 7") == ("/set", "seed 7") and order_of("/quit") == ("/exit", "")
    assert order_of("tea /reset") is None and order_of("//slash") is None
    with pytest.raises(RequestError, match=r"did you mean /reset"):
        order_of("/rest")


def test_a_reply_counts_by_the_function_or_by_pieces() -> None:
    reply = Reply(asked_s=10.0)
    assert [reply.take({"text": text}, now_s) for text, now_s in (("a", 10.5), (" b", 11.0), (" c", 11.5))] == [
        "a",
        " b",
        " c",
    ]
    assert (reply.text, reply.num_tokens, reply.tokens_per_s) == ("a b c", 3, 2.0)
    reply.take({"finish_reason": "length", "usage": {"prompt_tokens": 4, "completion_tokens": 6}}, 11.6)
    assert reply.tokens_per_s == 5.0 and reply.summary().startswith(
        "6 tokens · 5.0 tokens/s · first after 0.50 s · cut"
    )
    assert reply.facts()["usage"] == {"prompt_tokens": 4, "completion_tokens": 6}
    assert Reply(0.0).summary() == "0 tokens" and Reply(0.0).facts()["first_token_s"] is None


def test_a_little_markdown_is_coloured_however_it_comes() -> None:
    text = "a **bold** and `code` and\n```\nx = 2 ** 3\n```\nrest *"
    whole = shown(text)
    assert whole == shown(*text)
    assert f"{BOLD}**bold**{PLAIN}" in whole and f"{CODE}`code`{PLAIN}" in whole
    assert "x = 2 ** 3" in whole, "within code a mark is text"
    assert shown("**open").endswith(PLAIN), "the terminal gets its colours back"


@given(st.lists(st.text("ab`*\n ", max_size=5)))
def test_no_character_is_lost_or_made_up(pieces: list[str]) -> None:
    assert COLOURS.sub("", shown(*pieces)) == "".join(pieces)
    assert shown(*pieces) == shown("".join(pieces))


@given(st.text())
def test_nothing_steers_the_terminal(text: str) -> None:
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", printable(text))
    assert printable("é 茶 \t\n") == "é 茶 \t\n"
