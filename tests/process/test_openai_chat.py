"""Chats and completions by OpenAI's own client: a real gateway, and real instances of a parrot."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai import OpenAI

from support.instance_driver import Zygote
from support.openai_gateway import Platform, running_platform

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def platform(valkey: Any, seaweed: Any, session_zygote: Zygote) -> Iterator[Platform]:
    with running_platform(valkey, seaweed, session_zygote, 20) as running:
        running.serve("parrot")
        yield running
    session_zygote.clean()


@pytest.fixture(scope="module")
def client(platform: Platform) -> Iterator[OpenAI]:
    with platform.client() as client:
        yield client


def said(text: str) -> Any:
    return [{"role": "user", "content": text}]


def test_a_chat_is_answered(client: OpenAI) -> None:
    answer = client.chat.completions.create(model="parrot", messages=said("tea is ready"))
    assert answer.object == "chat.completion" and answer.id.startswith("chatcmpl-")
    assert answer.model == "parrot" and answer.system_fingerprint == "parrot@1"
    (choice,) = answer.choices
    assert choice.message.role == "assistant" and choice.message.content == "tea is ready"
    assert choice.finish_reason == "stop" and choice.logprobs is None and choice.message.tool_calls is None
    assert answer.usage is not None and answer.usage.total_tokens == 6


def test_a_chat_is_streamed(client: OpenAI) -> None:
    chunks = [*client.chat.completions.create(model="parrot", messages=said("tea is ready"), stream=True)]
    assert {chunk.object for chunk in chunks} == {"chat.completion.chunk"} and len({chunk.id for chunk in chunks}) == 1
    deltas = [chunk.choices[0].delta for chunk in chunks]
    assert [delta.content for delta in deltas] == ["tea", " is", " ready"]
    assert [delta.role for delta in deltas] == ["assistant", None, None]
    assert [chunk.choices[0].finish_reason for chunk in chunks] == [None, None, "stop"]
    assert all(chunk.usage is None for chunk in chunks)


def test_an_unknown_model_has_near_names(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        client.chat.completions.create(model="parot", messages=said("tea"))
    assert caught.value.code == "model_not_found" and "'parrot'" in caught.value.message
