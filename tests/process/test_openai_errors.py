"""What goes wrong on OpenAI's routes, as OpenAI's own client sees it: real gateway, real instances."""

from __future__ import annotations

import json
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import openai
import pytest
from openai import OpenAI

from samovar.policies import Fallback
from samovar.spec import Limits
from support.gateway import ADMIN_KEY
from support.instance_driver import FUNCTIONS, Zygote
from support.openai_gateway import Platform, running_platform
from support.waiting import wait_until

pytestmark = pytest.mark.process

LIMITS = Limits(timeout_s=20)
CHAT, COMPLETION = "/v1/chat/completions", "/v1/completions"


@pytest.fixture(scope="module")
def platform(valkey: Any, seaweed: Any, session_zygote: Zygote) -> Iterator[Platform]:
    with running_platform(valkey, seaweed, session_zygote, "parrot", "measures", body_timeout_s=2.0) as running:
        running.deploy(FUNCTIONS / "echo_sum", name="sums")
        running.deploy(FUNCTIONS / "parrot", name="asleep")
        yield running


def chat(client: OpenAI, text: str, model: str = "parrot", **more: Any) -> Any:
    return client.chat.completions.create(model=model, messages=[{"role": "user", "content": text}], **more)


def post(platform: Platform, path: str, body: Any, **headers: str) -> httpx.Response:
    content = body if isinstance(body, bytes) else json.dumps(body).encode()
    return platform.gateway.client.post(path, content=content, headers=headers)


def told(answer: httpx.Response) -> tuple[int, Any, Any]:
    """Return status, code and field of an error; its shape is OpenAI's."""
    assert answer.headers["content-type"] == "application/json" and answer.headers["x-request-id"]
    document = answer.json()
    assert document.keys() == {"error"} and document["error"].keys() == {"message", "type", "param", "code"}
    assert answer.headers["x-should-retry"] in ("true", "false") and document["error"]["message"]
    return answer.status_code, document["error"]["code"], document["error"]["param"]


def asked(**more: Any) -> dict[str, Any]:
    return {"model": "parrot", "messages": [{"role": "user", "content": "tea"}], **more}


# ---- what the caller did wrong ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("body", "status", "code", "param"),
    [
        (b"tea", 400, "malformed", None),
        (b"", 400, "malformed", None),
        (b'{"model": "\xff"}', 400, "malformed", None),
        (b'{"model": "parrot", "temperature": NaN}', 400, "malformed", None),
        (b'{"model": "parrot", "messages": [{"role": "user", "content": "\\ud83d"}]}', 400, "malformed", None),
        ({"messages": []}, 400, "malformed", "model"),
        (asked(model="parot"), 404, "model_not_found", "model"),
        (asked(model="org/Parrot"), 404, "model_not_found", "model"),
        (asked(model="x" * 100_000), 404, "model_not_found", "model"),
        (asked(model="sums"), 400, "wrong_task", "model"),
        (asked(model="measures"), 400, "wrong_task", "model"),
        (asked(messages=[]), 400, "malformed", "messages"),
        (asked(messages=[{"role": "king", "content": "x"}]), 400, "malformed", "messages[0].role"),
        (asked(max_tokens=-1), 400, "malformed", "max_tokens"),
        (asked(stop=["x"] * 2000), 400, "malformed", "stop"),
        (asked(logit_bias={"5": 1}), 400, "malformed", "logit_bias"),
        (asked(wishes=3), 400, "unknown_parameter", "wishes"),
        (asked(reasoning_effort="high"), 400, "unsupported_parameter", "reasoning_effort"),
        (asked(max_completion_tokens=9999), 400, "context_length_exceeded", "messages"),
        (
            asked(messages=[{"role": "user", "content": f"{'tea' * 20} " * 170_000}]),
            400,
            "context_length_exceeded",
            "messages",
        ),
        (asked(messages=[{"role": "user", "content": "!fail"}]), 500, "function_raised", None),
    ],
    ids=lambda value: None if isinstance(value, dict | bytes) else str(value),
)
def test_errors_have_openais_shape(platform: Platform, body: Any, status: int, code: str, param: str | None) -> None:
    assert told(post(platform, CHAT, body)) == (status, code, param)
    if isinstance(body, dict):
        assert told(post(platform, CHAT, body | {"stream": True})) == (status, code, param)


def test_what_is_refused_here_wakes_nobody(client: OpenAI) -> None:
    wrongs: list[dict[str, Any]] = [
        {"max_tokens": -1},
        {"n": 0},
        {"stop": [""]},
        {"tool_choice": "required"},
        {"store": True},
    ]
    for wrong in wrongs:
        with pytest.raises(openai.BadRequestError) as caught:
            chat(client, "tea", model="asleep", timeout=5, **wrong)
        assert caught.value.param == next(iter(wrong))


