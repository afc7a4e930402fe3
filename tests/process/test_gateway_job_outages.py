"""Submissions while Redis has no memory left, is dead, or the client is too slow: refused in words, nothing lost."""

from __future__ import annotations

import socket
from dataclasses import replace
from pathlib import Path
from typing import Any

import httpx
import pytest

from samovar_storage.embedded import EmbeddedValkey
from samovar_storage.objects import ObjectStore
from support.gateway import ADMIN_KEY, Gateway, running_gateway
from support.processes import running
from support.stores import Stores
from support.waiting import wait_until

pytestmark = pytest.mark.process


def submit(gateway: Gateway, **body: Any) -> httpx.Response:
    return gateway.client.post("/v1/functions/echo/jobs", json=body or {"input": 1})


def is_refused(answer: httpx.Response, code: str) -> bool:
    return (answer.status_code, answer.json()["code"]) == (503, code) and int(answer.headers["retry-after"]) > 0


def test_accepted_jobs_outlive_a_redis_that_is_full_and_killed(
    stores: Stores, object_store: ObjectStore, short_path: Path, tmp_path: Path
) -> None:
    own = EmbeddedValkey(tmp_path)
    mine = replace(stores, redis_url=own.redis_url)
    log = tmp_path / "valkey.log"
    with running(own.command(), log, own.environment(), own.stop_grace_s) as valkey:
        own.wait_ready(20)
        with running_gateway(mine, object_store, short_path) as gateway:
            gateway.deploy("echo")
            ids = [submit(gateway).json()["id"]]
            refuses_when_full(gateway)
            assert listed(gateway) == ids
            ids += [submit(gateway, input="last").json()["id"]]
            valkey.kill()
            valkey.wait(60)
            assert is_refused(submit(gateway), "store_unavailable")
            assert is_refused(gateway.client.get(f"/v1/jobs/{ids[0]}"), "store_unavailable")
            assert is_refused(gateway.client.get("/v1/jobs"), "store_unavailable")
            assert gateway.client.get("/metrics").status_code == 200
            with running(own.command(), log, own.environment(), own.stop_grace_s):
                own.wait_ready(20)
                wait_until(lambda: gateway.client.get("/v1/jobs").status_code == 200, what="Redis is back")
                assert listed(gateway) == [*reversed(ids)]


def refuses_when_full(gateway: Gateway) -> None:
    used = int(gateway.redis.info("memory")["used_memory"])
    gateway.redis.config_set("maxmemory", str(used + (1 << 20)))
    assert is_refused(submit(gateway, inputs=["x" * 500] * 10_000), "store_full"), "all or nothing"
    gateway.redis.config_set("maxmemory", "1")
    assert is_refused(submit(gateway), "store_full")
    preferred = gateway.client.post("/v1/functions/echo/invoke", json=1, headers={"prefer": "respond-async, wait=9"})
    assert is_refused(preferred, "store_full")
    gateway.redis.config_set("maxmemory", "0")


def listed(gateway: Gateway) -> list[str]:
    found = gateway.client.get("/v1/jobs").json()["jobs"]
    assert {job["state"] for job in found} == {"queued"}
    return [job["id"] for job in found]


def test_a_client_that_does_not_send_its_body_is_not_waited_for(
    stores: Stores, object_store: ObjectStore, short_path: Path
) -> None:
    with running_gateway(stores, object_store, short_path, body_timeout_s=0.3) as gateway:
        gateway.deploy("echo")
        with gateway.connect() as connection:
            head = f"POST /v1/functions/echo/jobs HTTP/1.1\r\nhost: x\r\nauthorization: Bearer {ADMIN_KEY}\r\n"
            connection.sendall(f"{head}content-length: 100\r\n\r\n{{".encode())
            assert b" 408 " in first_line(connection)
        assert submit(gateway).status_code == 202


def first_line(connection: socket.socket) -> bytes:
    return connection.makefile("rb").readline()
