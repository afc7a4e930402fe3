"""OpenAI's answers and errors, from what functions yield, and embeddings from what they return."""

from __future__ import annotations

import base64
import json
import math
import struct
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types import Completion as RealCompletion
from openai.types import CreateEmbeddingResponse
from openai.types.chat import ChatCompletion, ChatCompletionChunk

from samovar.errors import BadOutput, RateLimited, RequestError, SamovarError, by_code
from samovar.tasks.generation import (
    CONTEXT_EXCEEDED,
    Alternative,
    FunctionCall,
    GenerationOutput,
    TokenLogprob,
    ToolCall,
    Usage,
    refusal,
)
from samovar_gateway.openai import answers, problems, vectors

CALL = ToolCall(id="c", function=FunctionCall(name="f", arguments="{}"))
USAGE = GenerationOutput(usage=Usage(prompt_tokens=3, completion_tokens=2, cached_tokens=1))


def answer(shape: answers.Shape, num_prompts: int = 1, n: int = 1) -> answers.Answer:
    return answers.Answer(shape, "r1", "m", 1234, num_prompts, n)


def whole(shape: answers.Shape, *items: GenerationOutput, n: int = 1) -> dict[str, Any]:
    told = answer(shape, n=n)
    for item in items:
        told.collect(0, item)
    found: dict[str, Any] = json.loads(told.all("m@1"))
    return found


def chunks(shape: answers.Shape, *items: GenerationOutput, n: int = 1) -> list[dict[str, Any]]:
    told = answer(shape, n=n)
    some = [data for item in items for data in told.chunks(0, item, "m@1")]
    return [json.loads(data) for data in [*some, *told.rest("m@1")]]


def test_a_whole_chat_is_what_the_real_client_expects() -> None:
    found = whole(answers.Chat(), GenerationOutput(text="a"), GenerationOutput(text="b", finish_reason="length"), USAGE)
    real = ChatCompletion.model_validate(found, strict=True)
    assert real.id == "chatcmpl-r1" and real.created == 1234 and real.system_fingerprint == "m@1"
    assert real.choices[0].message.content == "ab" and real.choices[0].finish_reason == "length"
    assert real.usage is not None and real.usage.total_tokens == 5
    assert real.usage.prompt_tokens_details is not None and real.usage.prompt_tokens_details.cached_tokens == 1


def test_tool_calls_have_no_content_in_a_whole_answer_and_a_number_in_chunks() -> None:
    items = [GenerationOutput(tool_calls=[CALL]), GenerationOutput(tool_calls=[CALL, CALL], finish_reason="tool_calls")]
    message = whole(answers.Chat(), *items)["choices"][0]["message"]
    assert message["content"] is None and len(message["tool_calls"]) == 3
    told = chunks(answers.Chat(), *items)
    deltas = [ChatCompletionChunk.model_validate(chunk).choices[0].delta for chunk in told]
    assert [[call.index for call in delta.tool_calls or []] for delta in deltas] == [[0], [1, 2], []]
    assert deltas[0].content is None and told[-1]["choices"][0]["finish_reason"] == "tool_calls"


def test_the_end_of_a_chats_choice_is_a_chunk_of_its_own() -> None:
    end = {"index": 0, "delta": {}, "logprobs": None, "finish_reason": "stop"}
    told = chunks(answers.Chat(), GenerationOutput(text="a"), GenerationOutput(text="b", finish_reason="stop"))
    assert [chunk["choices"][0]["finish_reason"] for chunk in told] == [None, None, "stop"]
    assert told[-1]["choices"] == [end]
    assert chunks(answers.Chat(), GenerationOutput(text="a"), GenerationOutput(finish_reason="stop"))[-1][
        "choices"
    ] == [end]
    alone = chunks(answers.Chat(), GenerationOutput(finish_reason="length"))
    assert [chunk["choices"][0]["delta"] for chunk in alone] == [{"role": "assistant", "content": ""}]


