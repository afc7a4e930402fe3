"""How a gateway starts, survives its stores and stops."""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from samovar_storage import keys
from samovar_storage.embedded import EmbeddedValkey
from samovar_storage.objects import ObjectStore
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


def test_sigterm_finishes_what_runs_and_takes_nothing_new(
    stores: Stores, object_store: ObjectStore, short_path: Path
) -> None:
    with running_gateway(stores, object_store, short_path) as gateway, ThreadPoolExecutor(1) as pool:
        gateway.start_instance(gateway.deploy().ref)
        call = pool.submit(gateway.invoke, "echo", {"sleep_s": 1.0})
        wait_until(lambda: gateway.metric("samovar_running") == 1)
        gateway.process.send_signal(signal.SIGTERM)
        wait_until(lambda: httpx.get(gateway.url + "/readyz").status_code == 503)
        assert "draining" in httpx.get(gateway.url + "/readyz").json()["missing"]
        late = gateway.invoke("echo", {})
        assert (late.status_code, late.json()["code"], late.headers["connection"]) == (503, "draining", "close")
        assert call.result(10).status_code == 200
        assert gateway.process.wait(10) == 0
        assert not gateway.redis.keys(keys.demand("*"))
        assert not gateway.redis.zcard(keys.GATEWAYS)


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
            valkey.wait(10)
            answers = [gateway.invoke("echo", {"n": n}) for n in range(50)]
            assert {answer.status_code for answer in answers} == {200}
            total_ms = [float(re.findall(r"total;dur=([\d.]+)", a.headers["server-timing"])[0]) for a in answers]
            assert sorted(total_ms)[len(total_ms) // 2] < 100
            assert httpx.get(gateway.url + "/readyz").status_code == 200
