"""The Open Inference Protocol over gRPC: real tritonclients, and what none of them would send."""

from __future__ import annotations

import asyncio
import queue
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import grpc
import numpy as np
import pytest
import tritonclient.grpc as triton
import tritonclient.grpc.aio as triton_aio
from google.protobuf.descriptor_pool import DescriptorPool
from grpc_health.v1 import health_pb2, health_pb2_grpc
from grpc_reflection.v1alpha.proto_reflection_descriptor_database import ProtoReflectionDescriptorDatabase

from samovar_gateway.rpc import schema
from samovar_storage.embedded import EmbeddedSeaweed, EmbeddedValkey
from support.gateway import ADMIN_KEY
from support.instance_driver import Zygote
from support.oip_checks import CHECKS, FUNCTIONS, Driver
from support.openai_gateway import Platform, running_platform
from support.rpc import KEY, Response, Rpc, connected, floats, integers, request, texts
from support.waiting import wait_until

pytestmark = pytest.mark.process
HEADERS = {"authorization": f"Bearer {ADMIN_KEY}"}
NAMES = {400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 404: "NOT_FOUND", 422: "INVALID_ARGUMENT", 500: "UNKNOWN"}
STATUSES = {status: f"StatusCode.{name}" for status, name in NAMES.items()}


@pytest.fixture(scope="module")
def platform(valkey: EmbeddedValkey, seaweed: EmbeddedSeaweed, session_zygote: Zygote) -> Iterator[Platform]:
    with running_platform(valkey, seaweed, session_zygote) as running:
        for name in (*FUNCTIONS, "async_echo"):
            running.serve(name)
        yield running


@pytest.fixture(scope="module", params=["grpc", "aio"])
def driver(request: pytest.FixtureRequest, platform: Platform) -> Iterator[Driver]:
    options: dict[str, Any] = {"binary": False, "metadata": {"as_json": True}, "statuses": STATUSES}
    if request.param == "grpc":
        with triton.InferenceServerClient(platform.gateway.grpc) as client:
            yield Driver(triton, client, HEADERS, **options)
        return
    with asyncio.Runner() as runner:
        client = runner.run(_connect(platform.gateway.grpc))
        yield Driver(triton_aio, client, HEADERS, run=runner.run, **options)
        runner.run(client.close())


async def _connect(address: str) -> Any:
    return triton_aio.InferenceServerClient(address)


@pytest.mark.parametrize("check", CHECKS, ids=lambda check: check.__name__.removeprefix("check_"))
def test_client(check: Callable[[Driver], None], driver: Driver) -> None:
    check(driver)


@pytest.fixture(scope="module")
def rpc(platform: Platform) -> Iterator[Rpc]:
    with connected(platform.gateway.grpc) as client:
        yield client


def slow_text(seconds: float, text: str = "tea", request_id: str = "") -> Any:
    """Return a request that takes its time, to a function that says in its log who left meanwhile."""
    return request("async-echo", request_id, text=texts(text), sleep_s=floats(seconds))


def left(platform: Platform, text: str) -> bool:
    """Return whether the instance has stopped that request."""
    return f"cancelled {text}" in platform.instances["async-echo"].log_text()


def test_answers_say_what_those_of_http_say(rpc: Rpc) -> None:
    call = rpc.start(slow_text(0.0).SerializeToString(), (*KEY, ("x-request-id", "mine")))
    assert Response.FromString(call.result()).model_version == "1"
    told = dict(call.trailing_metadata())
    assert (told["x-request-id"], told["samovar-version"]) == ("mine", "1") and "run;dur=" in told["server-timing"]


BAD_METADATA = [
    ("no key", (), "UNAUTHENTICATED", "unauthenticated"),
    ("a wrong key", (("authorization", "Bearer sv_0123456789ab_wrong"),), "UNAUTHENTICATED", "unauthenticated"),
    ("a priority", (*KEY, ("samovar-priority", "huge")), "INVALID_ARGUMENT", "malformed"),
    ("a timeout", (*KEY, ("samovar-timeout-ms", "-1")), "INVALID_ARGUMENT", "malformed"),
]


