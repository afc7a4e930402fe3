"""The reconciler: tables of snapshots and actions, and properties over any snapshot."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from samovar.lifecycle import State
from samovar.spec import Resources
from samovar_pool.model import (
    Action,
    DeviceView,
    DrainInstance,
    ForkBlank,
    ForkTemplate,
    InstanceView,
    KillInstance,
    Reject,
    Role,
    Snapshot,
    Specialise,
    StartEnvironment,
    VersionView,
)
from samovar_pool.reconciler import reconcile, surplus_victims

MIB, GIB = 1 << 20, 1 << 30
NOW_S = 1000.0


def blank(name: str, **more: Any) -> InstanceView:
    return InstanceView(name, State.BLANK, started_at_s=900.0, **more)


def ready(name: str, ref: str = "f@1", **more: Any) -> InstanceView:
    facts = {"ready_at_s": 900.0, "idle_since_s": None if more.get("in_flight") else 950.0, "memory_bytes": 100 * MIB}
    return InstanceView(name, State.READY, ref, started_at_s=890.0, **{**facts, **more})


def loading(name: str, ref: str = "f@1", **more: Any) -> InstanceView:
    return InstanceView(name, State.LOADING, ref, **{"started_at_s": NOW_S - 0.5, **more})


def want(desired: int, ref: str = "f@1", **more: Any) -> VersionView:
    return VersionView(ref, desired, need_bytes=more.pop("need_bytes", 10 * MIB), **more)


def plan(*instances: InstanceView, versions: list[VersionView] | None = None, **more: Any) -> list[Action]:
    named = {version.ref: version for version in versions or []}
    return reconcile(Snapshot(now_s=NOW_S, versions=named, instances=list(instances), **more))


def test_a_blank_is_specialised_and_the_refill_waits() -> None:
    actions = plan(blank("b1"), blank("b2"), versions=[want(1)], blank_targets={("", "cpu"): 2})
    assert actions == [Specialise("b1", "f@1", ("cpu",), "missing")]


def test_without_a_blank_one_is_forked_once() -> None:
    starting = InstanceView("s1", State.STARTING)
    assert plan(versions=[want(1)]) == [ForkBlank("", "cpu", "wanted")]
    assert plan(starting, versions=[want(1)]) == []
    assert plan(starting, versions=[want(2)]) == [ForkBlank("", "cpu", "wanted")]


def test_a_template_is_forked_instead() -> None:
    template = ready("t1", role="template")
    actions = plan(template, blank("b1"), versions=[want(2)], blank_targets={("", "cpu"): 1})
    assert actions == [ForkTemplate("t1", "f@1", "missing")] * 2


def test_versions_without_any_instance_come_first() -> None:
    actions = plan(
        blank("b1"), ready("r1", "a@1", in_flight=1), versions=[want(2, "a@1"), want(1, "z@1")], blank_targets={}
    )
    assert actions[0] == Specialise("b1", "z@1", ("cpu",), "missing")
    assert ForkBlank("", "cpu", "wanted") in actions


def test_backoff_holds() -> None:
    assert plan(blank("b1"), versions=[want(1, retry_at_s=NOW_S + 1)], blank_targets={("", "cpu"): 1}) == []


def test_refill_when_quiet_and_surplus_goes_one_by_one() -> None:
    target = {("", "cpu"): 2}
    assert plan(blank("b1"), blank_targets=target) == [ForkBlank("", "cpu", "warm pool")]
    assert plan(blank("b1"), loading("l1"), versions=[want(1)], blank_targets=target) == []
    late = loading("l1", started_at_s=NOW_S - 10)
    assert plan(blank("b1"), late, versions=[want(1)], blank_targets=target) == [ForkBlank("", "cpu", "warm pool")]
    many = [blank(f"b{i}") for i in range(5)]
    assert plan(*many, blank_targets=target) == [KillInstance("b0", "", "blank surplus")]


def test_stale_blanks_are_renewed_one_at_a_time() -> None:
    stale = [blank("b1", stale=True), blank("b2", stale=True)]
    assert plan(*stale, blank_targets={("", "cpu"): 2}) == [KillInstance("b1", "", "recycle")]
    assert plan(*stale, InstanceView("s", State.STARTING), blank_targets={("", "cpu"): 3}) == []


def test_surplus_leaves_in_order_and_never_the_busy() -> None:
    instances = [
        ready("busy", in_flight=2),
        ready("idle", idle_since_s=990.0),
        ready("idle long", idle_since_s=950.0),
        loading("loading"),
    ]
    assert [i.instance_id for i in surplus_victims(instances)] == ["loading", "idle long", "idle"]
    assert plan(*instances, versions=[want(2)]) == [
        KillInstance("loading", "f@1", "surplus"),
        DrainInstance("idle long", "f@1", "surplus", if_idle=True),
    ]
    assert plan(ready("busy", in_flight=1), versions=[want(0)]) == []


def test_a_deleted_version_drains_even_when_busy() -> None:
    instances = [ready("busy", in_flight=1), loading("l"), ready("t", role="template")]
    assert plan(*instances, versions=[want(0, deleted=True)]) == [
        DrainInstance("busy", "f@1", "deleted", if_idle=False),
        KillInstance("l", "f@1", "deleted"),
        KillInstance("t", "f@1", "deleted"),
    ]


def test_full_memory_evicts_and_waits_then_starts() -> None:
    idle, template = ready("idle", "old@1"), ready("t", "old@1", role="template")
    versions = [want(1), want(1, "old@1")]
    full = {"memory_budget_bytes": 205 * MIB, "blank_targets": {("", "cpu"): 1}}
    assert plan(blank("b"), idle, template, versions=versions, **full) == [KillInstance("t", "old@1", "evict")]
    assert plan(blank("b"), idle, versions=versions, **full) == [Specialise("b", "f@1", ("cpu",), "missing")]
    draining = replace(template, state=State.DRAINING)
    assert plan(blank("b"), idle, draining, versions=versions, **full) == [], "it is coming free"


def test_nothing_to_evict_is_said() -> None:
    actions = plan(
        blank("b"),
        ready("busy", "old@1", in_flight=1),
        versions=[want(1), want(1, "old@1")],
        memory_budget_bytes=105 * MIB,
        blank_targets={("", "cpu"): 1},
    )
    assert len(actions) == 1 and isinstance(actions[0], Reject) and not actions[0].permanent
    assert "10 MiB do not fit" in actions[0].detail


def test_what_never_fits_is_refused_for_good() -> None:
    (action,) = plan(
        blank("b"), versions=[want(1, need_bytes=GIB)], memory_budget_bytes=MIB, blank_targets={("", "cpu"): 1}
    )
    assert isinstance(action, Reject) and action.permanent and "1024 MiB" in action.detail
    (action,) = plan(versions=[want(1, resources=Resources(gpus=1), device_need_bytes=GIB)])
    assert isinstance(action, Reject) and action.permanent
    assert action.detail == "an instance needs 1 GPU with 1024 MiB; this node has no GPU"
    (action,) = plan(versions=[want(1, resources=Resources(gpus=2), device_need_bytes=0)])
    assert isinstance(action, Reject) and action.detail == "an instance needs 2 GPUs; this node has no GPU"


def test_growth_beyond_the_budget_is_shed() -> None:
    grown = ready("t", role="template", memory_bytes=GIB)
    assert plan(grown, versions=[want(0)], memory_budget_bytes=MIB) == [KillInstance("t", "f@1", "evict")]


def test_devices_need_blanks_of_their_own() -> None:
    devices = [DeviceView("cuda:0", 80 * GIB, 80 * GIB), DeviceView("cuda:1", 80 * GIB, 80 * GIB)]
    whole = want(2, resources=Resources(gpus=1), device_need_bytes=GIB)
    actions = plan(blank("c"), blank("g", devices=("cuda:1",)), versions=[whole], devices=devices)
    assert Specialise("g", "f@1", ("cuda:1",), "missing") in actions
    assert ForkBlank("", "cuda:0", "wanted") in actions
    both = want(1, resources=Resources(gpus=2), device_need_bytes=GIB)
    actions = plan(blank("g", devices=("cuda:0",)), versions=[both], devices=devices)
    assert Specialise("g", "f@1", ("cuda:0", "cuda:1"), "missing") in actions
    shared = want(3, resources=Resources(gpu_memory_gib=30), device_need_bytes=30 * GIB)
    forks = [a for a in plan(versions=[shared], devices=devices) if isinstance(a, ForkBlank)]
    assert [a.device for a in forks] == ["cuda:0", "cuda:0", "cuda:1"], "the fullest that still fits"


def test_an_environment_of_its_own_is_started_first() -> None:
    own = want(1, environment="layer")
    assert plan(blank("b"), versions=[own], blank_targets={("", "cpu"): 1}) == [StartEnvironment("layer", "wanted")]
    up = frozenset({"", "layer"})
    assert plan(versions=[own], environments_ready=up) == [ForkBlank("layer", "cpu", "wanted")]
    spare = blank("s", environment="layer")
    assert plan(spare, versions=[own], environments_ready=up) == [Specialise("s", "f@1", ("cpu",), "missing")]


def test_a_template_is_made_from_a_spare_blank_when_nothing_else_happens() -> None:
    versions = [want(1, make_template=True)]
    made = Specialise("b", "f@1", ("cpu",), "template", role="template")
    assert made in plan(blank("b"), ready("r"), versions=versions)
    assert made not in plan(blank("b"), ready("r"), loading("l", "g@1"), versions=[*versions, want(1, "g@1")])
    assert made not in plan(blank("b"), ready("r"), versions=versions, memory_budget_bytes=105 * MIB)
    assert made not in plan(blank("b"), ready("r"), loading("t", role="template"), versions=versions)


states = st.sampled_from([State.STARTING, State.BLANK, State.LOADING, State.READY, State.DRAINING])


@st.composite
def snapshots(draw: st.DrawFn) -> Snapshot:
    refs = ["f@1", "g@2", "h@1"]
    instances = []
    for number in range(draw(st.integers(0, 12))):
        state = draw(states)
        ref = (
            "" if state is State.BLANK else draw(st.sampled_from(refs if state is not State.STARTING else [*refs, ""]))
        )
        busy = draw(st.integers(0, 2)) if state is State.READY else 0
        role: Role = "template" if ref and draw(st.booleans()) and not busy else "instance"
        view = InstanceView(
            f"i{number}",
            state,
            ref,
            role,
            in_flight=busy,
            memory_bytes=draw(st.integers(0, 300)) * MIB,
            ready_at_s=draw(st.floats(0, NOW_S)),
            idle_since_s=None if busy else draw(st.floats(0, NOW_S)),
        )
        instances.append(view)
    versions = {
        ref: want(draw(st.integers(0, 6)), ref, make_template=draw(st.booleans()), deleted=draw(st.booleans()),
                  floor=draw(st.integers(0, 2)), need_bytes=draw(st.integers(1, 400)) * MIB)
        for ref in refs
    }  # fmt: skip
    budget = draw(st.integers(1, 4000)) * MIB
    return Snapshot(NOW_S, versions, instances, blank_targets={("", "cpu"): draw(st.integers(0, 3))},
                    memory_budget_bytes=budget)  # fmt: skip


@given(snapshots())
def test_any_pass_is_sane(snapshot: Snapshot) -> None:
    actions = reconcile(snapshot)
    by_id = {instance.instance_id: instance for instance in snapshot.instances}
    touched = [a.instance_id for a in actions if isinstance(a, Specialise | DrainInstance | KillInstance)]
    assert len(touched) == len(set(touched)), "nobody gets two orders"
    for action in actions:
        if isinstance(action, Specialise):
            assert by_id[action.instance_id].state is State.BLANK
        if isinstance(action, DrainInstance):
            target = by_id[action.instance_id]
            assert target.state is State.READY and target.role == "instance"
            assert target.in_flight == 0 or (snapshot.versions[target.ref].deleted and not action.if_idle)
        if isinstance(action, KillInstance):
            target = by_id[action.instance_id]
            assert target.role == "template" or target.state is not State.READY
    for ref, version in snapshot.versions.items():
        have = sum(i.ref == ref and i.role == "instance" and i.state in (State.STARTING, State.LOADING, State.READY)
                   for i in snapshot.instances)  # fmt: skip
        added = sum(isinstance(a, ForkTemplate) or (isinstance(a, Specialise) and a.role == "instance")
                    for a in actions if not isinstance(a, ForkBlank | StartEnvironment) and a.ref == ref)  # fmt: skip
        assert added <= max(0, version.desired - have)
