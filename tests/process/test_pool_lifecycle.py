"""The pool manager on real Valkey, SeaweedFS, zygote and instances: wake, ready, scale to zero, replace, adopt."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
import redis as redis_sync

from samovar import wire
from samovar_storage.objects import ObjectStore
from support.pool import Pool, alive, quick_scaling, running_pool

pytestmark = pytest.mark.process


@pytest.fixture
def pool(
    settings_file: Callable[..., Path], tmp_path: Path, redis: redis_sync.Redis, object_store: ObjectStore
) -> Iterator[Pool]:
    with running_pool(settings_file, tmp_path, redis, object_store, templates=False) as pool:
        yield pool


def call(address: str, token: str, body: bytes) -> wire.FromInstance:
    """Call an instance as a gateway does; return its answer."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as sock:
        sock.settimeout(10)
        sock.connect(address.removeprefix("unix:"))
        decoder = wire.caller_side()
        sock.sendall(wire.encode(wire.Hello(wire.PROTOCOL_VERSION, token, "gateway")))
        sock.sendall(wire.encode(wire.Invoke(1, body, 10_000)))
        while True:
            for message in decoder.feed(sock.recv(65536)):
                if not isinstance(message, wire.Welcome | wire.Stats):
                    return message


def test_wake_ready_answer_scale_to_zero(pool: Pool) -> None:
    ref = pool.deploy("echo_sum", scaling=quick_scaling()).ref
    pool.start()
    pool.demand(ref)
    (record,) = pool.ready(ref)
    assert set(record.boot_ms) >= {"claim", "fetch", "import", "load", "warmup"}
    assert record.boot_ms["claim"] < 1000
    answer = call(record.address, record.token, b'{"values": [1, 2, 3.5]}')
    assert isinstance(answer, wire.Result) and answer.body == b"6.5"
    pool.demand(ref, 0)
    pool.until(lambda: not pool.instances(ref) and not alive(record.pid), 10, "scale to zero")
    rules = [decision.rule for decision in pool.decisions("echo-sum")]
    assert {"cold", "idle", "missing", "surplus"} <= set(rules)
    assert not (pool.data_dir / "run" / f"{record.instance_id}.sock").exists()
    pool.until(lambda: len(pool.in_state("blank")) == 2, 10, "the warm pool is full again")
    assert pool.stop() == 0
    assert pool.processes() == []
    assert pool.instances() == []
