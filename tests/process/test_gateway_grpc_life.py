"""How the gRPC side of a gateway starts, shares its port and leaves."""

from __future__ import annotations

import asyncio
import signal
import socket
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from subprocess import Popen
from typing import Any

import grpc
import pytest
from grpc_health.v1 import health_pb2, health_pb2_grpc

from samovar_storage.embedded import EmbeddedSeaweed, EmbeddedValkey
from support.folders import short_folder
from support.gateway import environment
from support.instance_driver import FUNCTIONS, Zygote
from support.openai_gateway import running_platform
from support.processes import running
from support.rpc import INFER, KEY, connected, floats, request, texts
from support.waiting import wait_until, wait_until_async

pytestmark = pytest.mark.process
NOT_SERVING = health_pb2.HealthCheckResponse.NOT_SERVING
SERVING = health_pb2.HealthCheckResponse.SERVING


def slow_text(seconds: float) -> bytes:
    encoded: bytes = request("async-echo", text=texts("tea"), sleep_s=floats(seconds)).SerializeToString()
    return encoded


def test_a_taken_port_is_one_sentence(settings_file: Callable[..., Path]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        port = other.getsockname()[1]
        command = [sys.executable, "-m", "samovar_gateway", "--config", str(settings_file(port=0))]
        flags = ["--grpc-port", str(port)]
        done = subprocess.run(
            [*command, *flags], capture_output=True, text=True, env=environment(), timeout=60, check=False
        )
    text = done.stderr
    assert done.returncode == 10, text
    assert f"port {port}" in text and "--grpc-port" in text and "Traceback" not in text


def test_a_message_that_finds_no_room_is_refused_and_its_stream_goes_on(
    valkey: EmbeddedValkey, seaweed: EmbeddedSeaweed, session_zygote: Zygote
) -> None:
    with running_platform(valkey, seaweed, session_zygote, max_waiting_bytes=100_000) as platform:
        platform.serve("async_echo")
        large = request("async-echo", "large", text=texts("a" * 200_000)).SerializeToString()
        with connected(platform.gateway.grpc) as rpc:
            answers = [*rpc.stream(iter([slow_text(0.5), large, slow_text(0.0)]))]
    refused = [one.infer_response for one in answers if one.error_message]
    assert [(one.id, one.parameters["samovar-code"].string_param) for one in refused] == [("large", "queue_full")]
    assert len(answers) == 3, "those before and behind it are answered"


def test_leaving_answers_what_runs_and_tells_everybody(
    valkey: EmbeddedValkey, seaweed: EmbeddedSeaweed, session_zygote: Zygote
) -> None:
    with running_platform(valkey, seaweed, session_zygote, drain_settle_s=3.0) as platform:
        platform.serve("async_echo")
        with connected(platform.gateway.grpc) as rpc, ThreadPoolExecutor(2) as pool:
            call = rpc.start(slow_text(6.0))
            stream = rpc.stream(iter_until_closed([slow_text(6.0)]))
            health = health_pb2_grpc.HealthStub(rpc.channel)
            watch = health.Watch(health_pb2.HealthCheckRequest())
            assert next(watch).status == SERVING
            wait_until(lambda: platform.gateway.metric("samovar_running") == 2, what="both run")
            platform.gateway.process.send_signal(signal.SIGTERM)
            assert next(watch).status == NOT_SERVING
            assert rpc.start(slow_text(0.0)).result(), "it settles: calls are served"
            assert pool.submit(list, watch).result(60) == [], "watchers are told once, then they end"
            assert next(stream).infer_response.raw_output_contents
            assert pool.submit(stream.code).result(60) is grpc.StatusCode.UNAVAILABLE
            assert dict(stream.trailing_metadata())["samovar-code"] == "draining"
            assert call.result(60)
            assert platform.gateway.process.wait(60) == 0
            assert rpc.start(slow_text(0.0)).exception().code() is grpc.StatusCode.UNAVAILABLE


def iter_until_closed(messages: list[bytes]) -> Iterator[bytes]:
    """Yield messages, then keep the stream open for as long as its client lives."""
    yield from messages
    time.sleep(60)


@contextmanager
def gateway_of(
    listeners: list[socket.socket], config: Path, log: Path, gateway_id: str
) -> Iterator[tuple[Popen[bytes], str]]:
    """One gateway on the shared HTTP and gRPC sockets; yields it and its own address."""
    with socket.create_server(("127.0.0.1", 0)) as own:
        descriptors = [own.fileno(), *(listener.fileno() for listener in listeners)]
        names = ("--own-fd", "--shared-fd", "--grpc-fd")
        flags = [f"{name}={number}" for name, number in zip(names, descriptors, strict=True)]
        command = [sys.executable, "-m", "samovar_gateway", "--config", str(config), f"--gateway-id={gateway_id}"]
        with running([*command, *flags], log, environment(), pass_fds=descriptors) as process:
            wait_until(lambda: "serving grpc" in log.read_text(), what="gRPC is served")
            yield process, f"http://127.0.0.1:{own.getsockname()[1]}"


def test_two_gateways_on_one_port_and_one_leaves_under_load(
    valkey: EmbeddedValkey, seaweed: EmbeddedSeaweed, session_zygote: Zygote
) -> None:
    """The load goes on over connections that live long; not one call fails."""
    with (
        running_platform(valkey, seaweed, session_zygote, grpc_port=-1) as platform,
        socket.create_server(("127.0.0.1", 0)) as http,
        socket.create_server(("127.0.0.1", 0), backlog=256) as shared,
        short_folder() as folder,
    ):
        assert platform.gateway.grpc == "", "-1 is for none"
        platform.serve("async_echo")
        config = platform.folder / "settings.json"
        first = gateway_of([http, shared], config, folder / "1.log", "first")
        second = gateway_of([http, shared], config, folder / "2.log", "second")
        with first as (leaving, _), second as (staying, _):
            address = f"127.0.0.1:{shared.getsockname()[1]}"
            outcomes = asyncio.run(loaded_while(address, leaving))
            assert leaving.returncode == 0 and staying.poll() is None
        assert outcomes.keys() == {"ok"}, outcomes


async def loaded_while(address: str, leaving: Popen[bytes]) -> Counter[str]:
    """Return how calls ended that came all the while a gateway left."""
    outcomes: Counter[str] = Counter()
    done = asyncio.Event()
    options = [("grpc.use_local_subchannel_pool", 1)]
    channels = [grpc.aio.insecure_channel(address, options=options) for _ in range(6)]

    async def caller(channel: Any) -> None:
        call = channel.unary_unary(INFER)
        while not done.is_set():
            try:
                await call(slow_text(0.01), metadata=KEY, timeout=30)
                outcomes["ok"] += 1
            except grpc.aio.AioRpcError as error:
                outcomes[f"{error.code().name} {error.details()}"] += 1

    callers = [asyncio.create_task(caller(channel)) for channel in channels for _ in range(3)]
    await wait_until_async(lambda: outcomes.total() > 100)
    leaving.send_signal(signal.SIGTERM)
    await wait_until_async(lambda: leaving.poll() is not None)
    total = outcomes.total()
    await wait_until_async(lambda: outcomes.total() > total + 50)
    done.set()
    await asyncio.gather(*callers)
    for channel in channels:
        await channel.close()
    return outcomes


def test_calls_and_connections_are_bounded(
    valkey: EmbeddedValkey, seaweed: EmbeddedSeaweed, session_zygote: Zygote
) -> None:
    """Nothing answers: what is asked waits. One call, then one connection too many are refused; others are not."""
    with running_platform(valkey, seaweed, session_zygote, max_connections=9) as platform:
        platform.deploy(FUNCTIONS / "async_echo")
        with connected(platform.gateway.grpc) as first, connected(platform.gateway.grpc) as second:
            waiting = [client.start(slow_text(0.0)) for client in [first] * 5 + [second] * 4]
            wait_until(lambda: platform.gateway.metric("samovar_queued") == 9, what="they wait")
            status, details, _ = second.refused(slow_text(0.0))
            assert status == "RESOURCE_EXHAUSTED", details
            with connected(platform.gateway.grpc) as third, connected(platform.gateway.grpc) as fourth:
                assert third.refused(b"")[0] == "RESOURCE_EXHAUSTED"
                assert fourth.refused(b"")[0] == "UNAVAILABLE", "a connection for every three that there may be of HTTP"
            for call in waiting:
                call.cancel()
            wait_until(lambda: platform.gateway.metric("samovar_queued") == 0, what="all have left")
            assert second.ask("ServerReady").ready
