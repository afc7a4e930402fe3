"""OpenAI's own client on a model: a tiny Llama with random weights in a real instance, served by our engine."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai import OpenAI

from support.instance_driver import FUNCTIONS, Zygote
from support.openai_gateway import Platform, running_platform
from support.tiny_models import CONTEXT_TOKENS, tiny_model

pytestmark = pytest.mark.process

TOOL: Any = {
    "type": "function",
    "function": {
        "name": "pour",
        "parameters": {
            "type": "object",
            "properties": {"cup": {"enum": ["small", "large"]}},
            "required": ["cup"],
            "additionalProperties": False,
        },
    },
}
SCHEMA = {
    "type": "object",
    "properties": {"tea": {"enum": ["green", "black"]}, "cups": {"type": "integer", "minimum": 1, "maximum": 9}},
    "required": ["tea", "cups"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def platform(valkey: Any, seaweed: Any, session_zygote: Zygote) -> Iterator[Platform]:
    with running_platform(valkey, seaweed, session_zygote) as running:
        folder = FUNCTIONS / "chats"
        running.start(running.deploy(folder).ref, folder, weights=tiny_model("llama"))
        yield running


def chat(client: OpenAI, text: str = "the cat and the dog", **more: Any) -> Any:
    messages: Any = [{"role": "user", "content": text}]
    return client.chat.completions.create(model="chats", messages=messages, **{"max_tokens": 24} | more)


def text_of(answer: Any) -> list[str]:
    return [choice.message.content for choice in answer.choices]


def test_a_seed_gives_the_same_answer_alone_and_among_others(client: OpenAI) -> None:
    first = chat(client, seed=7, n=3, temperature=1.2)
    again = chat(client, seed=7, n=3, temperature=1.2)
    assert text_of(first) == text_of(again) and len({*text_of(first)}) == 3
    assert text_of(chat(client, seed=7, temperature=1.2)) == text_of(first)[:1]
    assert text_of(chat(client, seed=8, temperature=1.2)) != text_of(first)[:1]


async def test_many_at_a_time_get_what_they_get_alone(platform: Platform, client: OpenAI) -> None:
    alone = text_of(chat(client, temperature=0))
    async with platform.async_client() as many:

        async def one(number: int) -> Any:
            messages: Any = [
                {"role": "user", "content": "the cat and the dog" if number % 2 else f"{number} " * number}
            ]
            return await many.chat.completions.create(model="chats", messages=messages, temperature=0, max_tokens=24)

        answers = await asyncio.gather(*map(one, range(1, 9)))
    assert all(text_of(answer) == alone for answer in answers[::2])


def test_a_stream_is_the_whole_answer_in_pieces(client: OpenAI) -> None:
    for seed in range(3):
        more: dict[str, Any] = {"seed": seed, "temperature": 1.5}
        chunks = [*chat(client, **more, stream=True, stream_options={"include_usage": True})]
        whole = chat(client, **more)
        text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
        assert [text] == text_of(whole) and chunks[-1].usage.model_dump() | {"prompt_tokens_details": None} == (
            whole.usage.model_dump() | {"prompt_tokens_details": None}
        )


def test_what_is_used_is_counted(client: OpenAI) -> None:
    answer = client.completions.create(
        model="chats", prompt=[[70, 71, 72], [70]], max_tokens=5, extra_body={"ignore_eos": True}
    )
    assert answer.usage is not None
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens, answer.usage.total_tokens) == (4, 10, 14)
    assert {choice.finish_reason for choice in answer.choices} == {"length"}


def test_a_stop_is_found_across_tokens(client: OpenAI) -> None:
    whole = client.completions.create(
        model="chats", prompt="the cat", max_tokens=40, temperature=0, extra_body={"ignore_eos": True}
    )
    text = whole.choices[0].text
    stop = text[9:14]
    assert len(stop) == 5
    cut = client.completions.create(
        model="chats", prompt="the cat", max_tokens=40, temperature=0, stop=[stop], extra_body={"ignore_eos": True}
    )
    assert cut.choices[0].text == text[: text.index(stop)] and cut.choices[0].finish_reason == "stop"


def test_answers_follow_a_schema(client: OpenAI) -> None:
    wish = {"type": "json_schema", "json_schema": {"name": "order", "schema": SCHEMA, "strict": True}}
    for seed in range(4):
        (text,) = text_of(chat(client, response_format=wish, seed=seed, temperature=1.5, max_tokens=200))
        order = json.loads(text)
        assert order.keys() == {"tea", "cups"} and order["tea"] in ("green", "black") and 1 <= order["cups"] <= 9


def test_tools_are_called_as_their_schemas_say(client: OpenAI) -> None:
    for choice in ("required", {"type": "function", "function": {"name": "pour"}}):
        answer = chat(client, tools=[TOOL], tool_choice=choice, max_tokens=200, seed=3, parallel_tool_calls=False)
        (told,) = answer.choices
        assert told.finish_reason == "tool_calls", told
        (call,) = told.message.tool_calls
        assert call.function.name == "pour" and json.loads(call.function.arguments)["cup"] in ("small", "large")


def test_log_probabilities_are_those_of_the_chosen(client: OpenAI) -> None:
    answer = chat(client, temperature=0, logprobs=True, top_logprobs=3, max_tokens=5)
    told = answer.choices[0].logprobs.content
    assert len(told) == answer.usage.completion_tokens
    assert all(one.top_logprobs[0].logprob == pytest.approx(one.logprob, abs=1e-4) for one in told)
    assert all(len(one.top_logprobs) == 3 for one in told)


@pytest.mark.parametrize(
    ("more", "param", "code"),
    [
        ({"text": "cat " * CONTEXT_TOKENS}, "messages", "context_length_exceeded"),
        ({"max_completion_tokens": CONTEXT_TOKENS + 1, "max_tokens": None}, "max_completion_tokens", None),
        ({"logit_bias": {"99999": 1}}, "logit_bias", "malformed"),
        ({"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": {"type": "tea"}}}},
         "response_format", "malformed"),
    ],
)  # fmt: skip
def test_what_only_the_model_knows_is_refused_by_name(client: OpenAI, more: Any, param: str, code: str | None) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        chat(client, **more)
    assert caught.value.param == param and code in (None, caught.value.code)
