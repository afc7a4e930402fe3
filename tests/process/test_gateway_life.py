"""How a gateway starts, survives its stores and stops."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import httpx
import msgspec
import pytest

from samovar_gateway.server import inherit
from samovar_storage import keys
from samovar_storage.embedded import EmbeddedValkey
from samovar_storage.objects import ObjectStore
from samovar_storage.records import FunctionRecord, dumps, loads
from support.folders import short_folder
from support.gateway import environment, running_gateway
from support.processes import running
from support.stores import Stores
from support.waiting import wait_until

pytestmark = pytest.mark.process


def refused(config: Path, *flags: str) -> tuple[int, str]:
    """Run a gateway that must not start; return its exit code and what it said."""
    command = [sys.executable, "-m", "samovar_gateway", "--config", str(config), *flags]
    done = subprocess.run(command, capture_output=True, text=True, env=environment(), timeout=60, check=False)
    return done.returncode, done.stderr


def test_a_taken_port_is_one_sentence(settings_file: Callable[..., Path]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        code, text = refused(settings_file(), "--port", str(other.getsockname()[1]))
    assert code == 10
    assert "is taken" in text and "Traceback" not in text


@pytest.mark.parametrize(
    ("setting", "address"), [("redis_url", "redis://127.0.0.1:1/0"), ("s3_endpoint", "http://127.0.0.1:1")]
)
def test_an_unreachable_store_is_one_sentence(settings_file: Callable[..., Path], setting: str, address: str) -> None:
    config = settings_file(port=0)
    config.write_text(json.dumps(json.loads(config.read_text()) | {setting: address}))
    code, text = refused(config)
    assert code == 8
    assert "127.0.0.1:1" in text.splitlines()[-1] and "Traceback" not in text


def test_sigterm_serves_who_still_asks_and_finishes_what_runs(
    stores: Stores, object_store: ObjectStore, short_path: Path
) -> None:
    """One long call, and the phases of leaving as clients with kept-alive and with fresh connections see them."""
    with (
        running_gateway(stores, object_store, short_path, drain_settle_s=4.0) as gateway,
        ThreadPoolExecutor(1) as pool,
    ):
        gateway.start_instance(gateway.deploy().ref, concurrency=4)
        call = pool.submit(gateway.invoke, "echo", {"sleep_s": 6.0})
        with closing(gateway.connect()) as idle, closing(gateway.connect()) as kept:
            wait_until(lambda: gateway.metric("samovar_running") == 1)
            for connection in (idle, kept):
                assert b"connection: close" not in answer_on(connection, gateway.raw("echo", b"{}"))
            gateway.process.send_signal(signal.SIGTERM)
            wait_until(lambda: httpx.get(gateway.url + "/readyz").status_code == 503)
            leaving = httpx.get(gateway.url + "/readyz")
            assert "draining" in leaving.json()["missing"] and leaving.headers["connection"] == "close"
            settling = httpx.post(
                gateway.url + "/v1/functions/echo/invoke", content=b"{}", headers=gateway.client.headers
            )
            assert (settling.status_code, settling.headers["connection"]) == (200, "close"), (
                "it settles: calls are served"
            )
            assert b"connection: close" in answer_on(kept, gateway.raw("echo", b"{}"))
            assert kept.recv(1) == b"", "closed after its answer"
            assert idle.recv(1) == b"", "closed unused when the gateway stops to listen"
        wait_until(lambda: refuses(gateway.url), what="no new connection is taken")
        answer = call.result(60)
        assert (answer.status_code, answer.headers["connection"]) == (200, "close")
        assert gateway.process.wait(60) == 0
        assert not gateway.redis.keys(keys.demand("*"))
        assert not gateway.redis.zcard(keys.GATEWAYS)


def test_a_second_signal_hurries(stores: Stores, object_store: ObjectStore, short_path: Path) -> None:
    with (
        running_gateway(stores, object_store, short_path, drain_settle_s=60.0) as gateway,
        ThreadPoolExecutor(1) as pool,
    ):
        gateway.start_instance(gateway.deploy().ref)
        call = pool.submit(gateway.invoke, "echo", {"sleep_s": 60.0}, samovar_timeout_ms="60000")
        wait_until(lambda: gateway.metric("samovar_running") == 1)
        gateway.process.send_signal(signal.SIGTERM)
        wait_until(lambda: httpx.get(gateway.url + "/readyz").status_code == 503)
        gateway.process.send_signal(signal.SIGINT)
        assert gateway.process.wait(60) == 0
        answer = call.result(60)
        assert (answer.status_code, answer.json()["code"]) == (503, "draining"), answer.text


def test_who_has_just_connected_is_still_answered(stores: Stores, object_store: ObjectStore, short_path: Path) -> None:
    """The request leaves its client after the gateway has stopped to listen."""
    with running_gateway(stores, object_store, short_path, drain_settle_s=0.0) as gateway:
        gateway.start_instance(gateway.deploy().ref)
        with closing(gateway.connect()) as newcomer:
            gateway.process.send_signal(signal.SIGTERM)
            wait_until(lambda: refuses(gateway.url), what="no new connection is taken")
            assert answer_on(newcomer, gateway.raw("echo", b"{}")).startswith(b"HTTP/1.1 200")
        assert gateway.process.wait(60) == 0


def test_an_inherited_socket_is_held_by_no_child() -> None:
    """Else a port that is left hangs instead of refusing, as long as the keeper of the request log lives."""
    with closing(socket.create_server(("127.0.0.1", 0))) as listener:
        passed_on = os.dup(listener.fileno())
        os.set_inheritable(passed_on, True)
        with closing(inherit(passed_on)) as inherited:
            assert not inherited.get_inheritable()


def test_a_function_that_nobody_announced_yet_is_found(
    stores: Stores, object_store: ObjectStore, short_path: Path
) -> None:
    """Deployed through one gateway, called at another a moment later."""
    with running_gateway(stores, object_store, short_path) as gateway:
        row = gateway.redis.hget(keys.FUNCTIONS, gateway.deploy().name)
        assert isinstance(row, bytes)
        record = loads(row, FunctionRecord)
        manifests = {n: msgspec.structs.replace(m, name="unheard") for n, m in record.manifests.items()}
        unheard = msgspec.structs.replace(record, name="unheard", manifests=manifests)
        gateway.redis.hset(keys.FUNCTIONS, "unheard", dumps(unheard))
        gateway.start_instance("unheard@1")
        assert gateway.invoke("unheard", {}).status_code == 200
        assert gateway.invoke("unheard-of", {}).status_code == 404


def test_a_function_that_cannot_be_read_stops_no_other(
    stores: Stores, object_store: ObjectStore, short_path: Path
) -> None:
    """Such as one that was stored before a rule came that refuses it."""
    with running_gateway(stores, object_store, short_path) as first:
        first.start_instance(first.deploy().ref)
        row = first.redis.hget(keys.FUNCTIONS, "echo")
        assert isinstance(row, bytes)
        old = re.sub(rb'"timeout_s":[\d.]+', b'"timeout_s":-1.0', row.replace(b'"echo"', b'"old"'))
        with pytest.raises(msgspec.ValidationError, match="timeout_s"):
            loads(old, FunctionRecord)
        first.redis.hset(keys.FUNCTIONS, "old", old)
        with short_folder() as folder, running_gateway(stores, object_store, folder) as second:
            wait_until(lambda: second.invoke("echo", {}).status_code == 200, what="it serves what it can read")
            refused = second.invoke("old", {})
            assert (refused.status_code, refused.json()["code"]) == (409, "conflict"), "it is there, and of no use"
            first.redis.hdel(keys.FUNCTIONS, "old")


def answer_on(connection: socket.socket, request: bytes) -> bytes:
    """Send a request on a kept-alive connection; return the whole answer."""
    connection.sendall(request)
    head, _, body = connection.recv(65536).partition(b"\r\n\r\n")
    found = re.search(rb"content-length: (\d+)", head)
    assert found is not None, head
    while len(body) < int(found[1]):
        body += connection.recv(65536)
    return head + b"\r\n\r\n" + body


def refuses(url: str) -> bool:
    """Return whether a new connection is refused."""
    try:
        httpx.get(url + "/livez")
    except httpx.ConnectError:
        return True
    return False


def test_calls_go_on_without_redis_and_the_index_comes_back(
    stores: Stores, object_store: ObjectStore, short_path: Path, tmp_path: Path
) -> None:
    own = EmbeddedValkey(tmp_path)
    with running(own.command(), tmp_path / "valkey.log", own.environment(), own.stop_grace_s) as valkey:
        own.wait_ready(20)
        mine = Stores(own.redis_url, *(getattr(stores, f) for f in list(Stores.__dataclass_fields__)[1:]))
        with running_gateway(mine, object_store, short_path) as gateway:
            gateway.start_instance(gateway.deploy().ref)
            assert gateway.invoke("echo", {"n": 1}).status_code == 200
            gateway.redis.flushdb()
            wait_until(lambda: gateway.redis.hexists(keys.FUNCTIONS, "echo"))
            valkey.kill()
            valkey.wait(60)
            assert {gateway.invoke("echo", {"n": n}).status_code for n in range(50)} == {200}
            assert httpx.get(gateway.url + "/readyz").status_code == 200