def test_choices_are_numbered_over_prompts() -> None:
    told = answer(answers.Completion(), num_prompts=2, n=2)
    (data,) = told.chunks(1, GenerationOutput(index=1, text="x", finish_reason="stop"), "m@1")
    assert RealCompletion.model_validate(json.loads(data)).choices[0].index == 3
    assert [json.loads(one)["choices"][0]["index"] for one in told.rest("m@1")] == [0, 1, 2]


def test_a_choice_that_says_nothing_is_told_all_the_same() -> None:
    found = whole(answers.Chat(), GenerationOutput(index=1, text="a", finish_reason="stop"), n=2)
    assert [(one["message"]["content"], one["finish_reason"]) for one in found["choices"]] == [
        ("", "stop"),
        ("a", "stop"),
    ]
    told = chunks(answers.Chat(), GenerationOutput(index=1, text="a", finish_reason="stop"), n=2)
    assert told[-1]["choices"][0] == {
        "index": 0,
        "delta": {"role": "assistant", "content": ""},
        "logprobs": None,
        "finish_reason": "stop",
    }


@pytest.mark.parametrize("shape", [answers.Chat(), answers.Completion()])
def test_a_choice_ends_once(shape: answers.Shape) -> None:
    first, again = GenerationOutput(text="a", finish_reason="length"), GenerationOutput(finish_reason="stop")
    told = [chunk["choices"][0]["finish_reason"] for chunk in chunks(shape, first, again, USAGE)]
    assert [reason for reason in told if reason is not None] == ["length"]
    assert whole(shape, first, again)["choices"][0]["finish_reason"] == "length"
    for more in (GenerationOutput(text="b"), GenerationOutput(tool_calls=[CALL])):
        with pytest.raises(BadOutput, match="choice 0 after its finish_reason"):
            chunks(shape, first, more)
        with pytest.raises(BadOutput, match="choice 0 after its finish_reason"):
            whole(shape, first, more)


def test_where_usage_is_wanted_all_chunks_but_the_last_say_null() -> None:
    told = answers.Answer(answers.Chat(), "r1", "m", 1234, 1, 2, with_usage=True)
    some = told.chunks(0, GenerationOutput(text="a", finish_reason="stop"), "m@1") + told.rest("m@1")
    assert [json.loads(data)["usage"] for data in some] == [None, None, None]
    told.chunks(0, USAGE, "m@1")
    assert json.loads(told.usage_chunk("m@1"))["usage"]["total_tokens"] == 5
    assert "usage" not in chunks(answers.Chat(), GenerationOutput(text="a"))[0]


def test_what_is_of_no_interest_is_no_chunk() -> None:
    told = answer(answers.Chat())
    assert told.chunks(0, USAGE, "m@1") == []
    assert len(told.chunks(0, GenerationOutput(text="a"), "m@1")) == 1
    assert told.chunks(0, USAGE, "m@1") == []


def test_usage_is_not_invented() -> None:
    assert whole(answers.Chat(), GenerationOutput(text="a"))["usage"] is None
    told = answer(answers.Completion(), num_prompts=2)
    told.collect(0, USAGE)
    assert json.loads(told.all("m@1"))["usage"] is None
    told.collect(1, USAGE)
    assert json.loads(told.usage_chunk("m@1"))["usage"]["total_tokens"] == 10


def test_a_choice_nobody_asked_for_is_the_functions_fault() -> None:
    for index in (1, -1):
        with pytest.raises(BadOutput):
            answer(answers.Chat()).collect(0, GenerationOutput(index=index))


@pytest.mark.parametrize("chunk", [b"3", b'{"text": 3}', b'{"finish_reason": "tired"}', b"\xff", b""])
def test_items_of_another_kind_are_the_functions_fault(chunk: bytes) -> None:
    with pytest.raises(BadOutput):
        answers.item_of(chunk)


