"""Chats and completions by OpenAI's own client: a real gateway, and real instances of a parrot."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai import OpenAI
from pydantic import BaseModel

from support.instance_driver import Zygote
from support.openai_gateway import Platform, running_platform
from support.waiting import wait_until

pytestmark = pytest.mark.process

TOOL: Any = {
    "type": "function",
    "function": {"name": "say", "parameters": {"type": "object", "properties": {"said": {"type": "string"}}}},
}


@pytest.fixture(scope="module")
def platform(valkey: Any, seaweed: Any, session_zygote: Zygote) -> Iterator[Platform]:
    with running_platform(valkey, seaweed, session_zygote, "parrot") as running:
        yield running


def says(text: str) -> Any:
    return [{"role": "user", "content": text}]


def chat(client: OpenAI, text: str, **more: Any) -> Any:
    return client.chat.completions.create(model="parrot", messages=says(text), **more)


def complete(client: OpenAI, prompt: Any, **more: Any) -> Any:
    return client.completions.create(model="parrot", prompt=prompt, **more)


def test_a_chat_is_answered(client: OpenAI) -> None:
    answer = chat(client, "tea is ready")
    assert answer.object == "chat.completion" and answer.id.startswith("chatcmpl-")
    assert answer.model == "parrot" and answer.system_fingerprint == "parrot@1"
    (choice,) = answer.choices
    assert choice.message.role == "assistant" and choice.message.content == "tea is ready"
    assert choice.finish_reason == "stop" and choice.logprobs is None and choice.message.tool_calls is None
    assert answer.usage.total_tokens == 6


def test_a_chat_is_streamed(client: OpenAI) -> None:
    chunks = [*chat(client, "tea is ready", stream=True)]
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"} and len({chunk.id for chunk in chunks}) == 1
    deltas = [chunk.choices[0].delta for chunk in chunks]
    assert [delta.content for delta in deltas] == ["tea", " is", " ready", None]
    assert [delta.role for delta in deltas] == ["assistant", None, None, None]
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None, None, None, "stop"]
    assert all(chunk.usage is None for chunk in chunks)


async def test_coroutines_are_answered_many_at_a_time(platform: Platform) -> None:
    async with platform.async_client() as client:

        async def streamed(number: int) -> str:
            stream = await client.chat.completions.create(
                model="parrot", messages=says(f"cup {number} !pause=0.01"), stream=True
            )
            return "".join([chunk.choices[0].delta.content or "" async for chunk in stream])

        assert await asyncio.gather(*map(streamed, range(20))) == [f"cup {number}" for number in range(20)]


def test_choices_lengths_and_stops(client: OpenAI) -> None:
    cut = chat(client, "one two three four", n=2, max_completion_tokens=3)
    assert [choice.message.content for choice in cut.choices] == ["one two three"] * 2
    assert {choice.finish_reason for choice in cut.choices} == {"length"} and cut.usage.completion_tokens == 6
    assert chat(client, "one two three", stop="o th").choices[0].message.content == "one tw"
    assert chat(client, "one two three", stop=["x", " "]).choices[0].message.content == "one"
    streamed = [*chat(client, "one two", n=3, stream=True)]
    assert {chunk.choices[0].index for chunk in streamed} == {0, 1, 2}


def test_usage_comes_last_where_it_is_asked_for(client: OpenAI) -> None:
    chunks = [*chat(client, "tea is ready", stream=True, stream_options={"include_usage": True})]
    assert chunks[-1].choices == [] and chunks[-1].usage.completion_tokens == 3
    assert all(chunk.usage is None and chunk.choices for chunk in chunks[:-1])


def test_log_probabilities_of_chats(client: OpenAI) -> None:
    told = chat(client, "tea is", logprobs=True, top_logprobs=2).choices[0].logprobs.content
    assert [(one.token, one.bytes, len(one.top_logprobs)) for one in told] == [
        ("tea", [*b"tea"], 2),
        (" is", [*b" is"], 2),
    ]
    assert chat(client, "tea is", logprobs=True).choices[0].logprobs.content[0].top_logprobs == []


def test_tools_are_called_and_answered(client: OpenAI) -> None:
    asked = chat(client, "hello !tool !tool", tools=[TOOL])
    message = asked.choices[0].message
    assert asked.choices[0].finish_reason == "tool_calls" and message.content is None
    assert [call.function.name for call in message.tool_calls] == ["say", "say"]
    messages = [*says("hello !tool"), message, {"role": "tool", "tool_call_id": "call_0", "content": "it was said"}]
    answer = client.chat.completions.create(model="parrot", messages=messages, tools=[TOOL])
    assert answer.choices[0].message.content == "it was said"


def test_how_tools_are_chosen(client: OpenAI) -> None:
    named: Any = {"type": "function", "function": {"name": "say"}}
    for choice, reason in ((named, "tool_calls"), ("required", "tool_calls"), ("auto", "stop"), ("none", "stop")):
        assert chat(client, "hello", tools=[TOOL], tool_choice=choice).choices[0].finish_reason == reason
    alone = chat(client, "hi !tool !tool", tools=[TOOL], parallel_tool_calls=False)
    assert len(alone.choices[0].message.tool_calls) == 1


def test_tool_calls_are_streamed(client: OpenAI) -> None:
    with client.chat.completions.stream(model="parrot", messages=says("hello !tool"), tools=[TOOL]) as stream:
        kinds = [event.type for event in stream]
        final = stream.get_final_completion()
    assert "tool_calls.function.arguments.done" in kinds
    calls = final.choices[0].message.tool_calls
    assert calls is not None and calls[0].function.arguments == '{"said": "hello"}'


class Said(BaseModel):
    said: str


def test_answers_are_parsed_into_models(client: OpenAI) -> None:
    parsed = client.chat.completions.parse(model="parrot", messages=says("tea is ready"), response_format=Said)
    assert parsed.choices[0].message.parsed == Said(said="tea is ready")
    with client.chat.completions.stream(model="parrot", messages=says("tea"), response_format=Said) as stream:
        assert stream.get_final_completion().choices[0].message.parsed == Said(said="tea")
    assert chat(client, "x", response_format={"type": "json_object"}).choices[0].message.content == '{"said": "x"}'


def test_what_frameworks_send_is_as_if_it_was_not_there(client: OpenAI) -> None:
    nothing = dict.fromkeys(("tools", "n", "stop", "temperature", "logprobs", "functions", "seed", "user", "metadata"))
    answer = chat(client, "tea", extra_body=nothing, store=False, service_tier="auto", parallel_tool_calls=True)
    assert answer.choices[0].message.content == "tea"
    parts = [{"role": "user", "content": [{"type": "text", "text": "tea"}, {"type": "text", "text": "is"}]}]
    assert client.chat.completions.create(model="parrot", messages=parts).choices[0].message.content == "tea is"  # type: ignore[arg-type]


def test_a_completion_is_answered(client: OpenAI) -> None:
    answer = complete(client, "tea is ready", echo=True, logprobs=1, n=2, best_of=2)
    assert answer.object == "text_completion" and answer.id.startswith("cmpl-")
    choice = answer.choices[1]
    assert choice.text == "tea is ready tea is ready" and choice.finish_reason == "stop" and choice.index == 1
    assert choice.logprobs.tokens[:2] == ["tea", " is"] and choice.logprobs.text_offset[:3] == [0, 3, 6]
    assert choice.logprobs.top_logprobs[0] == {"tea": -0.25}


def test_a_completion_is_sixteen_tokens_long_unless_told(client: OpenAI) -> None:
    long = "tea " * 40
    assert complete(client, long).usage.completion_tokens == 16
    assert complete(client, long, max_tokens=30).usage.completion_tokens == 30


def test_several_prompts_are_several_choices(client: OpenAI) -> None:
    answer = complete(client, ["a", "b c", "d"], n=2)
    assert [choice.text for choice in answer.choices] == ["a", "a", "b c", "b c", "d", "d"]
    assert answer.usage.prompt_tokens == 4 and answer.usage.completion_tokens == 8
    assert [choice.text for choice in complete(client, [[1, 2], [3]]).choices] == ["1 2", "3"]
    assert complete(client, [7, 8]).choices[0].text == "7 8"


def test_more_prompts_than_slots_are_streamed_together(client: OpenAI) -> None:
    words = " ".join(f"w{number}" for number in range(60))  # more than may wait unread
    told: dict[int, str] = {}
    stream = complete(client, [f"{number} {words}" for number in range(20)], max_tokens=100, stream=True)
    for chunk in stream:
        told[chunk.choices[0].index] = told.get(chunk.choices[0].index, "") + chunk.choices[0].text
    assert told == {number: f"{number} {words}" for number in range(20)}


def test_an_answer_says_where_it_comes_from(client: OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(
        model="parrot", messages=says("tea"), extra_headers={"X-Request-Id": "my-tea"}
    )
    assert raw.headers["samovar-version"] == "1" and raw.headers["x-request-id"] == "my-tea"
    assert "run;dur=" in raw.headers["server-timing"]
    assert raw.parse().id == "chatcmpl-my-tea" and raw.parse()._request_id == "my-tea"
    with client.chat.completions.with_streaming_response.create(
        model="parrot", messages=says("tea"), stream=True
    ) as streamed:
        lines = [*streamed.iter_lines()]
    assert streamed.headers["content-type"].startswith("text/event-stream")
    assert streamed.headers["samovar-version"] == "1" and streamed.headers["cache-control"] == "no-store"
    assert lines[-2:] == ["data: [DONE]", ""] and lines[-4].startswith(": server-timing queue;dur=")


def test_a_log_knows_every_invocation(platform: Platform, client: OpenAI) -> None:
    raw = client.chat.completions.with_raw_response.create(model="parrot", messages=says("noted"))
    with pytest.raises(openai.BadRequestError):
        chat(client, "x", max_tokens=-1, extra_headers={"X-Request-Id": "refused-tea"})

    def noted() -> dict[str, int]:
        found = platform.gateway.client.get("/v1/functions/parrot/requests?limit=500").json()["records"]
        return {record["request_id"]: record["status"] for record in found}

    wait_until(lambda: {raw.headers["x-request-id"], "refused-tea"} <= noted().keys(), what="records")
    assert noted()[raw.headers["x-request-id"]] == 200 and noted()["refused-tea"] == 400


def test_whoever_leaves_is_seen_by_the_instance(platform: Platform, client: OpenAI) -> None:
    before = platform.instances["parrot"].log_text().count("parrot: cancelled")
    with chat(client, "on and on !repeat=500 !pause=0.02", stream=True) as stream:
        next(iter(stream))
    hurried = client.with_options(timeout=0.3)
    with pytest.raises(openai.APITimeoutError):
        chat(hurried, "on and on !repeat=500 !pause=0.02")
    with complete(client, ["on and on !pause=0.02 !repeat=500"] * 3, max_tokens=1000, stream=True) as stream:
        next(iter(stream))
    log = platform.instances["parrot"].log_text
    wait_until(lambda: log().count("parrot: cancelled") == before + 5, what="cancelled")


def test_a_slow_reader_holds_its_own_stream_back(platform: Platform, client: OpenAI) -> None:
    log = platform.instances["parrot"].log_text
    done = log().count("parrot: said all")
    big = "x" * 100_000
    with client.chat.completions.with_streaming_response.create(
        model="parrot", messages=says(f"{big} !repeat=400"), stream=True
    ) as unread:
        assert chat(client, "others are served").choices[0].message.content == "others are served"
        wait_until(lambda: log().count("parrot: said all") == done + 1, what="the other one is done")
        assert sum(line.startswith("data: ") for line in unread.iter_lines()) == 402  # with the end, and [DONE]
    wait_until(lambda: log().count("parrot: said all") == done + 2, what="both are done")


def test_a_cold_model_is_waited_for_with_heartbeats(platform: Platform, client: OpenAI) -> None:
    with client.chat.completions.with_streaming_response.create(
        model="parrot", messages=says("tea !sleep=2.5"), stream=True
    ) as waiting:
        lines = [line for line in waiting.iter_lines() if line]
    assert lines[0] == ": running" and lines[1].startswith("data: ") and lines[-1] == "data: [DONE]"
