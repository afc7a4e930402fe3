"""Warm pool, back-off, ledger, placement, eviction, topology, watchdog: small tables."""

from __future__ import annotations

from collections import Counter, deque
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samovar.lifecycle import State
from samovar.spec import Limits, Resources
from samovar_pool import eviction, placement, topology
from samovar_pool.backoff import Backoff, delay_s
from samovar_pool.ledger import CONTEXT_BYTES, SLACK_BYTES, Ledger
from samovar_pool.model import DeviceView, InstanceView, Role, VersionView
from samovar_pool.warm_pool import MEMORY_S, blank_target
from samovar_pool.watchdog import MAX_SILENCE_S, START_LIMIT_S, Vitals, verdict

GIB = 1 << 30


# ---- warm pool and back-off --------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("claims", "now_s", "expected"),
    [
        ([], 100.0, 1),
        ([99.0], 100.0, 1),
        ([90.0, 90.1, 90.2, 90.3], 100.0, 4),
        ([90.0, 93.0, 96.0, 99.0], 100.0, 1),
        ([90.0] * 50, 100.0, 8),
        ([90.0] * 4, 90.0 + MEMORY_S + 1, 1),
    ],
)
def test_blank_target_follows_recent_claims(claims: list[float], now_s: float, expected: int) -> None:
    assert blank_target(deque(claims), now_s, 1, 8) == expected


def test_backoff_doubles_to_a_minute_and_forgets_on_success() -> None:
    assert [delay_s(n) for n in range(1, 9)] == [1, 2, 4, 8, 16, 32, 60, 60]
    backoff = Backoff()
    assert backoff.fail("f@1", 10.0) == (1, 11.0)
    assert backoff.fail("f@1", 10.5) == (1, 11.0), "boots that fail side by side count once"
    assert backoff.fail("f@1", 11.0) == (2, 13.0)
    assert backoff.retry_at_s("f@1") == 13.0 and backoff.retry_at_s("g@1") == 0.0
    backoff.succeed("f@1")
    assert backoff.fail("f@1", 50.0) == (1, 51.0)


# ---- ledger ------------------------------------------------------------------------------------------------------


def test_ledger_learns_peaks_and_holds_them() -> None:
    ledger = Ledger()
    assert ledger.expected("f@1", "gpu", 4 * GIB) == 4 * GIB
    ledger.hold("a", "f@1", ("cuda:0",), 4 * GIB)
    ledger.measured("a", "f@1", 6 * GIB)
    assert ledger.expected("f@1", "gpu", 4 * GIB) == 6 * GIB
    assert ledger.held_bytes("cuda:0") == 6 * GIB
    assert ledger.free_bytes("cuda:0", 16 * GIB, 15 * GIB) == 10 * GIB
    assert ledger.free_bytes("cuda:0", 16 * GIB, 3 * GIB) == 3 * GIB, "the driver sees others' use"
    assert ledger.release("a") == ("cuda:0",)
    assert ledger.held_bytes("cuda:0") == 0
    ledger.forget("f@1")
    assert ledger.expected("f@1", "gpu", 1) == 1


def test_what_the_driver_still_counts_after_a_release_stays_unavailable() -> None:
    """triton-inference-server/server#5841: memory that did not come back is noticed, not handed out again."""
    ledger = Ledger()
    discrepancy = ledger.check("cuda:0", 5 * GIB)
    assert discrepancy is not None and discrepancy.missing_bytes == 5 * GIB
    assert ledger.free_bytes("cuda:0", 16 * GIB, 16 * GIB) == 11 * GIB
    assert ledger.check("cuda:0", SLACK_BYTES) is None
    assert ledger.check("cuda:0", 2 * CONTEXT_BYTES + SLACK_BYTES, num_processes=2) is None, "blanks have contexts"
    ledger.foreign("cuda:0", GIB)
    assert ledger.check("cuda:0", GIB + SLACK_BYTES) is None, "others were there before us"
    assert ledger.free_bytes("cuda:0", 16 * GIB, 16 * GIB) == 16 * GIB


# ---- placement ---------------------------------------------------------------------------------------------------


def device(number: int, free_gib: int = 80, node: int = 0, holders: int = 0, exclusive: bool = False) -> DeviceView:
    return DeviceView(f"cuda:{number}", 80 * GIB, free_gib * GIB, node, holders, exclusive)


