"""OpenAI's own client on a model that sees: a tiny Llava with random weights in a real instance, behind a gateway."""

from __future__ import annotations

import base64
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai import OpenAI

from samovar.models.choosing import choose
from samovar.models.folder import read_model_folder
from samovar.models.project import app_code, write_project
from support.instance_driver import FUNCTIONS, Zygote
from support.openai_gateway import Platform, running_platform
from support.tiny_models import tiny_model
from support.tiny_tasks import png, tiny_task

pytestmark = pytest.mark.process

RED = f"data:image/png;base64,{png(40, 30, (200, 3, 9))}"
GREEN = f"data:image/png;base64,{png(20, 50, (3, 200, 9))}"


@pytest.fixture(scope="module")
def platform(
    valkey: Any, seaweed: Any, session_zygote: Zygote, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Platform]:
    model = read_model_folder(str(tiny_task("image-text-to-text")))
    code = app_code("vlm", choose(model, None).task, model)
    app = write_project(tmp_path_factory.mktemp("vlm") / "model_vlm", code, model)
    with running_platform(valkey, seaweed, session_zygote) as running:
        running.start(running.deploy(app.parent).ref, app.parent, weights=model.path)
        running.start(running.deploy(FUNCTIONS / "chats").ref, FUNCTIONS / "chats", weights=tiny_model("llama"))
        yield running


def chat(client: OpenAI, url: str = RED, model: str = "vlm", **more: Any) -> Any:
    content: Any = [{"type": "text", "text": "what is it?"}, {"type": "image_url", "image_url": {"url": url}}]
    messages: Any = [{"role": "user", "content": content}]
    settings: dict[str, Any] = {"max_tokens": 16, "temperature": 0, "extra_body": {"ignore_eos": True}} | more
    return client.chat.completions.create(model=model, messages=messages, **settings)


def text_of(answer: Any) -> str:
    return str(answer.choices[0].message.content)


def test_a_picture_is_streamed_about(client: OpenAI) -> None:
    chunks = [*chat(client, stream=True, stream_options={"include_usage": True})]
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    whole = chat(client)
    assert len(chunks) > 4 and text == text_of(whole)
    assert chunks[-1].usage.completion_tokens == whole.usage.completion_tokens == 16
    assert whole.usage.prompt_tokens > 16, "patches of the picture are tokens"
    assert text_of(chat(client, url=GREEN)) != text


def test_settings_mean_what_they_mean_for_texts(client: OpenAI) -> None:
    more: dict[str, Any] = {"temperature": 1.3, "seed": 4, "n": 2, "logprobs": True, "top_logprobs": 2}
    answer, again = chat(client, **more), chat(client, **more)
    texts = [choice.message.content for choice in answer.choices]
    assert texts == [choice.message.content for choice in again.choices] and len({*texts}) == 2
    assert len(answer.choices[0].logprobs.content[0].top_logprobs) == 2
    wish = {"type": "json_schema", "json_schema": {"name": "tea", "schema": {"enum": ["green", "black"]}}}
    named = chat(client, response_format=wish, extra_body=None, max_tokens=40)
    assert text_of(named) in ('"green"', '"black"')


def test_it_is_a_model_and_continues_prompts(client: OpenAI) -> None:
    assert client.models.retrieve("vlm").model_dump()["task"] == "image-text-to-text"
    assert client.completions.create(model="vlm", prompt="the cat", max_tokens=4).choices[0].finish_reason


@pytest.mark.parametrize(
    ("url", "more", "param"),
    [
        ("https://example.org/tea.png", {}, "messages[0].content[1].image_url.url"),
        ("data:image/png;base64,!", {}, "messages[0].content[1].image_url.url"),
        (f"data:image/png;base64,{base64.b64encode(b'no').decode()}", {}, "messages[0].content[1]"),
        (f"data:image/png;base64,{png(8000, 8000)}", {}, "messages[0].content[1]"),
        (RED, {"max_tokens": 5000}, "max_tokens"),
        (RED, {"model": "chats"}, "messages[0].content[1]"),
    ],
)
def test_what_cannot_be_seen_is_refused_by_name(client: OpenAI, url: str, more: dict[str, Any], param: str) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        chat(client, url, **more)
    assert caught.value.param == param


async def test_who_leaves_lets_the_next_one_in(platform: Platform, client: OpenAI) -> None:
    stream = chat(client, stream=True, max_tokens=1500, n=4)
    next(iter(stream))
    stream.close()
    assert text_of(chat(client)) == text_of(chat(client))
