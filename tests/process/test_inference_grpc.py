"""The Open Inference Protocol over gRPC: real tritonclients, and what none of them would send."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from typing import Any

import grpc
import pytest
import tritonclient.grpc as triton
import tritonclient.grpc.aio as triton_aio

from samovar_storage.embedded import EmbeddedSeaweed, EmbeddedValkey
from support.gateway import ADMIN_KEY
from support.instance_driver import Zygote
from support.oip_checks import CHECKS, FUNCTIONS, Driver
from support.openai_gateway import Platform, running_platform

pytestmark = pytest.mark.process
HEADERS = {"authorization": f"Bearer {ADMIN_KEY}"}
NAMES = {400: "INVALID_ARGUMENT", 401: "UNAUTHENTICATED", 404: "NOT_FOUND", 422: "INVALID_ARGUMENT", 500: "UNKNOWN"}
STATUSES = {status: f"StatusCode.{name}" for status, name in NAMES.items()}


@pytest.fixture(scope="module")
def platform(valkey: EmbeddedValkey, seaweed: EmbeddedSeaweed, session_zygote: Zygote) -> Iterator[Platform]:
    with running_platform(valkey, seaweed, session_zygote) as running:
        for name in FUNCTIONS:
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