def test_logprobs_in_both_shapes() -> None:
    top = [
        Alternative(token="a", token_id=1, logprob=-0.1, bytes=[97]),
        Alternative(token="b", token_id=2, logprob=-2, bytes=[98]),
    ]
    item = GenerationOutput(
        text="a", logprobs=[TokenLogprob(token="a", token_id=1, logprob=-0.1, bytes=[97], top=top, offset=4)]
    )
    chat = ChatCompletion.model_validate(whole(answers.Chat(), item)).choices[0].logprobs
    assert chat is not None and chat.content is not None
    assert [one.token for one in chat.content[0].top_logprobs] == ["a", "b"] and chat.content[0].bytes == [97]
    completion = RealCompletion.model_validate(whole(answers.Completion(), item)).choices[0].logprobs
    assert completion is not None
    assert completion.top_logprobs == [{"b": -2.0, "a": -0.1}] and completion.text_offset == [4]


# ---- errors ----------------------------------------------------------------------------------------------------------


def told_of(error: SamovarError, **names: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(problems.encode(error, names))["error"]
    assert found.keys() == {"message", "type", "param", "code"}
    return found


@pytest.mark.parametrize(
    ("error", "kind", "code", "param"),
    [
        (refusal("stop", "no"), "invalid_request_error", "malformed", "stop"),
        (refusal("messages", "long", reason=CONTEXT_EXCEEDED), "invalid_request_error", CONTEXT_EXCEEDED, "messages"),
        (by_code()["function_not_found"]("?"), "invalid_request_error", "model_not_found", "model"),
        (by_code()["unauthenticated"]("?"), "invalid_request_error", "invalid_api_key", None),
        (by_code()["invalid_input"]("?", path="$.messages[0].role"), "invalid_request_error", "invalid_input",
         "messages[0].role"),
        (by_code()["invalid_input"]("?", path="$"), "invalid_request_error", "invalid_input", None),
        (RateLimited("?"), "rate_limit_error", "rate_limit_exceeded", None),
        (by_code()["queue_full"]("?"), "server_error", "queue_full", None),
        (by_code()["function_raised"]("?", type="ValueError"), "server_error", "function_raised", None),
        (BadOutput("has nan", path="$.logprobs[0]"), "server_error", "bad_output", None),
    ],
)  # fmt: skip
def test_errors_in_openais_shape(error: SamovarError, kind: str, code: str, param: str | None) -> None:
    found = told_of(error)
    assert (found["type"], found["code"], found["param"]) == (kind, code, param)


def test_a_field_is_called_as_the_caller_called_it() -> None:
    assert told_of(refusal("max_tokens", "?"), max_tokens="max_completion_tokens")["param"] == "max_completion_tokens"


@pytest.mark.parametrize("code", sorted(by_code()))
def test_every_error_says_whether_to_try_again(code: str) -> None:
    error = by_code()[code]("?", retry_after_s=1.25)
    headers = dict(problems.headers(error))
    assert headers[b"x-should-retry"] == (b"true" if error.retryable else b"false")
    assert (headers[b"retry-after"], headers[b"retry-after-ms"]) == (b"2", b"1250")
    assert headers[b"content-type"] == b"application/json"
    assert told_of(error)["message"] == "?"


# ---- embeddings ------------------------------------------------------------------------------------------------------

TEXT = {"properties": {"text": {"type": "string"}}, "required": ["text"]}
TOKENS = {"properties": {"text": {"anyOf": [{"type": "string"}, {"type": "array"}]}}, "required": ["text"]}
SIZED = {"properties": TEXT["properties"] | {"dimensions": {"type": "integer"}}, "required": ["text"]}  # type: ignore[operator]


def wish(**more: Any) -> vectors.Wanted:
    return vectors.wanted({"model": "m", "input": "tea"} | more)


@pytest.mark.parametrize(
    ("value", "expected"),
    [("a", ["a"]), (["a", "b"], ["a", "b"]), ([1, 2], [[1, 2]]), ([[1], [2, 3]], [[1], [2, 3]])],
)
def test_each_input_is_one(value: Any, expected: list[Any]) -> None:
    assert wish(input=value).inputs == expected


@pytest.mark.parametrize(
    ("more", "param"),
    [
        ({"input": ""}, "input"), ({"input": []}, "input"), ({"input": [""]}, "input"), ({"input": None}, "input"),
        ({"input": ["a", ""]}, "input[1]"), ({"input": [[]]}, "input"), ({"input": [1, "a"]}, "input"),
        ({"input": [True]}, "input"), ({"input": {}}, "input"), ({"input": ["a"] * 2049}, "input"),
        ({"encoding_format": "hex"}, "encoding_format"), ({"encoding_format": []}, "encoding_format"),
        ({"dimensions": 0}, "dimensions"), ({"dimensions": True}, "dimensions"), ({"dimensions": "3"}, "dimensions"),
        ({"user": 3}, "user"), ({"wishes": 1}, "wishes"),
    ],
)  # fmt: skip
def test_what_an_embedding_cannot_have_is_refused_by_its_name(more: dict[str, Any], param: str) -> None:
    with pytest.raises(RequestError) as caught:
        wish(**more)
    assert caught.value.extra["param"] == param


def test_a_function_gets_its_own_field() -> None:
    assert vectors.bodies(wish(input=["a", "b"]), TEXT) == [b'{"text":"a"}', b'{"text":"b"}']
    assert vectors.bodies(wish(input=[1, 2]), TOKENS) == [b'{"text":[1,2]}']
    assert vectors.bodies(wish(dimensions=2), SIZED) == [b'{"text":"tea","dimensions":2}']
    assert vectors.bodies(wish(dimensions=2), TEXT) == [b'{"text":"tea"}']
    with pytest.raises(RequestError, match="not token ids"):
        vectors.bodies(wish(input=[1, 2]), TEXT)


def test_numbers_go_through_as_they_are() -> None:
    item, taken = vectors.item(0, b'{"embedding": [0.1, 2], "num_tokens": 3}', wish())
    assert msgspec.json.encode(item) == b'{"object":"embedding","index":0,"embedding":[0.1, 2]}' and taken == 3
    real = CreateEmbeddingResponse.model_validate_json(vectors.answer([item], "m", 3))
    assert real.data[0].embedding == [0.1, 2.0] and real.usage.total_tokens == 3


@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1, max_size=20))
def test_base64_is_little_endian_float32(numbers: list[float]) -> None:
    item, _ = vectors.item(0, msgspec.json.encode({"embedding": numbers}), wish(encoding_format="base64"))
    assert list(struct.unpack(f"<{len(numbers)}f", base64.b64decode(item["embedding"]))) == numbers


@pytest.mark.parametrize("encoding", ["float", "base64"])
def test_fewer_dimensions_are_the_first_ones_at_length_one(encoding: str) -> None:
    body = b'{"embedding": [3, 4, 12]}'
    item, _ = vectors.item(0, body, wish(dimensions=2, encoding_format=encoding))
    shown = item["embedding"]
    numbers = struct.unpack("<2f", base64.b64decode(shown)) if encoding == "base64" else shown
    assert numbers == pytest.approx([0.6, 0.8]) and math.hypot(*numbers) == pytest.approx(1)
    assert vectors.item(0, body, wish(dimensions=3))[0]["embedding"] == [3, 4, 12]
    assert vectors.item(0, b'{"embedding": [0, 0]}', wish(dimensions=1))[0]["embedding"] == [0]
    with pytest.raises(RequestError) as caught:
        vectors.item(0, body, wish(dimensions=4))
    assert caught.value.extra["param"] == "dimensions"


@pytest.mark.parametrize("body", [b"3", b"{}", b'{"embedding": "x"}', b"\xff"])
def test_an_answer_that_is_no_embedding_is_the_functions_fault(body: bytes) -> None:
    with pytest.raises(BadOutput):
        vectors.item(0, body, wish(encoding_format="base64"))
