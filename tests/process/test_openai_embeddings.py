"""Embeddings by OpenAI's own client: a real gateway, and real instances of functions that measure texts."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from typing import Any

import openai
import pytest
from openai import OpenAI

from samovar.spec import Limits
from support.instance_driver import FUNCTIONS, Zygote
from support.openai_gateway import Platform, running_platform
from support.waiting import wait_until

pytestmark = pytest.mark.process


@pytest.fixture(scope="module")
def platform(valkey: Any, seaweed: Any, session_zygote: Zygote) -> Iterator[Platform]:
    with running_platform(valkey, seaweed, session_zygote, "measures", "measures_tokens") as running:
        running.deploy(FUNCTIONS / "measures", name="asleep")
        yield running


@pytest.mark.parametrize("encoding", [None, "float", "base64"])  # None: the client asks for base64 and decodes it
def test_texts_are_embedded_in_order(client: OpenAI, encoding: Any) -> None:
    more = {} if encoding is None else {"encoding_format": encoding}
    answer = client.embeddings.create(model="measures", input=["tea", "tea is ready", "a"], **more)
    assert answer.object == "list" and answer.model == "measures"
    assert [one.index for one in answer.data] == [0, 1, 2] and answer.usage.total_tokens == 5
    if encoding == "base64":
        assert isinstance(answer.data[0].embedding, str)
    else:
        assert [one.embedding[:3] for one in answer.data] == [[3, 1, 2], [12, 3, 5], [1, 1, 1]]
        assert answer.data[0].embedding[3] == pytest.approx(0.1, abs=1e-8)


def test_one_text_is_embedded(client: OpenAI) -> None:
    assert client.embeddings.create(model="measures", input="tea").data[0].embedding[0] == 3


async def test_coroutines_are_answered(platform: Platform) -> None:
    async with platform.async_client() as client:
        answer = await client.embeddings.create(model="measures", input=["tea", "ready"])
    assert [one.embedding[0] for one in answer.data] == [3, 5]


def test_the_instance_makes_batches_of_them(platform: Platform, client: OpenAI) -> None:
    log = platform.instances["measures"].log_text
    answer = client.embeddings.create(model="measures", input=["x" * (1 + number % 50) for number in range(2048)])
    assert [one.embedding[0] for one in answer.data] == [1 + number % 50 for number in range(2048)]
    wait_until(lambda: "batch of 16" in log(), what="whole batches")


def test_fewer_dimensions(client: OpenAI) -> None:
    (one,) = client.embeddings.create(model="measures", input="tea is ready", dimensions=2).data
    length = math.hypot(12, 3)
    assert one.embedding == pytest.approx([12 / length, 3 / length], abs=1e-6)
    assert len(client.embeddings.create(model="measures", input="tea", dimensions=4).data[0].embedding) == 4
    with pytest.raises(openai.BadRequestError) as caught:
        client.embeddings.create(model="measures", input="tea", dimensions=5)
    assert caught.value.param == "dimensions" and "4 numbers" in caught.value.message


def test_token_ids_are_for_functions_that_take_them(client: OpenAI) -> None:
    answer = client.embeddings.create(model="measures-tokens", input=[[1, 2, 3], [4]])
    assert [one.embedding for one in answer.data] == [[3, 2], [1, 2]]
    assert client.embeddings.create(model="measures-tokens", input=[1, 2]).data[0].embedding == [2, 2]
    assert answer.usage.total_tokens == 0  # it does not say
    with pytest.raises(openai.BadRequestError) as caught:
        client.embeddings.create(model="measures", input=[1, 2])
    assert caught.value.param == "input"


@pytest.mark.parametrize("value", ["", [], ["a", ""], ["a"] * 2049, [[]]])
def test_inputs_that_are_refused_wake_nobody(client: OpenAI, value: Any) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.embeddings.create(model="asleep", input=value, timeout=5)
    assert str(caught.value.param).startswith("input")


def test_one_that_fails_fails_the_request(platform: Platform, client: OpenAI) -> None:
    with pytest.raises(openai.InternalServerError, match="cannot be measured"):
        client.embeddings.create(model="measures", input=["tea", "!fail", "tea"])
    assert client.embeddings.create(model="measures", input=["tea"]).data[0].embedding[0] == 3


def test_a_text_that_is_too_long_is_told_as_openai_tells_it(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        client.embeddings.create(model="measures", input=["tea", "!long"])
    assert (caught.value.param, caught.value.code) == ("input", "context_length_exceeded")


def test_a_request_that_passes_pays_for_all_its_inputs(platform: Platform, client: OpenAI) -> None:
    platform.serve("measures", name="rated", limits=Limits(timeout_s=10, rate="1/m", burst=1))
    answer = client.embeddings.create(model="rated", input=["tea"] * 30)
    assert len(answer.data) == 30
    with pytest.raises(openai.RateLimitError) as refused:
        client.embeddings.create(model="rated", input=["tea"] * 30)
    assert 29 * 60 < float(refused.value.response.headers["retry-after"]) <= 30 * 60
    batches = re.findall(r"batch of (\d+)", platform.instances["rated"].log_text())
    assert sum(map(int, batches)) == 30 + 1  # those of the second request did not begin; one was the warm-up


def test_an_answer_says_where_it_comes_from(client: OpenAI) -> None:
    raw = client.embeddings.with_raw_response.create(model="measures", input=["tea", "is"])
    assert raw.headers["samovar-version"] == "1" and "run;dur=" in raw.headers["server-timing"]
    assert raw.headers["x-request-id"]
