"""Constrained text: whatever a model that knows nothing writes under a schema parses and validates."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from typing import Any

import jsonschema_rs
import numpy as np
import pytest

from samovar.errors import RequestError
from samovar.tasks.generation import JsonSchema, ResponseFormat
from samovar_instance.engines.generation.grammar import (
    MAX_SCHEMA_CHARS,
    GrammarMaker,
    TokenGrammar,
    of_format,
    of_schema,
)
from support.tiny_models import tiny_tokenizer


@pytest.fixture(scope="module")
def maker() -> GrammarMaker:
    """Of a model with more logits than its tokenizer has tokens, as many have."""
    return GrammarMaker(tiny_tokenizer(), 352, [tiny_tokenizer().eos_token_id])


def allowed(grammar: TokenGrammar) -> list[int]:
    bits = np.unpackbits(np.frombuffer(grammar.mask(), np.uint8), bitorder="little")
    return [int(token) for token in np.flatnonzero(bits)]


def babble(grammar: TokenGrammar, seed: int, max_tokens: int = 2000) -> Iterator[int]:
    """Yield the tokens of a model for which all are alike, up to the end of text or of the grammar."""
    chance = random.Random(seed)
    for _ in range(max_tokens):
        if grammar.is_finished:
            return
        token = chance.choice(allowed(grammar))
        grammar.consume(token)
        yield token
    raise AssertionError("it goes on for ever")


def written(maker: GrammarMaker, text: str, seed: int) -> str:
    ids = list(babble(maker.make(text, "response_format"), seed))
    assert max(ids) < len(tiny_tokenizer())
    return str(tiny_tokenizer().decode(ids, skip_special_tokens=True))


SCHEMAS: dict[str, dict[str, Any]] = {
    "flat": {
        "type": "object",
        "properties": {"name": {"type": "string", "maxLength": 8}, "age": {"type": "integer", "maximum": 120}},
        "required": ["name", "age"],
        "additionalProperties": False,
    },
    "nested": {
        "type": "object",
        "properties": {
            "rows": {
                "type": "array",
                "minItems": 1,
                "maxItems": 3,
                "items": {"anyOf": [{"type": "boolean"}, {"enum": ["né", "\U0001f600", 'a "b"']}, {"type": "null"}]},
            }
        },
        "required": ["rows"],
        "additionalProperties": False,
    },
    "references": {
        "$defs": {"cup": {"type": "object", "properties": {"ml": {"enum": [100, 200]}}, "required": ["ml"],
                          "additionalProperties": False}},
        "type": "object",
        "properties": {"a": {"$ref": "#/$defs/cup"}},
        "required": ["a"],
        "additionalProperties": False,
    },
    "pattern": {"type": "string", "pattern": "^[a-c]{2,4}-[0-9]{2}$"},
    "date": {"type": "string", "format": "date"},
}  # fmt: skip


@pytest.mark.parametrize("name", SCHEMAS)
def test_whatever_is_written_validates(maker: GrammarMaker, name: str) -> None:
    validator = jsonschema_rs.validator_for(SCHEMAS[name], validate_formats=True)
    for seed in range(15):
        validator.validate(json.loads(written(maker, of_schema(SCHEMAS[name]), seed)))


def test_a_json_object_is_an_object(maker: GrammarMaker) -> None:
    """Any object can go on for ever: written are the shortest tokens that close it once it is long enough."""
    text = of_format(ResponseFormat(type="json_object"))
    assert text is not None
    grammar = maker.make(text, "response_format")
    ids: list[int] = []
    for at in range(400):
        choices = allowed(grammar)
        ends = [token for token in map(tiny_tokenizer().convert_tokens_to_ids, '}]"') if token in choices]
        ids.append(ends[0] if at > 20 and ends else random.Random(at).choice(choices))
        grammar.consume(ids[-1])
        if grammar.is_finished:
            break
    assert isinstance(json.loads(tiny_tokenizer().decode(ids)), dict)


def test_the_vocabulary_is_read_before_anybody_asks(monkeypatch: pytest.MonkeyPatch) -> None:
    """It takes long and stops every thread of the process, so it is for a load, not for a request."""
    maker = GrammarMaker(tiny_tokenizer(), 352, [tiny_tokenizer().eos_token_id])

    def too_late(*_: Any, **__: Any) -> None:
        raise AssertionError("a request read the vocabulary")

    monkeypatch.setattr("llguidance.hf.from_tokenizer", too_late)
    assert allowed(maker.make(of_schema({"type": "object"}), "response_format"))


def test_a_tokenizer_that_cannot_be_read_refuses_schemas_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError("no such decoder")

    monkeypatch.setattr("llguidance.hf.from_tokenizer", broken)
    maker = GrammarMaker(tiny_tokenizer(), 352, [tiny_tokenizer().eos_token_id])
    with pytest.raises(RequestError, match="cannot be constrained: no such decoder") as raised:
        maker.make(of_schema({}), "response_format")
    assert raised.value.extra["param"] == "response_format"


def test_a_copy_goes_on_by_itself(maker: GrammarMaker) -> None:
    grammar = maker.make(of_schema({"enum": ["ab", "ac"]}), "response_format")
    for char in '"a':
        grammar.consume(tiny_tokenizer().convert_tokens_to_ids(char))
    copy = grammar.copy()
    copy.consume(tiny_tokenizer().convert_tokens_to_ids("b"))
    names = tiny_tokenizer().convert_ids_to_tokens
    assert {"b", "c"} <= set(names(allowed(grammar)))
    assert set(names(allowed(copy))) == {'"'}


@pytest.mark.parametrize(
    "wanted",
    [
        ResponseFormat(type="json_schema"),
        ResponseFormat(type="json_schema", json_schema=JsonSchema(name="x")),
        ResponseFormat(type="json_schema", json_schema=JsonSchema(json_schema={"type": "nosuch"})),
        ResponseFormat(type="json_schema", json_schema=JsonSchema(json_schema={"not": {"type": "string"}})),
        ResponseFormat(type="json_schema", json_schema=JsonSchema(json_schema={"$ref": "http://elsewhere/x"})),
        ResponseFormat(type="json_schema", json_schema=JsonSchema(json_schema={"enum": ["x" * MAX_SCHEMA_CHARS]})),
        ResponseFormat(type="json_schema", json_schema=JsonSchema(json_schema={"type": "string", "pattern": "("})),
        ResponseFormat(type="json_schema", json_schema=JsonSchema(json_schema={"$ref": "#"})),
    ],
)
def test_what_cannot_be_followed_is_refused(maker: GrammarMaker, wanted: ResponseFormat) -> None:
    with pytest.raises(RequestError) as raised:
        maker.make(of_format(wanted) or "", "response_format")
    assert raised.value.extra["param"] == "response_format"
    assert "response_format" in raised.value.detail


def test_a_refusal_says_why_in_one_line(maker: GrammarMaker) -> None:
    with pytest.raises(RequestError, match=r"look-ahead and look-behind, is not supported$"):
        maker.make(of_schema({"type": "string", "pattern": "a(?=b)"}), "response_format")


def test_a_model_without_an_end_is_refused() -> None:
    with pytest.raises(RequestError, match="cannot be constrained"):
        GrammarMaker(tiny_tokenizer(), 320, []).make(of_schema({}), "response_format")


def test_free_text_needs_no_grammar() -> None:
    assert of_format(ResponseFormat(type="text")) is None