@pytest.mark.parametrize(("metadata", "status", "code"), [row[1:] for row in BAD_METADATA])
def test_metadata_is_read_as_headers_are(rpc: Rpc, metadata: Any, status: str, code: str) -> None:
    found, details, told = rpc.refused(slow_text(0.0).SerializeToString(), (*metadata, ("x-request-id", "mine")))
    assert (found, told["samovar-code"], told["x-request-id"]) == (status, code, "mine"), details


def test_a_timeout_in_metadata_ends_a_call_with_our_words(rpc: Rpc, platform: Platform) -> None:
    message = slow_text(30.0, "metadata-timeout").SerializeToString()
    status, details, told = rpc.refused(message, (*KEY, ("samovar-timeout-ms", "300")))
    assert (status, told["samovar-code"]) == ("DEADLINE_EXCEEDED", "deadline_exceeded"), details
    wait_until(lambda: left(platform, "metadata-timeout"), what="the instance stopped")


def test_the_deadline_of_a_call_is_that_of_the_function(rpc: Rpc, platform: Platform) -> None:
    assert rpc.refused(slow_text(30.0, "deadline").SerializeToString(), timeout_s=0.5)[0] == "DEADLINE_EXCEEDED"
    wait_until(lambda: left(platform, "deadline"), what="the instance stopped")


def test_who_cancels_stops_the_function(rpc: Rpc, platform: Platform) -> None:
    call = rpc.start(slow_text(30.0, "cancelled-call").SerializeToString())
    wait_until(lambda: platform.gateway.metric("samovar_running") >= 1, what="it runs")
    call.cancel()
    wait_until(lambda: left(platform, "cancelled-call"), what="the instance stopped")


def test_a_client_that_is_gone_stops_the_function(platform: Platform) -> None:
    with connected(platform.gateway.grpc) as client:
        call = client.start(slow_text(30.0, "gone-client").SerializeToString())
        wait_until(lambda: platform.gateway.metric("samovar_running") >= 1, what="it runs")
        assert not call.done()
    wait_until(lambda: left(platform, "gone-client"), what="the instance stopped")


@pytest.mark.parametrize("compression", [grpc.Compression.NoCompression, grpc.Compression.Gzip])
def test_a_message_over_the_limit_is_refused_and_its_connection_goes_on(rpc: Rpc, compression: Any) -> None:
    message = request("mirrors", text=texts("a" * (17 << 20))).SerializeToString()
    status, details, _ = rpc.refused(message, compression=compression)
    assert status == "RESOURCE_EXHAUSTED", details
    assert rpc.infer(slow_text(0.0)).raw_output_contents


def test_a_compressed_message_is_taken(rpc: Rpc) -> None:
    call = rpc.start(slow_text(0.0, "a" * 10_000).SerializeToString(), compression=grpc.Compression.Gzip)
    assert Response.FromString(call.result()).raw_output_contents[0].endswith(b"a" * 10_000)


@pytest.mark.parametrize("message", [b"", b"\xff" * 30, b"\x3a\x7fabc"])
def test_bytes_that_are_no_request(rpc: Rpc, message: bytes) -> None:
    status, _, told = rpc.refused(message)
    assert (status, told["samovar-code"]) in {("INVALID_ARGUMENT", "malformed"), ("NOT_FOUND", "function_not_found")}


def test_an_error_that_says_much_keeps_its_status(rpc: Rpc) -> None:
    """Clients drop a call whose trailers are too large, and tell of that instead."""
    inputs: dict[str, Any] = {"茶" * 5000: ("TEA", [1], {})}
    status, details, told = rpc.refused(request("mirrors", **inputs).SerializeToString())
    assert (status, told["samovar-code"]) == ("INVALID_ARGUMENT", "invalid_input"), details
    assert details.startswith("茶") and details.endswith("…")


def test_messages_of_methods_are_not_read_without_a_key(rpc: Rpc) -> None:
    """Nor where nothing is asked."""
    for method, code in (("ModelReady", "UNAUTHENTICATED"), ("ServerLive", "OK")):
        call = rpc.channel.unary_unary(f"/{schema.SERVICE}/{method}").future(b"\xff" * (8 << 20), timeout=60)
        assert call.code().name == code, call.details()


