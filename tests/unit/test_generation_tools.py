"""Calls of tools: read back as they were written, in any chopping, and forced where they have to be."""

from __future__ import annotations

import itertools
import json
import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from samovar.tasks.generation import Tool, ToolCall, ToolFunction
from samovar_instance.engines.generation.grammar import GrammarMaker
from samovar_instance.engines.generation.tools import (
    FORMATS,
    HERMES,
    LLAMA3,
    MISTRAL,
    ToolFormat,
    ToolReader,
    forced_calls,
    format_of_template,
    free_calls,
)
from support.tiny_models import tiny_tokenizer

CUP = {"$defs": {"ml": {"enum": [100, 200]}}, "type": "object", "properties": {"ml": {"$ref": "#/$defs/ml"}},
       "required": ["ml"], "additionalProperties": False}  # fmt: skip
TOOLS = [
    Tool(function=ToolFunction(name="pour", parameters=CUP, strict=True)),
    Tool(function=ToolFunction(name="stop_pouring", parameters={"type": "object", "additionalProperties": False})),
]
arguments = st.dictionaries(st.text(max_size=5), st.none() | st.integers() | st.text(max_size=9), max_size=3)
calls = st.lists(st.tuples(st.sampled_from(["pour", "stop_pouring"]), arguments), min_size=1, max_size=3)
formats = st.sampled_from(list(FORMATS.values()))


def written(tool_format: ToolFormat, wanted: list[tuple[str, dict[str, Any]]]) -> str:
    """Return the text of calls (name, arguments) as a model writes them."""
    bodies = [{"name": name, tool_format.key: arguments} for name, arguments in wanted]
    if tool_format.is_list:
        return tool_format.begin + json.dumps(bodies, ensure_ascii=False)
    texts = [json.dumps(body, ensure_ascii=False) for body in bodies]
    if tool_format.is_bare:
        return "; ".join(texts)
    return "\n".join(f"{tool_format.begin}\n{body}\n{tool_format.end}" for body in texts)


def read(tool_format: ToolFormat, pieces: list[str]) -> tuple[str, list[ToolCall]]:
    reader = ToolReader(tool_format, TOOLS, (f"call_{number}" for number in itertools.count()).__next__)
    texts, found = [], []
    for text, more in [*map(reader.add, pieces), reader.flush()]:
        texts.append(text)
        found += more
    assert reader.num_calls == len(found)
    return "".join(texts), found


def chopped(text: str, places: list[int]) -> list[str]:
    cuts = sorted({0, len(text), *(place % (len(text) + 1) for place in places)})
    return [text[start:end] for start, end in itertools.pairwise(cuts)]


@given(tool_format=formats, wanted=calls, places=st.lists(st.integers(0), max_size=20))
def test_calls_are_read_as_they_were_written(
    tool_format: ToolFormat, wanted: list[tuple[str, dict[str, Any]]], places: list[int]
) -> None:
    text, found = read(tool_format, chopped(written(tool_format, wanted), places))
    assert text.strip() == ""
    assert [(call.function.name, json.loads(call.function.arguments)) for call in found] == wanted
    assert len({call.id for call in found}) == len(found)


@given(tool_format=formats, text=st.text("<tool_cal>[TOOL_CALLS]{}/ \n", max_size=40), places=st.lists(st.integers(0)))
def test_what_is_no_call_stays_text(tool_format: ToolFormat, text: str, places: list[int]) -> None:
    assert read(tool_format, chopped(text, places)) == (text, [])


@pytest.mark.parametrize("tool_format", [HERMES, MISTRAL])
def test_text_in_front_comes_before_the_call(tool_format: ToolFormat) -> None:
    call = written(tool_format, [("pour", {"ml": 100})])
    reader = ToolReader(tool_format, TOOLS, lambda: "call_0")
    assert reader.add("I pour. ") == ("I pour. ", [])
    assert reader.add(call[:5]) == ("", []), "it is held until it is known what it is"
    rest, found = reader.add(call[5:])
    assert rest == "" and len(found or reader.flush()[1]) == 1


