"""Simulated devices and a small memory budget, on one real pool manager."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from samovar.spec import Resources
from support.pool import Pool, quick_scaling, running_pool
from support.stores import Stores

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
def pool(stores: Stores, tmp_path: Path) -> Iterator[Pool]:
    settings = {"simulate_gpus": "4x80", "memory_budget_bytes": 1100 * MIB, "min_residency_s": 0, "templates": False}
    with running_pool(stores, tmp_path, **settings, min_blanks=1, max_blanks=1) as pool:
        yield pool


def test_simulated_devices_and_memory_budget(pool: Pool) -> None:
    pool.start()
    check_devices(pool)
    pool.reset()
    pool.until(lambda: not [record for record in pool.instances() if record.ref], 10, "all left")
    check_eviction(pool)


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
    pool.until(lambda: "device" in [decision.rule for decision in pool.decisions("pair")], 10, "no two are free now")
    never = pool.deploy("echo_sum", name="never", scaling=scaling, resources=Resources(gpus=5)).ref
    failure = pool.until(lambda: pool.boot_failure(never), 10)
    assert (failure.code, failure.status) == ("no_capacity", 503) and "this node has 4 device(s)" in failure.detail
    node = pool.until(pool.node, 10)
    assert [device.simulated for device in node.devices] == [True] * 4
    assert pool.instances(both)[0].sandbox


def check_eviction(pool: Pool) -> None:
    """When memory is full the idle instance leaves, the one just asked for stays."""
    first = pool.write("first", HEAVY.format(name="first"), scaling=quick_scaling(scale_down_window_s=600)).ref
    second = pool.write("second", HEAVY.format(name="second"), scaling=quick_scaling(scale_down_window_s=600)).ref
    pool.demand(first)
    pool.ready(first)
    pool.demand(first, 0)
    pool.demand(second)
    pool.ready(second)
    pool.until(lambda: not pool.instances(first), 20, "the idle one leaves")
    assert "evict" in [decision.rule for decision in pool.decisions("first")]
    assert len(pool.in_state("ready", second)) == 1