def test_batch_mates_of_a_broken_request_are_answered(rpc: Rpc) -> None:
    calls = [rpc.start(request("row-vectors", text=texts(word)).SerializeToString()) for word in ("a", "poison", "cc")]
    assert [call.exception() is None for call in calls] == [True, False, True]
    assert "this one is spilt" in calls[1].exception().details()


def test_more_methods(rpc: Rpc) -> None:
    config = rpc.ask("ModelConfig", name="countdown-tensors").config
    assert config.model_transaction_policy.decoupled and config.max_batch_size == 0
    assert [(one.name, one.data_type, [*one.dims]) for one in config.output] == [("number", 9, [1]), ("word", 13, [1])]
    assert not rpc.ask("ModelConfig", name="arrays").config.model_transaction_policy.decoupled
    rpc.infer(slow_text(0.0))
    (found,) = rpc.ask("ModelStatistics", name="async-echo").model_stats
    assert found.inference_count >= 1 and found.inference_stats.success.ns > 0
    assert len(rpc.ask("ModelStatistics").model_stats) > 1
    ready = {one.name for one in rpc.ask("RepositoryIndex", ready=True).models}
    assert "arrays" in ready and "plain-dicts" not in ready
    with pytest.raises(grpc.RpcError) as caught:
        rpc.channel.unary_unary(f"/{schema.SERVICE}/RepositoryModelLoad")(b"", metadata=KEY)
    assert caught.value.code() is grpc.StatusCode.UNIMPLEMENTED


def test_health(rpc: Rpc) -> None:
    health = health_pb2_grpc.HealthStub(rpc.channel)
    Request, serving = health_pb2.HealthCheckRequest, health_pb2.HealthCheckResponse.SERVING
    for service in ("", schema.SERVICE):
        assert health.Check(Request(service=service)).status == serving, "without a key"
    assert health.Check(Request(service="arrays"), metadata=KEY).status == serving
    for service, metadata, status in (("arrays", (), "UNAUTHENTICATED"), ("arrayz", KEY, "NOT_FOUND")):
        with pytest.raises(grpc.RpcError) as caught:
            health.Check(Request(service=service), metadata=metadata)
        assert caught.value.code().name == status
    watch = health.Watch(Request(service="arrayz"), metadata=KEY)
    assert next(watch).status == health_pb2.HealthCheckResponse.SERVICE_UNKNOWN
    watch.cancel()


def test_reflection(rpc: Rpc) -> None:
    database = ProtoReflectionDescriptorDatabase(rpc.channel)
    assert {schema.SERVICE, "grpc.health.v1.Health"} <= set(database.get_services())
    pool = DescriptorPool(database)
    methods = pool.FindServiceByName(schema.SERVICE).methods_by_name
    assert methods["ModelInfer"].input_type.full_name == "inference.ModelInferRequest"
    assert pool.FindServiceByName("grpc.health.v1.Health").methods_by_name["Check"]


def countdown(n: int, request_id: str = "", fail_at: int = -1, **parameters: Any) -> bytes:
    """Return a request to the generator."""
    found = request("countdown-tensors", request_id, n=integers(n), fail_at=integers(fail_at))
    for name, value in parameters.items():
        found.parameters[name].bool_param = value
    encoded: bytes = found.SerializeToString()
    return encoded


def numbers(answers: list[Any]) -> list[int]:
    """Return the first output of each answer that has any."""
    raw = [one.infer_response.raw_output_contents for one in answers]
    return [int.from_bytes(contents[0], "little") for contents in raw if contents]


