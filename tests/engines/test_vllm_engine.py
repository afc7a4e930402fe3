"""The vLLM adapter passes what our own engine passes, where vLLM is installed: tests/engines/run.sh makes such an
environment. The model is tiny; starting vLLM takes a minute."""

from __future__ import annotations

import asyncio
import importlib.util
import json
from collections.abc import Coroutine, Iterator
from typing import Any

import pytest

from samovar.context import Context
from samovar.errors import RequestError
from samovar.tasks.generation import GenerationInput, GenerationOutput
from support.tiny_models import tiny_model
from support.waiting import wait_until_async

pytestmark = [
    pytest.mark.process,
    pytest.mark.filterwarnings("default"),  # of vLLM and of torch when vLLM imports it
    pytest.mark.skipif(importlib.util.find_spec("vllm") is None, reason="the package vllm is not installed"),
]
SHORT: dict[str, Any] = {"prompt": "the cat and", "max_tokens": 12, "temperature": 0.0, "ignore_eos": True}
SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "boolean"}},
    "required": ["a"],
    "additionalProperties": False,
}


class Pair:
    """The same model by vLLM and by our engine, each called from one event loop."""

    def __init__(self) -> None:
        from samovar_instance.engines.text_generation import TextGenerator
        from samovar_instance.engines.vllm import VllmGenerator

        class ByVllm(VllmGenerator):
            engine_options = {"dtype": "float32", "enforce_eager": True}  # noqa: RUF012

        class Ours(TextGenerator):
            cache_gib = 0.01

        self.loop = asyncio.new_event_loop()
        self.vllm, self.ours = ByVllm(), Ours()
        for model in (self.vllm, self.ours):
            model.load(tiny_model("llama_wide"), "cpu")

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return self.loop.run_until_complete(work)


@pytest.fixture(scope="module")
def pair() -> Iterator[Pair]:
    pair = Pair()
    yield pair
    pair.vllm.unload()
    pair.loop.close()


async def pieces(model: Any, body: dict[str, Any]) -> list[GenerationOutput]:
    import msgspec

    return [piece async for piece in model(msgspec.convert(body, GenerationInput), Context())]


def text_of(answer: list[GenerationOutput], index: int = 0) -> str:
    return "".join(piece.text for piece in answer if piece.index == index)


def test_greedy_text_is_that_of_our_engine(pair: Pair) -> None:
    theirs, ours = (pair.run(pieces(model, SHORT)) for model in (pair.vllm, pair.ours))
    assert text_of(theirs) == text_of(ours)
    assert theirs[-1].finish_reason == ours[-1].finish_reason == "length"
    assert theirs[-1].usage is not None and theirs[-1].usage.completion_tokens == 12


def test_several_at_once_are_as_each_alone(pair: Pair) -> None:
    bodies = [SHORT | {"prompt": "the cat and the dog"[: 3 + 4 * number]} for number in range(4)]

    async def together() -> list[list[GenerationOutput]]:
        return await asyncio.gather(*(pieces(pair.vllm, body) for body in bodies))

    assert [text_of(answer) for answer in pair.run(together())] == [
        text_of(pair.run(pieces(pair.ours, body))) for body in bodies
    ]


def test_choices_seeds_and_logprobs(pair: Pair) -> None:
    body = {"messages": [{"role": "user", "content": "tea?"}], "n": 3, "seed": 5, "logprobs": 2, "max_tokens": 8}
    answer, again = pair.run(pieces(pair.vllm, body)), pair.run(pieces(pair.vllm, body))
    assert [text_of(answer, index) for index in range(3)] == [text_of(again, index) for index in range(3)]
    told = [each for piece in answer for each in piece.logprobs]
    assert told and all(len(each.top) == 2 and each.logprob <= 0 for each in told)


def test_a_stop_string_ends_it(pair: Pair) -> None:
    whole = text_of(pair.run(pieces(pair.ours, SHORT)))
    stop = whole[len(whole) // 2 : len(whole) // 2 + 3]
    answer = pair.run(pieces(pair.vllm, SHORT | {"stop": [stop]}))
    assert text_of(answer) == whole[: whole.index(stop)]
    assert answer[-1].finish_reason == "stop"


def test_a_schema_is_followed(pair: Pair) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "a", "schema": SCHEMA}}
    answer = pair.run(pieces(pair.vllm, {"prompt": "x", "max_tokens": 80, "response_format": form}))
    assert isinstance(json.loads(text_of(answer))["a"], bool)


@pytest.mark.parametrize(
    ("param", "body"),
    [
        ("prompt", {"prompt": ""}),
        ("prompt", {"prompt": [5, 99_999]}),
        ("max_tokens", {"prompt": "a", "max_tokens": 5000}),
        ("temperature", {"prompt": "a", "temperature": -1}),
    ],
)
def test_bad_input_is_refused_by_name(pair: Pair, param: str, body: dict[str, Any]) -> None:
    with pytest.raises(RequestError) as refused:
        pair.run(pieces(pair.vllm, body))
    assert refused.value.extra["param"] == param


def test_a_cancel_is_vllms_too(pair: Pair) -> None:
    async def leave() -> None:
        call = asyncio.ensure_future(pieces(pair.vllm, SHORT | {"max_tokens": 1900}))
        output = pair.vllm.vllm.output_processor
        await wait_until_async(lambda: output.get_num_unfinished_requests() == 1, 30, "vLLM has begun")
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await call
        await wait_until_async(lambda: output.get_num_unfinished_requests() == 0, 30, "vLLM has stopped")

    pair.run(leave())
    pair.vllm.check()