def test_an_unknown_model_has_near_names_that_are_models(platform: Platform, client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError) as caught:
        chat(client, "tea", model="parot")
    assert caught.value.code == "model_not_found" and "'parrot'" in caught.value.message
    with pytest.raises(openai.NotFoundError) as caught:
        client.models.retrieve("sum")
    assert "sums" not in caught.value.message


def test_what_another_route_serves_is_said(client: OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="/v1/functions/sums/invoke"):
        chat(client, "tea", model="sums")
    with pytest.raises(openai.BadRequestError, match="/v1/embeddings"):
        client.completions.create(model="measures", prompt="tea")
    with pytest.raises(openai.BadRequestError, match="/v1/chat/completions"):
        client.embeddings.create(model="parrot", input="tea")


def test_the_rest_of_openais_api_is_not_there(client: OpenAI) -> None:
    with pytest.raises(openai.NotFoundError, match="/v1/chat/completions"):
        client.responses.create(model="parrot", input="tea")
    with pytest.raises(openai.NotFoundError, match="/v1/chat/completions"):
        client.moderations.create(input="tea")
    with pytest.raises(openai.NotFoundError, match="/v1/chat/completions"):
        client.chat.completions.retrieve("chatcmpl-1")
    with pytest.raises(openai.NotFoundError, match="/v1/chat/completions"):
        client.with_options(max_retries=0).post("/chat/completions/", cast_to=object)


def test_the_head_of_a_request(platform: Platform) -> None:
    assert told(platform.gateway.client.get(CHAT)) == (405, "method_not_allowed", None)
    assert platform.gateway.client.get(CHAT).headers["allow"] == "POST"
    assert told(platform.gateway.client.delete("/v1/models/parrot")) == (405, "method_not_allowed", None)
    assert told(post(platform, CHAT, b"x" * (17 << 20)))[:2] == (413, "body_too_large")
    packed = {"content-encoding": "gzip"}
    assert told(post(platform, CHAT, asked(), **packed))[:2] == (415, "unsupported_encoding")
    assert told(post(platform, CHAT, asked(), **{"samovar-priority": "huge"}))[:2] == (400, "malformed")


def test_a_body_that_does_not_come(platform: Platform) -> None:
    lines = [f"POST {CHAT} HTTP/1.1", "host: x", f"authorization: Bearer {ADMIN_KEY}", "content-length: 100", "", "{"]
    with platform.gateway.connect() as line:
        line.sendall("\r\n".join(lines).encode())
        head, _, body = b"".join(iter(lambda: line.recv(1 << 16), b"")).partition(b"\r\n\r\n")
    assert head.startswith(b"HTTP/1.1 408 ") and b"connection: close" in head
    assert json.loads(body)["error"]["code"] == "client_too_slow"


def test_keys(platform: Platform) -> None:
    for key in ("sv_wrong_key", "sk-something"):
        with pytest.raises(openai.AuthenticationError) as caught, platform.client(key) as stranger:
            chat(stranger, "tea")
        assert caught.value.code == "invalid_api_key"
    wish = {"name": "bound", "scopes": ["invoke"], "functions": ["measures"]}
    bound = platform.gateway.client.post("/v1/keys", json=wish).json()["key"]
    with platform.client(bound) as client:
        wait_until(lambda: _is_known(client), what="the key is known")
        assert [model.id for model in client.models.list()] == ["measures"]
        assert client.embeddings.create(model="measures", input="tea").data[0].embedding[0] == 3
        for model in ("parrot", "parrott", "nothing"):
            with pytest.raises(openai.NotFoundError) as unseen:
                chat(client, "tea", model=model)
            assert "'parrot'" not in unseen.value.message.replace(f"model {model!r}", "")
        with pytest.raises(openai.NotFoundError):
            client.models.retrieve("parrot")


def _is_known(client: OpenAI) -> bool:
    try:
        client.models.list()
    except openai.AuthenticationError:
        return False
    return True


def test_models_are_functions_with_a_task(client: OpenAI) -> None:
    models = {model.id: model for model in client.models.list()}
    assert models.keys() >= {"parrot", "measures"} and "sums" not in models
    parrot = client.models.retrieve("parrot")
    assert parrot == models["parrot"] and parrot.object == "model" and parrot.owned_by == "samovar"
    assert parrot.created > 1_600_000_000
    assert parrot.model_dump()["task"] == "text-generation" and parrot.model_dump()["version"] == 1


# ---- what went wrong here --------------------------------------------------------------------------------------------


def test_a_function_that_raises_is_not_asked_again(platform: Platform, client: OpenAI) -> None:
    log = platform.instances["parrot"].log_text
    before = log().count("Error: the parrot fell")
    with pytest.raises(openai.InternalServerError) as caught:
        chat(client.with_options(max_retries=3), "!fail")
    assert "fell off its perch" in caught.value.message and caught.value.code == "function_raised"
    wait_until(lambda: log().count("Error: the parrot fell") > before, what="logged")
    assert log().count("Error: the parrot fell") == before + 1