def test_a_stream_of_several_requests(rpc: Rpc) -> None:
    """Each is answered by its id; what fails fails alone."""
    messages = [
        countdown(3, "three"),
        countdown(3, "breaks", fail_at=2),
        slow_text(0.0, request_id="text").SerializeToString(),
        request("nothing-like-it", "unknown").SerializeToString(),
        b"\xff" * 20,
    ]
    answers = list(rpc.stream(iter(messages)))
    by_id: dict[str, list[Any]] = {}
    for answer in answers:
        by_id.setdefault(answer.infer_response.id, []).append(answer)
    assert by_id.keys() == {"three", "breaks", "text", "unknown", ""}
    assert numbers(by_id["three"]) == [3, 2, 1]
    assert not any(one.infer_response.parameters["triton_final_response"].bool_param for one in by_id["three"])
    assert numbers(by_id["breaks"]) == [3] and "it is spilt" in by_id["breaks"][-1].error_message
    (only,) = by_id["text"]
    assert only.infer_response.parameters["triton_final_response"].bool_param
    codes = [
        by_id[name][-1].infer_response.parameters["samovar-code"].string_param for name in ("unknown", "", "breaks")
    ]
    assert codes == ["function_not_found", "malformed", "function_raised"]


def test_a_stream_says_its_end_where_that_is_wanted(rpc: Rpc) -> None:
    answers = list(rpc.stream(iter([countdown(2, triton_enable_empty_final_response=True)])))
    finals = [one.infer_response.parameters["triton_final_response"].bool_param for one in answers]
    assert (numbers(answers), finals) == ([2, 1], [False, False, True])


def test_a_stream_without_a_key_is_refused(rpc: Rpc) -> None:
    call = rpc.stream(iter([countdown(2)]), metadata=())
    assert call.code() is grpc.StatusCode.UNAUTHENTICATED


def test_cancelling_a_stream_stops_what_it_asked(rpc: Rpc, platform: Platform) -> None:
    released = threading.Event()

    def messages() -> Iterator[bytes]:
        for number in (1, 2):
            yield slow_text(30.0, f"streamed-{number}").SerializeToString()
        released.wait(30)

    call = rpc.stream(messages())
    wait_until(lambda: platform.gateway.metric("samovar_running") >= 2, what="they run")
    call.cancel()
    released.set()
    wait_until(lambda: left(platform, "streamed-1") and left(platform, "streamed-2"), what="the instance stopped both")


def test_a_slow_reader_of_a_stream_holds_up_the_function_only(rpc: Rpc, platform: Platform) -> None:
    """Far more comes than windows and buffers hold; nothing is lost, and others are served meanwhile."""
    call = rpc.stream(iter([countdown(3000)]))
    first = next(call)
    assert rpc.infer(slow_text(0.0)).raw_output_contents
    assert numbers([first, *call]) == [*range(3000, 0, -1)]


def test_tritonclient_streams(platform: Platform) -> None:
    found: queue.Queue[tuple[Any, Any]] = queue.Queue()
    n, fail_at = triton.InferInput("n", [1], "INT64"), triton.InferInput("fail_at", [1], "INT64")
    with triton.InferenceServerClient(platform.gateway.grpc) as client:
        client.start_stream(lambda result, error: found.put((result, error)), headers=HEADERS)
        for request_id, last in (("good", -1), ("bad", 1)):
            inputs = [n.set_data_from_numpy(np.array([2])), fail_at.set_data_from_numpy(np.array([last]))]
            client.async_stream_infer(
                "countdown-tensors", inputs, request_id=request_id, enable_empty_final_response=True
            )
        results = [found.get(timeout=60) for _ in range(5)]
        client.stop_stream()
    errors = [error.message() for _, error in results if error is not None]
    assert len(errors) == 1 and "it is spilt" in errors[0]
    answers = [result for result, _ in results if result is not None]
    got = [(one.get_response().id, one.as_numpy("number")) for one in answers]
    assert [int(value[0]) for request_id, value in got if request_id == "good" and value is not None] == [2, 1]
    assert [value for request_id, value in got if value is None] == [None]


def test_tritonclient_aio_streams(platform: Platform) -> None:
    async def ask() -> list[int]:
        async def requests() -> AsyncIterator[dict[str, Any]]:
            n = triton_aio.InferInput("n", [1], "INT64").set_data_from_numpy(np.array([3]))
            yield {"model_name": "countdown-tensors", "inputs": [n]}

        async with triton_aio.InferenceServerClient(platform.gateway.grpc) as client:
            answers = client.stream_infer(requests(), headers=HEADERS)
            return [int(result.as_numpy("number")[0]) async for result, error in answers if error is None]

    assert asyncio.run(ask()) == [3, 2, 1]
