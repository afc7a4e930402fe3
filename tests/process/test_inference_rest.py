"""The Open Inference Protocol over REST: real tritonclients, and what none of them would send."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import httpx
import numpy as np
import pytest
import tritonclient.http as triton
import tritonclient.http.aio as triton_aio

from samovar.policies import Cache, Fallback
from samovar_storage.embedded import EmbeddedSeaweed, EmbeddedValkey
from support.gateway import ADMIN_KEY
from support.instance_driver import FUNCTIONS as FOLDERS
from support.instance_driver import Zygote
from support.oip_checks import CHECKS, FUNCTIONS, Driver
from support.openai_gateway import Platform, running_platform
from support.waiting import wait_until

pytestmark = pytest.mark.process
HEADERS = {"authorization": f"Bearer {ADMIN_KEY}"}


@pytest.fixture(scope="module")
def platform(valkey: EmbeddedValkey, seaweed: EmbeddedSeaweed, session_zygote: Zygote) -> Iterator[Platform]:
    with running_platform(valkey, seaweed, session_zygote) as running:
        for name in FUNCTIONS:
            running.serve(name)
        yield running


@pytest.fixture(scope="module", params=["http", "aio"])
def driver(request: pytest.FixtureRequest, platform: Platform) -> Iterator[Driver]:
    address = platform.gateway.url.removeprefix("http://")
    if request.param == "http":
        with triton.InferenceServerClient(address) as client:
            yield Driver(triton, client, HEADERS)
        return
    with asyncio.Runner() as runner:
        client = runner.run(_connect(address))
        yield Driver(triton_aio, client, HEADERS, run=runner.run)
        runner.run(client.close())


async def _connect(address: str) -> Any:
    return triton_aio.InferenceServerClient(address)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
def test_client(check: Callable[[Driver], None], driver: Driver) -> None:
    check(driver)


def post(platform: Platform, path: str, content: bytes | dict[str, Any], key: str = ADMIN_KEY, **headers: str) -> Any:
    """Send a raw request below /v2/models; header names are written with underscores."""
    body = content if isinstance(content, bytes) else json.dumps(content).encode()
    sent = {name.replace("_", "-"): value for name, value in headers.items()}
    return platform.gateway.client.post(
        f"/v2/models/{path}", content=body, headers={"authorization": f"Bearer {key}"} | sent
    )


def tensor(name: str, datatype: str, shape: list[Any], data: Any = None, **parameters: Any) -> dict[str, Any]:
    """Return a tensor as REST has it."""
    found = {"name": name, "datatype": datatype, "shape": shape}
    return found | ({} if data is None else {"data": data}) | ({"parameters": parameters} if parameters else {})


ONES = tensor("x", "FP32", [1, 4], [1, 1, 1, 1])


def test_data_may_be_nested_or_flat(platform: Platform) -> None:
    for data in [[1, 2, 3, 4, 5, 6, 7, 8], [[1, 2, 3, 4], [5, 6, 7, 8]]]:
        body = {"id": "7", "inputs": [tensor("x", "FP32", [2, 4], data)], "outputs": [{"name": "scaled"}]}
        answer = post(platform, "arrays/infer", body)
        assert answer.json() == {
            "model_name": "arrays",
            "model_version": "1",
            "id": "7",
            "outputs": [tensor("scaled", "FP32", [2, 4], [2.0, 4.0, 6.0, 8.0, 10.0, 12.0, 14.0, 16.0])],
        }
        assert answer.headers["samovar-version"] == "1" and "run;dur=" in answer.headers["server-timing"]


def test_binary_and_json_tensors_of_one_request(platform: Platform) -> None:
    x = np.ones((1, 4), "f4").tobytes()
    inputs = [tensor("x", "FP32", [1, 4], binary_data_size=16), tensor("factor", "FP32", [1], [3])]
    outputs = [{"name": "scaled", "parameters": {"binary_data": True}}, {"name": "total"}]
    head = json.dumps({"inputs": inputs, "outputs": outputs}).encode()
    answer = post(platform, "arrays/infer", head + x, inference_header_content_length=str(len(head)))
    length = int(answer.headers["inference-header-content-length"])
    found = json.loads(answer.content[:length])["outputs"]
    assert found == [tensor("scaled", "FP32", [1, 4], binary_data_size=16), tensor("total", "FP32", [1], [4.0])]
    assert np.frombuffer(answer.content[length:], "<f4").tolist() == [3.0] * 4


BAD: list[tuple[str, Any, int, str]] = [
    ("not JSON", b"{", 400, "not valid JSON"),
    ("not UTF-8", b'{"inputs": [], "id": "\xff"}', 400, "not valid JSON"),
    ("no inputs", {}, 422, "inputs"),
    ("an unknown field", {"inputs": [], "what": 1}, 422, "what"),
    ("no tensor at all", {"inputs": []}, 422, "^x: the input is missing"),
    ("neither data nor size", {"inputs": [tensor("x", "FP32", [1, 4])]}, 422, "^x: it has neither"),
    ("too few elements", {"inputs": [tensor("x", "FP32", [1, 4], [1, 2])]}, 422, "^x: 2 elements came"),
    (
        "another nesting",
        {"inputs": [tensor("x", "FP32", [2, 4], [[1, 2], [3, 4]])]},
        422,
        r"^x: data has shape \[2, 2\]",
    ),
    ("ragged rows", {"inputs": [tensor("x", "FP32", [2, 4], [[1], [2, 3]])]}, 422, "^x: its rows differ"),
    ("text for numbers", {"inputs": [tensor("x", "FP32", [1, 4], ["a", 1, 1, 1])]}, 422, "^x: an element is no FP32"),
    ("true for numbers", {"inputs": [tensor("x", "FP32", [1, 4], [True, 1, 1, 1])]}, 422, "^x: 'True' is no element"),
    ("too large", {"inputs": [tensor("x", "FP32", [1, 4], [1e300, 1, 1, 1])]}, 422, "^x: an element is no FP32"),
    ("no such datatype", {"inputs": [tensor("x", "FP33", [1, 4], [1] * 4)]}, 422, "^x: there is no datatype 'FP33'"),
    ("a negative size", {"inputs": [tensor("x", "FP32", [-1, 4], [1] * 4)]}, 422, "^x: shape .* whole number"),
    ("a huge shape", {"inputs": [tensor("x", "FP32", [2**62, 4], [])]}, 422, "^x: shape .* is larger"),
    ("zero hides it", {"inputs": [tensor("x", "FP32", [0, 2**62], [])]}, 422, "^x: shape .* is larger"),
    ("many dimensions", {"inputs": [tensor("x", "FP32", [1] * 40, [1])]}, 422, "^x: a tensor has at most"),
    (
        "a size without bytes",
        {"inputs": [tensor("x", "FP32", [1, 4], binary_data_size=16)]},
        422,
        "^x: binary_data_size",
    ),
    ("a negative binary size", {"inputs": [tensor("x", "FP32", [1, 4], binary_data_size=-1)]}, 422, "^x: .* number of"),
    ("both forms", {"inputs": [tensor("x", "FP32", [1, 4], [1] * 4, binary_data_size=0)]}, 422, "^x: it has both"),
    (
        "shared memory",
        {"inputs": [tensor("x", "FP32", [1, 4], shared_memory_region="r")]},
        400,
        "'shared_memory_region'",
    ),
    (
        "classification",
        {"inputs": [ONES], "outputs": [{"name": "total", "parameters": {"classification": 3}}]},
        400,
        "'classification'",
    ),
    ("an unknown parameter", {"inputs": [ONES], "parameters": {"tea": 1}}, 400, "'tea' is not possible"),
    ("a priority", {"inputs": [ONES], "parameters": {"priority": 1}}, 400, "Samovar-Priority"),
    ("a flag that is none", {"inputs": [ONES], "parameters": {"binary_data_output": 1}}, 400, "true or false"),
    ("very many", {"inputs": [ONES], "parameters": {f"{n:08}": 1 for n in range(140_000)}}, 400, "131,072 members"),
    ("deep nesting", b'{"parameters": {"a": ' + b"[" * 100_000, 400, "nested|JSON"),
]


@pytest.mark.parametrize(("body", "status", "pattern"), [case[1:] for case in BAD], ids=[case[0] for case in BAD])
def test_bad_requests(platform: Platform, body: Any, status: int, pattern: str) -> None:
    answer = post(platform, "arrays/infer", body)
    assert answer.status_code == status, answer.text
    assert set(answer.json()) == {"error"} and re.search(pattern, answer.json()["error"]), answer.text


BINARY: list[tuple[str, list[dict[str, Any]], bytes, str]] = [
    ("too few bytes", [tensor("texts", "BYTES", [1, 1], binary_data_size=9)], b"\x05\0\0\0tea", "more bytes than came"),
    (
        "an element beyond the end",
        [tensor("texts", "BYTES", [1, 1], binary_data_size=7)],
        b"\x05\0\0\0tea",
        "longer than",
    ),
    ("half a length", [tensor("texts", "BYTES", [1, 1], binary_data_size=3)], b"\x05\0\0", "longer than"),
    ("fewer elements", [tensor("texts", "BYTES", [1, 3], binary_data_size=7)], b"\x03\0\0\0tea", "1 elements came"),
    ("more elements", [tensor("texts", "BYTES", [1, 1], binary_data_size=14)], b"\x03\0\0\0tea" * 2, "2 elements came"),
    (
        "a length of 4 GiB",
        [tensor("texts", "BYTES", [1, 1], binary_data_size=7)],
        b"\xff\xff\xff\xfftea",
        "longer than",
    ),
    ("bytes left over", [tensor("fp32", "FP32", [1], binary_data_size=4)], b"12345", "follow the last tensor"),
    ("a size that is not the shape's", [tensor("fp32", "FP32", [2], binary_data_size=4)], b"1234", "has 8"),
    ("no truth value", [tensor("bools", "BOOL", [1], binary_data_size=1)], b"\x07", "neither 0 nor 1"),
]


@pytest.mark.parametrize(("inputs", "tail", "pattern"), [case[1:] for case in BINARY], ids=[case[0] for case in BINARY])
def test_bad_binary(platform: Platform, inputs: list[dict[str, Any]], tail: bytes, pattern: str) -> None:
    head = json.dumps({"inputs": inputs}).encode()
    answer = post(platform, "mirrors/infer", head + tail, inference_header_content_length=str(len(head)))
    assert answer.status_code in (400, 422), answer.text
    assert re.search(pattern, answer.json()["error"]), answer.text


def test_bad_heads(platform: Platform) -> None:
    body = {"inputs": [ONES]}
    for length in ("-1", "abc", "99999999999999999999"):
        answer = post(platform, "arrays/infer", body, inference_header_content_length=length)
        assert answer.status_code == 400 and "Inference-Header-Content-Length" in answer.json()["error"]
    assert post(platform, "arrays/infer", body, content_encoding="gzip").status_code == 415
    client = platform.gateway.client
    refused = client.get("/v2/models/arrays/infer")
    assert refused.status_code == 405 and refused.headers["allow"] == "POST"
    for path in ("/v2/nothing", "/v2/models/arrays/what", "/v2/models/arrays/versions/x", "/v2/health"):
        answer = client.get(path)
        assert answer.status_code == 404 and set(answer.json()) == {"error"}, path
    large = client.post("/v2/models/arrays/infer", content=b" " * (17 << 20))
    assert large.status_code == 413 and "larger than" in large.json()["error"]


def test_what_json_cannot_carry(platform: Platform) -> None:
    values = tensor("fp64", "FP64", [2], binary_data_size=16)
    blobs = tensor("blobs", "BYTES", [1], binary_data_size=5)
    head = json.dumps({"inputs": [values, blobs]}).encode()
    tail = np.array([np.nan, np.inf]).tobytes() + b"\x01\0\0\0\xff"
    answer = post(platform, "mirrors/infer", head + tail, inference_header_content_length=str(len(head)))
    assert answer.status_code == 500 and "ask for it with binary_data" in answer.json()["error"]
    head = head[:-1] + b', "parameters": {"binary_data_output": true}}'
    answer = post(platform, "mirrors/infer", head + tail, inference_header_content_length=str(len(head)))
    assert answer.content.endswith(tail)


def test_bfloat16(platform: Platform) -> None:
    body = {"inputs": [tensor("bf16", "BF16", [4], [1, -2.5, 3.140625, 1e30])]}
    found = post(platform, "mirrors/infer", body).json()["outputs"][0]["data"]
    assert found[:3] == [1.0, -2.5, 3.140625] and abs(found[3] / 1e30 - 1) < 0.01


def test_streams_are_events(platform: Platform) -> None:
    body = {"id": "s", "inputs": [tensor("n", "INT64", [1], [3])]}
    answer = post(platform, "countdown-tensors/infer_stream", body)
    assert answer.headers["content-type"].startswith("text/event-stream")
    found = [json.loads(line.removeprefix("data: ")) for line in answer.text.split("\n\n") if line]
    assert [one["outputs"][0] for one in found] == [tensor("number", "INT64", [1], [n]) for n in (3, 2, 1)]
    assert all(one["id"] == "s" and one["model_version"] == "1" for one in found)
    answer = post(platform, "countdown-tensors/generate_stream", {"parameters": {"n": 2}})
    found = [json.loads(line.removeprefix("data: ")) for line in answer.text.split("\n\n") if line]
    assert [(one["number"], one["word"]) for one in found] == [(2, "teatea"), (1, "tea")]


def test_a_stream_that_waits_keeps_its_line_alive(platform: Platform) -> None:
    folder = FOLDERS / "countdown_tensors"
    ref = platform.deploy(folder, name="unborn").ref
    path = "/v2/models/unborn/generate_stream"
    with platform.gateway.client.stream("POST", path, content=b'{"n": 2}') as answer:
        lines = answer.iter_lines()
        assert answer.status_code == 200 and answer.headers["x-accel-buffering"] == "no"
        assert next(lines) == ": waiting, phase boot, 0 ahead"
        platform.start(ref, folder)
        rest = [line for line in lines if line and not line.startswith(":")]
    assert [json.loads(line.removeprefix("data: "))["number"] for line in rest] == [2, 1]
    platform.deploy(folder, name="stillborn")
    path = "/v2/models/stillborn/infer_stream"
    body, late = {"inputs": [tensor("n", "INT64", [1], [3])]}, {"samovar-timeout-ms": "2500"}
    lost: list[str] = []
    with (
        pytest.raises(httpx.RemoteProtocolError),
        platform.gateway.client.stream("POST", path, json=body, headers=late) as answer,
    ):
        lost.extend(answer.iter_lines())
    told = [line for line in lost if line]
    assert told[0] == ": waiting, phase boot, 0 ahead" and "phase boot" in json.loads(told[1][6:])["error"]


def test_text_is_generated(platform: Platform) -> None:
    platform.serve("parrot")
    answer = post(platform, "parrot/generate_stream", {"prompt": "tea is ready", "parameters": {"max_tokens": 2}})
    found = [json.loads(line.removeprefix("data: ")) for line in answer.text.split("\n\n") if line]
    assert "".join(one["text"] for one in found).split() == ["tea", "is"]
    assert [one["finish_reason"] for one in found if "finish_reason" in one] == ["length"]
    wrong = post(platform, "parrot/generate_stream", {"prompt": "tea", "max_tokens": -1})
    assert wrong.status_code == 400 and "max_tokens" in wrong.json()["error"]


def test_streams_that_fail(platform: Platform) -> None:
    wrong = post(platform, "countdown-tensors/generate_stream", {"n": "many"})
    assert wrong.status_code == 422 and wrong.json()["error"].startswith("n: ")
    early = post(platform, "countdown-tensors/generate_stream", {"n": 3, "fail_at": 3})
    assert early.status_code == 500 and "it is spilt" in early.json()["error"]
    binary = {"inputs": [tensor("n", "INT64", [1], [3])], "parameters": {"binary_data_output": True}}
    assert post(platform, "countdown-tensors/infer_stream", binary).status_code == 400
    lines: list[str] = []
    content = b'{"n": 3, "fail_at": 2}'
    path = "/v2/models/countdown-tensors/generate_stream"
    with (
        pytest.raises(httpx.RemoteProtocolError),
        platform.gateway.client.stream("POST", path, content=content) as half,
    ):
        for line in half.iter_lines():
            lines.append(line)
    first, last = (json.loads(line.removeprefix("data: ")) for line in lines if line)
    assert first["number"] == 3 and "it is spilt" in last["error"]


def test_generate(platform: Platform) -> None:
    answer = post(platform, "row-vectors/generate", {"text": "four", "id": "g"})
    found = answer.json()
    assert found == {"model_name": "row-vectors", "model_version": "1", "id": "g", "vector": [4.0] * 3, "batch_size": 1}
    assert "no input of this name" in post(platform, "row-vectors/generate", {"txt": "four"}).json()["error"]
    for path in ("generate", "generate_stream"):
        twice = post(platform, f"row-vectors/{path}", {"text": "four", "parameters": {"text": "five"}})
        assert (twice.status_code, twice.json()["error"][:27]) == (400, "text: it is given twice, on")


def test_a_model_that_sleeps_is_ready(platform: Platform) -> None:
    platform.deploy(FOLDERS / "noop")
    client = platform.gateway.client
    assert client.get("/v2/models/noop/ready").status_code == 200
    body = {"inputs": [tensor("value", "INT64", [1], [1])], "parameters": {"timeout": 200_000}}
    late = post(platform, "noop/infer", body)
    assert late.status_code == 504 and "deadline" in late.json()["error"]


def test_keys_and_rates(platform: Platform) -> None:
    client = platform.gateway.client
    key = client.post(
        "/v1/keys", json={"name": "k", "scopes": ["invoke"], "functions": ["row-vectors"], "rate": "1/m", "burst": 1}
    ).json()["key"]
    body = {"inputs": [tensor("text", "BYTES", [5], ["a", "b", "c", "d", "e"])]}
    assert post(platform, "row-vectors/infer", body, key).status_code == 200  # five rows are one request
    refused = post(platform, "row-vectors/infer", body, key)
    assert refused.status_code == 429 and int(refused.headers["retry-after"]) > 0
    assert post(platform, "arrays/infer", {"inputs": [ONES]}, key).status_code == 404
    headers = {"authorization": f"Bearer {key}"}
    index = client.post("/v2/repository/index", headers=headers).json()
    assert [one["name"] for one in index] == ["row-vectors"]
    assert client.get("/v2/models/arrays", headers=headers).status_code == 404
    assert client.get("/v2/models/arrays", headers={"authorization": ""}).status_code == 401
    assert client.get("/v2", headers={"authorization": ""}).status_code == 200


def test_batch_mates_are_unharmed(platform: Platform) -> None:
    def ask(text: str) -> Any:
        return post(platform, "row-vectors/infer", {"inputs": [tensor("text", "BYTES", [1], [text])]})

    with ThreadPoolExecutor(8) as pool:
        answers = list(pool.map(ask, ["a", "poison"] * 12))
    good = [one.json()["outputs"] for one in answers[::2]]
    assert [one[0]["data"] for one in good] == [[1.0] * 3] * 12
    assert max(one[1]["data"][0] for one in good) > 1, "none of them was in a batch"
    assert {one.status_code for one in answers[1::2]} == {500}


def test_fallbacks_and_caches(platform: Platform) -> None:
    platform.serve("arrays", name="stands-in", fallback=Fallback(value={"total": 7.0, "is_view": True}))
    fails = {"inputs": [ONES, tensor("fail", "BYTES", [1], ["boom"])]}
    answer = post(platform, "stands-in/infer", fails)
    assert answer.json()["outputs"] == [tensor("total", "FP32", [1], [7.0]), tensor("is_view", "BOOL", [1], [True])]
    assert answer.headers["samovar-fallback"] == "value"
    platform.serve("arrays", name="remembers", cache=Cache(ttl_s=60))
    first, second = (post(platform, "remembers/infer", {"inputs": [ONES]}) for _ in range(2))
    assert "fwd=miss" in first.headers["cache-status"] and "hit" in second.headers["cache-status"]
    assert first.json() == second.json()
    native = platform.gateway.invoke("remembers", {"x": [[1, 1, 1, 1]]})
    assert "fwd=miss" in native.headers["cache-status"] and native.json()["total"] == 4.0


def test_statistics(platform: Platform) -> None:
    with triton.InferenceServerClient(platform.gateway.url.removeprefix("http://")) as client:
        before = client.get_inference_statistics("arrays", headers=HEADERS)["model_stats"][0]["inference_count"]
        assert post(platform, "arrays/infer", {"inputs": [ONES]}).status_code == 200
        (after,) = client.get_inference_statistics("arrays", "1", headers=HEADERS)["model_stats"]
        assert after["inference_count"] == before + 1 and after["inference_stats"]["success"]["ns"] > 0
        assert len(client.get_inference_statistics(headers=HEADERS)["model_stats"]) >= len(FUNCTIONS)


def test_who_leaves_is_not_worked_for(platform: Platform) -> None:
    path = "/v2/models/countdown-tensors/generate_stream"
    with platform.gateway.client.stream("POST", path, content=b'{"n": 5000}') as endless:
        assert next(endless.iter_lines()).startswith("data: ")
    instance = platform.serve("async_echo")
    inputs = [tensor("text", "BYTES", [1], ["x"]), tensor("sleep_s", "FP32", [1], [30])]
    body = json.dumps({"inputs": inputs}).encode()
    head = f"POST /v2/models/async-echo/infer HTTP/1.1\r\nhost: x\r\ncontent-length: {len(body)}\r\n"
    with platform.gateway.connect() as sock:
        sock.sendall(f"{head}authorization: Bearer {ADMIN_KEY}\r\n\r\n".encode() + body)
        wait_until(lambda: platform.gateway.metric("samovar_running") == 1, what="the infer is the only one that runs")
    wait_until(lambda: "cancelled x" in instance.log_text(), what="it was cancelled")


def test_a_key_that_is_bound_learns_of_its_own_models_alone(platform: Platform) -> None:
    client = platform.gateway.client
    wish = {"name": "bound", "scopes": ["invoke"], "functions": ["arrays"]}
    headers = {"authorization": f"Bearer {client.post('/v1/keys', json=wish).json()['key']}"}
    listed = client.post("/v2/repository/index", headers=headers).json()
    counted = client.get("/v2/models/stats", headers=headers).json()["model_stats"]
    assert {one["name"] for one in listed} == {one["name"] for one in counted} == {"arrays"}
    assert client.get("/v2/models/arrays", headers=headers).status_code == 200
    for method, path in (
        ("GET", ""),
        ("GET", "/config"),
        ("GET", "/ready"),
        ("GET", "/stats"),
        ("POST", "/infer"),
        ("POST", "/generate"),
    ):
        answer = client.request(method, f"/v2/models/mirrors{path}", headers=headers, json={"inputs": []})
        assert answer.status_code == 404 and "mirrors" not in answer.json()["error"].partition(";")[2], path
