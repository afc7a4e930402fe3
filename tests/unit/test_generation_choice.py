"""One choice: what its reader gets of the tokens that its sequence hears."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samovar.tasks.generation import GenerationOutput, Tool, ToolFunction
from samovar_instance.engines.generation.choice import MAX_TOLD, Choice
from samovar_instance.engines.generation.contract import EndReason, Token
from samovar_instance.engines.generation.detokenize import Vocabulary
from samovar_instance.engines.generation.sampling_state import SamplingState
from samovar_instance.engines.generation.tools import HERMES, ToolReader
from support.tiny_models import END, tiny_tokenizer

vocabulary = Vocabulary(tiny_tokenizer())
POUR = Tool(function=ToolFunction(name="pour"))
CALL = '<tool_call>{"name": "pour", "arguments": {"ml": 1}}</tool_call>'


class Reader:
    """Feeds a choice a text, token by token, and takes what there is after every `every` tokens."""

    def __init__(self, choice: Choice, every: int = 1) -> None:
        self.choice = choice
        self.every = every
        self.pieces: list[GenerationOutput] = []

    def feed(self, text: str, reason: EndReason = "length") -> Reader:
        for number, token_id in enumerate(tiny_tokenizer().encode(text, add_special_tokens=False), 1):
            told = self.choice.token(Token(token_id, -0.5, ((token_id, -0.5),)))
            if number % self.every == 0:
                self.take()
            if told is not None:
                reason = told
                break
        self.choice.ended(reason, None)
        self.take()
        return self

    def take(self) -> None:
        piece = self.choice.take()
        self.pieces += [piece] if piece is not None else []

    @property
    def text(self) -> str:
        return "".join(piece.text for piece in self.pieces)

    @property
    def told(self) -> str:
        """The text of the tokens whose logprobs were told."""
        joined = b"".join(bytes(each.bytes) for piece in self.pieces for each in piece.logprobs)
        return joined.decode()


def choice(*stops: str, is_one_call: bool = False, tools: bool = False, prefix: str = "") -> Choice:
    ids = (f"call_{number}" for number in itertools.count())
    return Choice(
        0,
        vocabulary,
        vocabulary.detokenizer(),
        SamplingState(),
        lambda: None,
        stops=stops,
        end_ids=frozenset([tiny_tokenizer().convert_tokens_to_ids(END)]),
        tools=ToolReader(HERMES, [POUR], ids.__next__) if tools else None,
        is_one_call=is_one_call,
        prefix=prefix,
    )


@given(text=st.text(st.characters(exclude_categories=["Cs"]), max_size=40), every=st.integers(1, 9))
def test_pieces_add_up_however_seldom_they_are_taken(text: str, every: int) -> None:
    reader = Reader(choice(), every).feed(text)
    assert reader.text == text == reader.told
    assert [piece.finish_reason for piece in reader.pieces][-1] == "length"
    assert all(piece.finish_reason is None for piece in reader.pieces[:-1])


def test_what_waits_is_one_piece() -> None:
    reader = Reader(choice(prefix="so: "), every=1000).feed("the cat and the dog")
    assert [piece.text for piece in reader.pieces] == ["so: the cat and the dog"]


def test_a_stop_ends_it_and_its_tokens_are_not_told() -> None:
    reader = Reader(choice(" dog")).feed("the cat and the dog and the hat")
    assert reader.text == reader.told == "the cat and the" and reader.pieces[-1].finish_reason == "stop"


def test_a_stop_that_does_not_come_about_is_let_go() -> None:
    assert Reader(choice("dog!")).feed("the dog").text == "the dog"


def test_the_end_token_is_no_text_and_not_told() -> None:
    reader = Reader(choice()).feed(f"the cat{END}", "stop")
    assert (reader.text, reader.told, reader.pieces[-1].finish_reason) == ("the cat", "the cat", "stop")


def test_offsets_are_where_tokens_begin_in_the_text() -> None:
    reader = Reader(choice()).feed("né \U0001f600!")
    told = [each for piece in reader.pieces for each in piece.logprobs]
    assert [(each.token, each.offset) for each in told[:3]] == [("n", 0), ("bytes:\\xc3", 1), ("bytes:\\xa9", 1)]
    assert told[-1].offset == 4 and told[0].top[0].token == "n"


def test_calls_are_taken_out_of_the_text() -> None:
    reader = Reader(choice(tools=True)).feed(f"I pour. {CALL}\n{CALL}", "stop")
    assert reader.text == "I pour. " and reader.pieces[-1].finish_reason == "tool_calls"
    calls = [call for piece in reader.pieces for call in piece.tool_calls]
    assert [(call.id, call.function.arguments) for call in calls] == [("call_0", '{"ml": 1}'), ("call_1", '{"ml": 1}')]


def test_the_one_call_that_is_wanted_ends_it() -> None:
    reader = Reader(choice(tools=True, is_one_call=True)).feed(f"{CALL}{CALL}")
    assert [len(piece.tool_calls) for piece in reader.pieces if piece.tool_calls] == [1]
    assert reader.pieces[-1].finish_reason == "tool_calls"


def test_a_call_that_was_cut_off_is_text_of_an_answer_too_long() -> None:
    reader = Reader(choice(tools=True)).feed(CALL[:-12])
    assert reader.text == CALL[:-12] and reader.pieces[-1].finish_reason == "length"


@pytest.mark.parametrize("reason", ["cancelled", "failed"])
def test_what_failed_has_no_last_piece(reason: EndReason) -> None:
    failed = choice("dog")
    failed.token(Token(tiny_tokenizer().convert_tokens_to_ids("d")))
    error = ValueError("spilt")
    failed.ended(reason, error)
    assert failed.take() is None and failed.is_ended and failed.error is error


def test_many_logprobs_come_in_pieces_and_the_reason_with_the_last() -> None:
    told = choice()
    for _ in range(2 * MAX_TOLD + 1):
        told.token(Token(tiny_tokenizer().convert_tokens_to_ids("a"), -0.5, ()))
    told.ended("length", None)
    pieces = [*iter(told.take, None)]
    assert [len(piece.logprobs) for piece in pieces] == [MAX_TOLD, MAX_TOLD, 1]
    assert [piece.finish_reason for piece in pieces] == [None, None, "length"]
    assert "".join(piece.text for piece in pieces) == "a" * (2 * MAX_TOLD + 1)