@pytest.mark.parametrize(
    ("resources", "need_gib", "devices", "blanks", "expected"),
    [
        (Resources(), 0, [], (), ("cpu",)),
        (Resources(gpu_memory_gib=10), 10, [device(0, 80), device(1, 20)], (), ("cuda:1",)),
        (Resources(gpu_memory_gib=10), 10, [device(0, 80), device(1, 20)], ("cuda:0",), ("cuda:0",)),
        (Resources(gpu_memory_gib=30), 30, [device(0, 20), device(1, 20)], (), None),
        (Resources(gpu_memory_gib=10), 10, [device(0, exclusive=True, holders=1)], (), None),
        (Resources(gpus=1), 10, [device(0, holders=1), device(1)], (), ("cuda:1",)),
        (Resources(gpus=2), 10, [device(0, node=0), device(1, node=1), device(2, node=1)], (), ("cuda:1", "cuda:2")),
        (Resources(gpus=2), 10, [device(0, node=0), device(1, node=1)], (), ("cuda:0", "cuda:1")),
        (Resources(gpus=2), 10, [device(0), device(1, holders=1)], (), None),
        (Resources(gpus=1), 10, [], (), None),
    ],
)
def test_place(
    resources: Resources,
    need_gib: int,
    devices: list[DeviceView],
    blanks: tuple[str, ...],
    expected: tuple[str, ...] | None,
) -> None:
    assert placement.place(resources, need_gib * GIB, devices, blanks) == expected


def test_could_ever_fit() -> None:
    two = [device(0, free_gib=0), device(1, free_gib=0)]
    assert placement.could_ever_fit(Resources(gpus=2), 70 * GIB, two, 8 * GIB, GIB)
    assert not placement.could_ever_fit(Resources(gpus=3), GIB, two, 8 * GIB, GIB)
    assert not placement.could_ever_fit(Resources(gpus=1), 81 * GIB, two, 8 * GIB, GIB)
    assert not placement.could_ever_fit(Resources(), 0, [], 8 * GIB, 9 * GIB)


@given(
    st.integers(1, 4),
    st.lists(st.tuples(st.integers(0, 80), st.integers(0, 1), st.integers(0, 2)), max_size=8),
)
def test_whole_devices_are_free_distinct_and_as_many_as_asked(num: int, rows: list[tuple[int, int, int]]) -> None:
    devices = [device(i, free, node, holders) for i, (free, node, holders) in enumerate(rows)]
    chosen = placement.place(Resources(gpus=num), 40 * GIB, devices)
    free = {d.device for d in devices if d.holders == 0 and d.free_bytes >= 40 * GIB}
    if chosen is None:
        assert len(free) < num
    else:
        assert len(set(chosen)) == num and set(chosen) <= free


# ---- eviction ----------------------------------------------------------------------------------------------------


def ready(
    name: str,
    ref: str,
    mib: int = 100,
    in_flight: int = 0,
    ready_at_s: float = 0.0,
    idle: float = 50.0,
    role: Role = "instance",
) -> InstanceView:
    return InstanceView(
        name,
        State.READY,
        ref,
        role,
        in_flight=in_flight,
        ready_at_s=ready_at_s,
        idle_since_s=None if in_flight else idle,
        memory_bytes=mib << 20,
    )


def version(ref: str, floor: int = 0, cost: float = 1.0, use: float = 1.0) -> VersionView:
    return VersionView(ref, desired=1, floor=floor, reload_cost_s=cost, recent_use=use)


def names(found: list[InstanceView]) -> list[str]:
    return [instance.instance_id for instance in found]


def test_templates_leave_first_then_the_cheapest_to_miss() -> None:
    instances = [ready("dear", "a@1"), ready("cheap", "b@1"), ready("template", "a@1", role="template")]
    versions = {v.ref: v for v in [version("a@1", cost=5), version("b@1", cost=0.1)]}
    for need_mib, expected in [(50, ["template"]), (150, ["template", "cheap"]), (250, ["template", "cheap", "dear"])]:
        assert names(eviction.victims(instances, versions, need_mib << 20, "c@1", 100.0, 10.0)) == expected
    assert eviction.victims(instances, versions, 400 << 20, "c@1", 100.0, 10.0) == [], "all or nothing"


def test_never_the_busy_the_young_the_floor_nor_its_own_version() -> None:
    """roboflow/inference PR 2947: active models are not evicted."""
    instances = [
        ready("busy", "a@1", in_flight=1),
        ready("young", "b@1", ready_at_s=95.0),
        ready("floor", "c@1"),
        ready("own", "d@1"),
    ]
    versions = {v.ref: v for v in [version("a@1"), version("b@1"), version("c@1", floor=1), version("d@1")]}
    assert eviction.victims(instances, versions, 1, "d@1", 100.0, 10.0) == []


