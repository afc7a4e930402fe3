"""OpenAI's requests: what is honoured, what is accepted, and that all else is refused by name."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, get_type_hints

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types import completion_create_params, embedding_create_params
from openai.types.chat import completion_create_params as chat_create_params

from samovar.errors import RequestError
from samovar.tasks.generation import GenerationInput
from samovar_gateway.openai import fields, requests, vectors

CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "tea"}]}
COMPLETION: dict[str, Any] = {"model": "m", "prompt": "tea"}
EMBEDDING: dict[str, Any] = {"model": "m", "input": "tea"}
TOOL = {"type": "function", "function": {"name": "pour"}}
CALL = {"id": "c1", "type": "function", "function": {"name": "pour", "arguments": "{}"}}


def chat(**more: Any) -> GenerationInput:
    (found,) = requests.chat(fields.given(CHAT | more)).inputs
    return found


def completion(**more: Any) -> GenerationInput:
    (found,) = requests.completion(fields.given(COMPLETION | more)).inputs
    return found


def refused(read: Callable[..., Any], given: Mapping[str, Any]) -> RequestError:
    with pytest.raises(RequestError) as caught:
        read(fields.given(given))
    assert caught.value.status == 400 and caught.value.detail
    return caught.value


def test_what_is_not_asked_for_is_left_to_the_function() -> None:
    assert msgspec.to_builtins(chat()) == {"messages": CHAT["messages"]}
    assert msgspec.to_builtins(completion()) == {"prompt": "tea", "max_tokens": 16}


def test_every_honoured_field_arrives() -> None:
    schema = {"name": "s", "schema": {"type": "object"}, "strict": True}
    found = chat(
        max_tokens=5, temperature=0, top_p=0.5, top_k=3, min_p=0.1, stop=["a", "b"], n=2, seed=7, logprobs=True,
        top_logprobs=4, presence_penalty=1, frequency_penalty=-1, logit_bias={"5": 3}, user="u", ignore_eos=True,
        tools=[TOOL], tool_choice="required", parallel_tool_calls=False,
        response_format={"type": "json_schema", "json_schema": schema},
    )  # fmt: skip
    told = msgspec.to_builtins(found)
    assert told["messages"] == CHAT["messages"] and "model" not in told
    assert (found.max_tokens, found.temperature, found.top_p, found.top_k, found.min_p) == (5, 0, 0.5, 3, 0.1)
    assert (found.stop, found.n, found.seed, found.logprobs) == (["a", "b"], 2, 7, 4)
    assert (found.presence_penalty, found.frequency_penalty, found.logit_bias) == (1, -1, {"5": 3})
    assert found.user == "u" and found.ignore_eos and not found.parallel_tool_calls
    assert found.tools[0].function.name == "pour" and found.tool_choice == "required"
    assert told["response_format"] == {"type": "json_schema", "json_schema": schema}


@pytest.mark.parametrize(
    ("given", "field", "value"),
    [
        ({"max_completion_tokens": 3}, "max_tokens", 3),
        ({"max_completion_tokens": 3, "max_tokens": 3}, "max_tokens", 3),
        ({"max_completion_tokens": None, "max_tokens": 4}, "max_tokens", 4),
        ({"stop": "x"}, "stop", ["x"]),
        ({"stop": []}, "stop", []),
        ({"logprobs": True}, "logprobs", 0),
        ({"logprobs": False}, "logprobs", None),
        ({"safety_identifier": "s"}, "user", "s"),
        ({"safety_identifier": "s", "user": "u"}, "user", "u"),
        ({"tools": None, "n": None, "stop": None, "temperature": None, "seed": None}, "n", 1),
        ({"tool_choice": {"type": "function", "function": {"name": "pour"}}, "tools": [TOOL]}, "n", 1),
    ],
)
def test_fields_of_chats_with_two_forms(given: dict[str, Any], field: str, value: Any) -> None:
    assert getattr(chat(**given), field) == value


@pytest.mark.parametrize(
    "given",
    [
        {"store": False, "metadata": {"a": "b"}, "service_tier": "auto", "modalities": ["text"]},
        {"verbosity": "medium", "prompt_cache_key": "k", "prompt_cache_retention": "in_memory"},
        {"reasoning_effort": "none", "audio": None, "functions": None, "function_call": None},
        {"parallel_tool_calls": True, "stream_options": None, "stream": False},
    ],
)
def test_what_changes_nothing_is_accepted(given: dict[str, Any]) -> None:
    assert chat(**given) == chat()


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"messages": []}, "messages"),
        ({"messages": None}, "messages"),
        ({"messages": "tea"}, "messages"),
        ({"messages": ["tea"]}, "messages[0]"),
        ({"messages": [{"role": "king", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "function", "name": "f", "content": "x"}]}, "messages[0].role"),
        ({"messages": [{"content": "x"}]}, "messages[0].role"),
        ({"messages": [{"role": "user"}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": 3}]}, "messages[0].content"),
        ({"messages": [{"role": "user", "content": "x", "mood": "good"}]}, "messages[0].mood"),
        ({"messages": [{"role": "assistant", "content": "x", "refusal": "no"}]}, "messages[0].refusal"),
        ({"messages": [{"role": "tool", "content": "x"}]}, "messages[0].tool_call_id"),
        ({"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0].content[0]"),
        ({"messages": [{"role": "user", "content": [{"type": "text"}]}]}, "messages[0].content[0].text"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": 1}]}]}, "messages[0].content[0].text"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "a", "b": 1}]}]},
         "messages[0].content[0].b"),
        ({"max_tokens": -1}, "max_tokens"),
        ({"max_tokens": "many"}, "max_tokens"),
        ({"max_tokens": 1.5}, "max_tokens"),
        ({"max_completion_tokens": "many"}, "max_completion_tokens"),
        ({"max_completion_tokens": 0}, "max_completion_tokens"),
        ({"max_tokens": 1, "max_completion_tokens": 2}, "max_tokens"),
        ({"temperature": 2.1}, "temperature"),
        ({"temperature": float("nan")}, "temperature"),
        ({"top_p": 0}, "top_p"),
        ({"top_k": -1}, "top_k"),
        ({"min_p": 1}, "min_p"),
        ({"n": 0}, "n"),
        ({"n": 129}, "n"),
        ({"n": True}, "n"),
        ({"seed": 1.5}, "seed"),
        ({"stop": ["x"] * 2000}, "stop"),
        ({"stop": [1]}, "stop[0]"),
        ({"stop": ""}, "stop"),
        ({"logprobs": 3}, "logprobs"),
        ({"top_logprobs": 3}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": 21}, "top_logprobs"),
        ({"logprobs": True, "top_logprobs": True}, "top_logprobs"),
        ({"presence_penalty": 3}, "presence_penalty"),
        ({"logit_bias": {"a": 1}}, "logit_bias"),
        ({"logit_bias": {"5": 101}}, "logit_bias"),
        ({"logit_bias": {"9" * 5000: 1}}, "logit_bias"),
        ({"messages": [{"role": "user", "content": "a"}] * 10_001}, "messages"),
        ({"logit_bias": [1]}, "logit_bias"),
        ({"response_format": {"type": "xml"}}, "response_format.type"),
        ({"response_format": {"type": "json_schema"}}, "response_format.json_schema"),
        ({"response_format": {"type": "json_object", "json_schema": {}}}, "response_format.json_schema"),
        ({"response_format": {"type": "grammar", "grammar": "x"}}, "response_format.grammar"),
        ({"tools": {}}, "tools"),
        ({"tools": [{"type": "custom", "custom": {"name": "x"}}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"type": "function", "function": {"name": "x", "colour": 1}}]}, "tools[0].function.colour"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tool_choice": "perhaps"}, "tool_choice"),
        ({"tool_choice": {"type": "allowed_tools", "allowed_tools": {}}}, "tool_choice.type"),
        ({"tool_choice": {"type": "function", "function": {"name": "brew"}}, "tools": [TOOL]}, "tool_choice"),
        ({"parallel_tool_calls": "yes"}, "parallel_tool_calls"),
        ({"stream": "yes"}, "stream"),
        ({"stream_options": {"include_usage": True}}, "stream_options"),
        ({"stream": True, "stream_options": {"include_usage": 1}}, "stream_options.include_usage"),
        ({"stream": True, "stream_options": {"include_obfuscation": True}}, "stream_options.include_obfuscation"),
        ({"stream": True, "stream_options": {"foo": True}}, "stream_options.foo"),
        ({"user": 3}, "user"),
        ({"safety_identifier": 3}, "safety_identifier"),
        ({"store": True}, "store"),
        ({"metadata": {"a": 1}}, "metadata"),
        ({"metadata": {str(number): "" for number in range(17)}}, "metadata"),
        ({"service_tier": "priority"}, "service_tier"),
        ({"modalities": ["text", "audio"]}, "modalities"),
        ({"reasoning_effort": "low"}, "reasoning_effort"),
        ({"verbosity": "high"}, "verbosity"),
        ({"functions": []}, "functions"),
        ({"function_call": "auto"}, "function_call"),
        ({"prediction": {"type": "content", "content": "x"}}, "prediction"),
        ({"web_search_options": {}}, "web_search_options"),
        ({"prompt": "x"}, "prompt"),
        ({"echo": True}, "echo"),
        ({"wishes": 3}, "wishes"),
    ],
)  # fmt: skip
def test_what_a_chat_cannot_have_is_refused_by_its_name(given: dict[str, Any], param: str) -> None:
    assert refused(requests.chat, CHAT | given).extra["param"] == param


@pytest.mark.parametrize("message", [{"role": "king", "content": "x"}, {"content": "x"}, {"role": ["user"]}])
def test_a_wrong_role_is_told_which_there_are(message: dict[str, Any]) -> None:
    error = refused(requests.chat, CHAT | {"messages": [message]})
    assert error.detail == "messages[0].role is one of system, developer, user, assistant, tool"


@pytest.mark.parametrize(("name", "reason"), [("wishes", "unknown_parameter"), ("store", "unsupported_parameter")])
def test_a_refusal_says_whether_a_field_is_known_at_all(name: str, reason: str) -> None:
    assert refused(requests.chat, CHAT | {name: True}).extra["reason"] == reason


def test_messages_that_clients_send_back_are_taken() -> None:
    answered = {
        "role": "assistant", "content": None, "refusal": None, "annotations": [], "audio": None,
        "function_call": None, "tool_calls": [CALL],
    }  # fmt: skip
    told = {"role": "tool", "tool_call_id": "c1", "content": [{"type": "text", "text": "done"}]}
    found = chat(messages=[CHAT["messages"][0], answered, told])
    assert found.messages is not None
    assert found.messages[1].tool_calls is not None and found.messages[1].tool_calls[0].id == "c1"
    assert msgspec.to_builtins(found.messages[2]) == told


@pytest.mark.parametrize(
    ("prompt", "expected"),
    [
        ("a", ["a"]),
        (["a", "b"], ["a", "b"]),
        ([1, 2], [[1, 2]]),
        ([[1, 2], [3]], [[1, 2], [3]]),
    ],
)
def test_each_prompt_is_an_input(prompt: Any, expected: list[Any]) -> None:
    asked = requests.completion(COMPLETION | {"prompt": prompt, "n": 2, "best_of": 2, "echo": True, "logprobs": 0})
    assert [one.prompt for one in asked.inputs] == expected
    assert all(one.n == 2 and one.echo and one.logprobs == 0 for one in asked.inputs) and asked.n == 2
    assert [msgspec.json.decode(body)["prompt"] for body in asked.bodies()] == expected


@pytest.mark.parametrize(
    ("given", "param"),
    [
        ({"prompt": None}, "prompt"),
        ({"prompt": ""}, "prompt"),
        ({"prompt": []}, "prompt"),
        ({"prompt": ["a", ""]}, "prompt"),
        ({"prompt": [[1], []]}, "prompt"),
        ({"prompt": [1, "a"]}, "prompt"),
        ({"prompt": [True]}, "prompt"),
        ({"prompt": ["a"] * 65, "n": 2}, "prompt"),
        ({"best_of": 2}, "best_of"),
        ({"suffix": "x"}, "suffix"),
        ({"logprobs": True}, "logprobs"),
        ({"logprobs": 21}, "logprobs"),
        ({"max_tokens": 0}, "max_tokens"),
        ({"messages": CHAT["messages"]}, "messages"),
        ({"max_completion_tokens": 3}, "max_completion_tokens"),
    ],
)
def test_what_a_completion_cannot_have_is_refused_by_its_name(given: dict[str, Any], param: str) -> None:
    assert refused(requests.completion, COMPLETION | given).extra["param"] == param


@pytest.mark.parametrize(
    "body",
    [
        b"", b"tea", b"[]", b'"x"', b"\xff\xfe", b'{"a": "\xff"}', b'{"a": "\\ud800"}', b'{"a": NaN}', b'{"a": 1e999}',
        b"[" * 100_000,
    ],
)  # fmt: skip
def test_a_body_that_is_no_json_object_is_refused(body: bytes) -> None:
    with pytest.raises(RequestError) as caught:
        fields.read(body)
    assert type(caught.value) is RequestError and len(caught.value.detail) < 300


@pytest.mark.parametrize("model", [None, "", 3, ["m"]])
def test_a_request_names_its_model(model: Any) -> None:
    assert refused(fields.model_of, {"model": model}).extra["param"] == "model"


def parameters(*params: type) -> set[str]:
    return {name for one in params for name in get_type_hints(one)}


def test_every_field_of_the_real_client_has_been_decided_about() -> None:
    bases = (
        (chat_create_params.CompletionCreateParamsStreaming, fields.CHAT, fields.CHAT_RULES),
        (completion_create_params.CompletionCreateParamsStreaming, fields.COMPLETION, fields.COMPLETION_RULES),
        (embedding_create_params.EmbeddingCreateParams, fields.EMBEDDING, fields.EMBEDDING_RULES),
    )
    for params, names, rules in bases:
        assert parameters(params) <= names | rules.keys()
        assert not names & rules.keys()


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(
    st.sampled_from([(requests.chat, CHAT), (requests.completion, COMPLETION), (vectors.wanted, EMBEDDING)]),
    st.dictionaries(
        st.sampled_from(sorted(fields.CHAT | fields.COMPLETION | fields.EMBEDDING | fields.CHAT_RULES.keys())),
        json_values,
        max_size=4,
    ),
)
def test_whatever_is_sent_is_understood_or_refused_by_a_name(
    route: tuple[Callable[..., Any], dict[str, Any]], more: dict[str, Any]
) -> None:
    read, base = route
    try:
        asked = read(fields.given(base | more))
    except RequestError as error:
        assert error.extra["param"]
    else:
        assert isinstance(asked, vectors.Wanted) or asked.bodies()


def test_the_docs_name_every_field() -> None:
    text = (Path(__file__).parents[2] / "docs" / "openai.md").read_text()
    for names, rules in (
        (fields.CHAT, fields.CHAT_RULES),
        (fields.COMPLETION, fields.COMPLETION_RULES),
        (fields.EMBEDDING, fields.EMBEDDING_RULES),
    ):
        assert [name for name in sorted(names | rules.keys()) if f"`{name}`" not in text] == []
