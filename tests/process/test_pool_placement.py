"""Simulated devices, a small memory budget and a Redis that goes away, on one real pool manager."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path

import pytest

from samovar.spec import Resources
from samovar_storage.embedded import EmbeddedValkey
from samovar_storage.records import InstanceRecord
from support.pool import Pool, alive, call, quick_scaling, running_pool
from support.processes import running
from support.stores import Stores
from support.waiting import wait_until

pytestmark = pytest.mark.process

MIB = 1 << 20
HEAVY = """
import samovar as sv

@sv.function(name={name!r})
class Heavy:
    def load(self, weights, device):
        self.big = b"x" * (400 << 20)

    def __call__(self, text: str) -> str:
        return text
"""


@pytest.fixture
def server(tmp_path: Path) -> Iterator[EmbeddedValkey]:
    """A Valkey of this test's own, to be killed."""
    yield EmbeddedValkey(tmp_path)


@contextmanager
def serving(server: EmbeddedValkey, log: Path) -> Iterator[None]:
    with running(server.command(), log, server.environment(), grace_s=0.0):
        server.wait_ready(20)
        yield


def test_simulated_devices_memory_budget_and_a_redis_that_goes_away(
    server: EmbeddedValkey, stores: Stores, tmp_path: Path
) -> None:
    settings = {"simulate_gpus": "4x80", "memory_budget_bytes": 750 * MIB, "min_residency_s": 0, "transport": "tcp"}
    mine = replace(stores, redis_url=server.redis_url)
    with ExitStack() as stack:
        redis = stack.enter_context(ExitStack())
        redis.enter_context(serving(server, tmp_path / "valkey.log"))
        pool = stack.enter_context(running_pool(mine, tmp_path, **settings, min_blanks=1, max_blanks=1))
        pool.start()
        check_devices(pool)
        pool.reset()
        pool.until(lambda: not [record for record in pool.instances() if record.ref], what="all left")
        check_eviction(pool)
        (record,) = [record for record in pool.in_state("ready") if record.ref]
        redis.close()
        wait_until(lambda: "demand is not known now" in pool.log())
        assert call(record, b'{"text": "still"}') == b'"still"', "it serves without Redis"
        redis.enter_context(serving(server, tmp_path / "valkey.log"))
        check_recovery(pool, record)


def check_recovery(pool: Pool, before: InstanceRecord) -> None:
    """After an outage nothing was killed, everything is known again, and a cold start works."""
    pool.until(lambda: before.pid in [record.pid for record in pool.in_state("ready", before.ref)])
    assert alive(before.pid)
    ref = pool.deploy("echo_sum", name="afterwards", scaling=quick_scaling()).ref
    pool.demand(ref)
    pool.ready(ref)


def check_devices(pool: Pool) -> None:
    """Whole devices are given together, shares fill one; everything simulated says so; the impossible is refused."""
    scaling = quick_scaling(min_instances=1)
    both = pool.deploy("echo_sum", name="both", scaling=scaling, resources=Resources(gpus=2)).ref
    (record,) = pool.ready(both)
    assert (record.device, record.simulated) == ("cuda:0,cuda:1", True)
    share = pool.deploy("echo_sum", name="share", scaling=scaling, resources=Resources(gpu_memory_gib=30)).ref
    (record,) = pool.ready(share)
    assert record.device in ("cuda:2", "cuda:3") and record.simulated
    pool.deploy("echo_sum", name="pair", scaling=scaling, resources=Resources(gpus=2))
    pool.until(lambda: "device" in [decision.rule for decision in pool.decisions("pair")], what="no two are free now")
    never = pool.deploy("echo_sum", name="never", scaling=scaling, resources=Resources(gpus=5)).ref
    failure = pool.until(lambda: pool.boot_failure(never))
    assert (failure.code, failure.status) == ("no_capacity", 503) and "this node has 4 GPUs" in failure.detail
    node = pool.until(pool.node)
    assert [device.simulated for device in node.devices] == [True] * 4
    assert pool.instances(both)[0].sandbox
    assert all(record.address.startswith("tcp:127.0.0.1:") for record in pool.instances())


def check_eviction(pool: Pool) -> None:
    """When memory is full the idle instance leaves, the one just asked for stays."""
    first = pool.write("first", HEAVY.format(name="first"), scaling=quick_scaling(scale_down_window_s=600)).ref
    second = pool.write("second", HEAVY.format(name="second"), scaling=quick_scaling(scale_down_window_s=600)).ref
    pool.demand(first)
    pool.ready(first)
    pool.demand(first, 0)
    pool.demand(second)
    pool.ready(second)
    pool.until(lambda: not pool.instances(first), what="the idle one leaves")
    assert "evict" in [decision.rule for decision in pool.decisions("first")]
    assert len(pool.in_state("ready", second)) == 1