@pytest.mark.parametrize(
    ("tool_format", "text"),
    [
        (HERMES, '<tool_call>\n{"name": "unknown", "arguments": {}}\n</tool_call>'),
        (HERMES, '<tool_call>\n{"name": "pour", "arguments": {"ml": 1\n</tool_call> and on'),
        (HERMES, '<tool_call>\n{"name": "pour", "arguments": {}}'),
        (HERMES, '<tool_call>\n{"name": "pour", "arguments": "100"}\n</tool_call>'),
        (HERMES, "<tool_call></tool_call>"),
        (LLAMA3, '{"answer": 42}'),
        (LLAMA3, '{"name": "unknown", "parameters": {}}'),
        (LLAMA3, '  {"name": "pour", "parameters": {}} it was'),
        (LLAMA3, '<|python_tag|>{"name": "pour"'),
        (LLAMA3, "<|python_tag|>print(5)"),
        (LLAMA3, 'so: {"name": "pour", "parameters": {}}'),
        (MISTRAL, '[TOOL_CALLS][{"name": "pour"'),
        (MISTRAL, "[TOOL_CALLS]"),
        (MISTRAL, '[TOOL_CALLS][{"name": "pour", "arguments": {}}, 5]'),
    ],
)
def test_broken_calls_stay_text(tool_format: ToolFormat, text: str) -> None:
    assert read(tool_format, list(text)) == (text, [])


def test_llama_may_mark_a_call() -> None:
    text, found = read(LLAMA3, ['<|python_tag|>{"name": "pour", ', '"parameters": {"ml": 200}}'])
    assert text == "" and found[0].function.name == "pour"


@pytest.mark.parametrize(
    ("template", "wanted"),
    [
        ("{{ messages }}", None),
        ("{% if tools %}<tool_call>{{ tools }}", HERMES),
        ("{% if tools %}[TOOL_CALLS]", MISTRAL),
        ('{% if tools %}{"name": …, "parameters": …}', LLAMA3),
        ("{% if tools %}<tool_call><function=", None),
        ("{% if tools %}[TOOL_CALLS]x[ARGS]", None),
        ("{% if tools %}as you like", None),
    ],
)
def test_the_template_says_how_calls_are_written(template: str, wanted: ToolFormat | None) -> None:
    assert format_of_template(template) is wanted


def babble(text: str, seed: int, forced: str = "") -> str:
    """Return what a model that knows nothing writes under a grammar, after what is forced."""
    tokenizer = tiny_tokenizer()
    grammar = GrammarMaker(tokenizer, len(tokenizer), [tokenizer.eos_token_id]).make(text, "tools")
    ids = tokenizer.encode(forced, add_special_tokens=False)
    for token in ids:
        grammar.consume(token)
    chance = random.Random(seed)
    while not grammar.is_finished and len(ids) < 3000:
        bits = np.unpackbits(np.frombuffer(grammar.mask(), np.uint8), bitorder="little")
        ids.append(int(chance.choice(np.flatnonzero(bits))))
        grammar.consume(ids[-1])
    return str(tokenizer.decode(ids, skip_special_tokens=True))


@pytest.mark.parametrize("tool_format", FORMATS.values(), ids=FORMATS)
@pytest.mark.parametrize("is_parallel", [True, False])
def test_forced_calls_are_calls_and_nothing_else(tool_format: ToolFormat, is_parallel: bool) -> None:
    grammar = forced_calls(tool_format, TOOLS, is_parallel, json.dumps)
    for seed in range(5):
        text, found = read(tool_format, [babble(grammar, seed)])
        assert text.strip() == "" and found
        assert is_parallel or len(found) == 1
        assert all(fits(call) for call in found)


def fits(call: ToolCall) -> bool:
    values = json.loads(call.function.arguments)
    return values in ({"ml": 100}, {"ml": 200}) if call.function.name == "pour" else values == {}


@pytest.mark.parametrize("tool_format", FORMATS.values(), ids=FORMATS)
def test_calls_within_free_text_follow_their_schemas(tool_format: ToolFormat) -> None:
    grammar = free_calls(tool_format, TOOLS, json.dumps)
    head = "" if tool_format.is_bare else f"well, {tool_format.begin}" + ("\n" if tool_format is HERMES else "[")
    forced = head + f'{{"name": "pour", "{tool_format.key}": '
    for seed in range(3):
        found = read(tool_format, [babble(grammar, seed, forced)])[1]
        assert fits(found[0])
    assert read(tool_format, [babble(grammar, 1, "no call")])[0].startswith("no call")