def test_a_failure_in_the_middle_is_an_error_and_an_unclean_end(platform: Platform, client: OpenAI) -> None:
    said = ""
    with pytest.raises(openai.APIError, match="lost its voice") as caught:
        for chunk in chat(client, "tea !break", stream=True):
            said += chunk.choices[0].delta.content or ""
    assert said == "tea" and caught.value.code == "function_raised" and caught.value.type == "server_error"
    body = asked(stream=True, messages=[{"role": "user", "content": "tea !break"}])
    lines: list[str] = []
    with (
        pytest.raises(httpx.RemoteProtocolError),
        platform.gateway.client.stream("POST", CHAT, json=body) as answer,
    ):
        lines += filter(None, answer.iter_lines())
    assert json.loads(lines[-1].removeprefix("data: ")).keys() == {"error"}
    assert "data: [DONE]" not in lines
    with pytest.raises(openai.InternalServerError):
        chat(client, "tea !break")


def test_an_instance_that_is_lost(platform: Platform, client: OpenAI) -> None:
    platform.serve("parrot", name="fragile", retry_on_crash=False)
    with pytest.raises(openai.APIError) as caught:
        [*chat(client, "tea !exit", model="fragile", stream=True)]
    assert caught.value.code == "instance_lost"


def test_a_client_waits_as_long_as_a_rate_limit_says(platform: Platform, client: OpenAI) -> None:
    limits = Limits(timeout_s=20, rate="2/s", burst=1)
    platform.serve("parrot", name="rated", limits=limits)
    chat(client, "tea", model="rated")
    with pytest.raises(openai.RateLimitError) as caught:
        chat(client, "tea", model="rated")
    assert caught.value.code == "rate_limit_exceeded" and caught.value.type == "rate_limit_error"
    headers = caught.value.response.headers
    assert 0 < int(headers["retry-after-ms"]) <= 500 and headers["retry-after"] == "1"
    assert headers["x-should-retry"] == "true" and "ratelimit" in headers
    assert chat(client.with_options(max_retries=3), "tea", model="rated").choices[0].message.content == "tea"
    several = client.with_options(max_retries=3).completions.create(model="rated", prompt=["a", "b", "c"])
    assert len(several.choices) == 3  # one request, however many prompts


def test_a_client_comes_again_when_there_is_room(platform: Platform, client: OpenAI) -> None:
    ref = platform.deploy(FUNCTIONS / "parrot", name="crowded", limits=Limits(timeout_s=20, max_queue=1)).ref
    with ThreadPoolExecutor(2) as pool:
        first = pool.submit(chat, client, "first", "crowded")
        wait_until(lambda: platform.gateway.metric("samovar_queued") == 1, what="it waits")
        with pytest.raises(openai.InternalServerError) as caught:
            chat(client, "second", model="crowded")
        assert (caught.value.status_code, caught.value.code) == (503, "queue_full")
        assert caught.value.response.headers["x-should-retry"] == "true"
        second = pool.submit(chat, client.with_options(max_retries=20), "second", "crowded")
        platform.start(ref, FUNCTIONS / "parrot")
        assert first.result(60).choices[0].message.content == "first"
        assert second.result(60).choices[0].message.content == "second"


def test_deadlines(platform: Platform, client: OpenAI) -> None:
    hurry = {"Samovar-Timeout-Ms": "300"}
    for is_stream in (False, True):
        with pytest.raises(openai.InternalServerError) as caught:
            chat(client, "tea !sleep=5", extra_headers=hurry, stream=is_stream)
        assert (caught.value.status_code, caught.value.code) == (504, "deadline_exceeded")
    with pytest.raises(openai.InternalServerError) as caught:
        chat(client, "tea", model="asleep", extra_headers=hurry)
    assert caught.value.status_code == 504
    with pytest.raises(openai.APIError) as broken:
        [*chat(client, "tea is ready !pause=1", stream=True, extra_headers=hurry)]
    assert broken.value.code == "deadline_exceeded"


def test_a_fallback_is_an_answer(platform: Platform, client: OpenAI) -> None:
    fallback = Fallback(value={"text": "the parrot sleeps", "finish_reason": "stop"})
    platform.serve("parrot", name="backed", fallback=fallback)
    raw = client.chat.completions.with_raw_response.create(
        model="backed", messages=[{"role": "user", "content": "!fail"}]
    )
    assert raw.parse().choices[0].message.content == "the parrot sleeps" and raw.parse().usage is None
    assert raw.headers["samovar-fallback"] == "value" and raw.parse().system_fingerprint == "backed@1"