def test_thrash_alarm_counts_versions_that_come_back() -> None:
    alarm = eviction.ThrashAlarm()
    assert not alarm.loaded("a@1", 0.0)
    seen = []
    for i in range(6):
        alarm.evicted("a@1", i * 5.0)
        seen.append(alarm.loaded("a@1", i * 5.0 + 1))
    assert seen == [False, False, False, True, True, True]
    alarm.evicted("b@1", 100.0)
    assert not alarm.loaded("b@1", 500.0), "that was long ago"


# ---- topology ----------------------------------------------------------------------------------------------------


@pytest.fixture
def two_nodes(tmp_path: Path) -> Path:
    for node in (0, 1):
        folder = tmp_path / f"devices/system/node/node{node}"
        folder.mkdir(parents=True)
        (folder / "cpulist").write_text(f"{node * 32}-{node * 32 + 31}\n")
        (folder / "distance").write_text("10 21\n" if node == 0 else "21 10\n")
    for address, node in [("0000:3b:00.0", 0), ("0000:af:00.0", 1)]:
        folder = tmp_path / "bus/pci/devices" / address
        folder.mkdir(parents=True)
        for name, text in [("vendor", "0x10de"), ("class", "0x030200"), ("numa_node", str(node))]:
            (folder / name).write_text(text + "\n")
    return tmp_path


def test_reads_nodes_and_the_devices_beside_them(two_nodes: Path) -> None:
    found = topology.read_topology(two_nodes)
    assert [node.cpus[0] for node in found.nodes] == [0, 32]
    assert found.nodes[1].distances == (21, 10)
    assert found.gpu_nodes == {"0000:3b:00.0": 0, "0000:af:00.0": 1}


def test_plan_follows_the_device_else_the_least_loaded_node(two_nodes: Path) -> None:
    found = topology.read_topology(two_nodes)
    assert topology.plan(found, 1, 4, {}).node == 1
    assert topology.plan(found, -1, 4, {0: 3, 1: 1}).node == 1
    assert topology.plan(found, -1, 4, {}).cpus == tuple(range(32))
    load: Counter[int] = Counter()
    for _ in range(6):
        load[topology.plan(found, -1, 1, load).node] += 1
    assert load == {0: 3, 1: 3}, "they spread"
    assert topology.plan(found, -1, 64, {}) == topology.CpuPlan(())


def test_one_node_or_no_files_mean_no_plan(tmp_path: Path) -> None:
    assert topology.plan(topology.read_topology(tmp_path), -1, 1, {}) == topology.CpuPlan(())


@pytest.mark.parametrize(("text", "cpus"), [("0-3,8,10-11\n", (0, 1, 2, 3, 8, 10, 11)), ("", ()), ("5", (5,))])
def test_cpulist(text: str, cpus: tuple[int, ...]) -> None:
    assert topology.parse_cpulist(text) == cpus


# ---- watchdog ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("vitals", "killed"),
    [
        (Vitals(State.STARTING, 1, 1), False),
        (Vitals(State.STARTING, START_LIMIT_S + 1, 1), True),
        (Vitals(State.LOADING, 299, 299), False),
        (Vitals(State.LOADING, 301, 301), True),
        (Vitals(State.BLANK, 1e6, 1e6), False),
        (Vitals(State.READY, 1e6, 1), False),
        (Vitals(State.READY, 100, MAX_SILENCE_S + 1), True),
        (Vitals(State.READY, 100, MAX_SILENCE_S + 1, in_flight=1), False),
        (Vitals(State.READY, 100, MAX_SILENCE_S + 63, in_flight=1), True),
        (Vitals(State.READY, 100, 1, overrun_s=1.9, in_flight=1), False),
        (Vitals(State.READY, 100, 1, overrun_s=2.1, in_flight=1), True),
        (Vitals(State.DRAINING, 100, 1, overrun_s=2.1, in_flight=1), True),
        (Vitals(State.DRAINING, 1e6, 1), False),
        (Vitals(State.DRAINING, 100, MAX_SILENCE_S + 1), True),
    ],
)
def test_watchdog(vitals: Vitals, killed: bool) -> None:
    assert bool(verdict(vitals, Limits())) is killed
