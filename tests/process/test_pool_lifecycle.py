"""The pool manager on real Valkey, SeaweedFS, zygote and instances: wake, ready, scale to zero, replace, adopt."""

from __future__ import annotations

import os
import signal

import pytest

from support.pool import Call, Pool, alive, call, quick_scaling

pytestmark = pytest.mark.process


def test_wake_ready_answer_scale_to_zero(pool: Pool) -> None:
    ref = pool.deploy("echo_sum", scaling=quick_scaling()).ref
    pool.demand(ref)
    (record,) = pool.ready(ref)
    assert set(record.boot_ms) >= {"claim", "fetch", "import", "load", "warmup"}
    assert call(record, b'{"values": [1, 2, 3.5]}') == b"6.5"
    pool.demand(ref, 0)
    pool.until(lambda: not pool.instances(ref) and not alive(record.pid), what="scale to zero")
    rules = [decision.rule for decision in pool.decisions("echo-sum")]
    assert {"cold", "idle", "missing", "surplus"} <= set(rules)
    assert not (pool.data_dir / "run" / f"{record.instance_id}.sock").exists()
    pool.until(lambda: len(pool.in_state("blank")) >= 2, what="the warm pool is full again")


def test_stop_drains_and_leaves_no_process(pool: Pool) -> None:
    """A call has its own deadline, here beyond what its version gives by default: the drain takes as long."""
    ref = pool.deploy("hangs", scaling=quick_scaling()).ref
    pool.demand(ref)
    (record,) = pool.ready(ref)
    pids = {note.pid for note in pool.notes()}
    with Call(record, b'{"sleep_s": 6.5}', timeout_ms=14_000) as running:
        assert pool.stop() == 0
        assert running.result() == b'"awake"', "a running call is finished first"
    assert not any(alive(pid) for pid in pids)
    assert pool.processes() == [] and pool.instances() == []


def test_a_killed_instance_is_gone_at_once_and_replaced_while_there_is_demand(pool: Pool) -> None:
    ref = pool.deploy("echo_sum", name="killed", scaling=quick_scaling()).ref
    pool.demand(ref)
    (first,) = pool.ready(ref)
    os.kill(first.pid, signal.SIGKILL)
    pool.until(lambda: first.instance_id not in {r.instance_id for r in pool.instances()}, what="it is gone")
    (second,) = pool.ready(ref)
    assert second.pid != first.pid
    lost(pool, "killed", f"{first.instance_id}: the instance was killed by signal 9 while serving")


def has_template(pool: Pool, ref: str) -> bool:
    """Return whether a template of `ref` is up."""
    status = pool.status(ref)
    return status is not None and status.templates == 1


def lost(pool: Pool, name: str, how: str) -> None:
    """Return once the function's decisions say how an instance was lost."""
    pool.until(lambda: any(d.action == "lost" and how in d.rule for d in pool.decisions(name)), what=how)


def test_a_call_that_overruns_gets_its_process_killed_and_replaced(pool: Pool) -> None:
    ref = pool.deploy("hangs", scaling=quick_scaling()).ref
    pool.demand(ref)
    (first,) = pool.ready(ref)
    with Call(first, b'{"sleep_s": 60}', timeout_ms=200):
        pool.until(lambda: not alive(first.pid), what="the hung process is killed")
    pool.until(
        lambda: first.pid not in {r.pid for r in pool.instances()} and pool.in_state("ready", ref), what="replaced"
    )
    lost(pool, "hangs", "a call did not stop when its deadline was over")


def test_the_next_manager_adopts_everything(pool: Pool) -> None:
    ref = pool.deploy("echo_sum", name="adopted", scaling=quick_scaling(min_instances=2)).ref
    before = {record.instance_id: record for record in pool.ready(ref, 2)}
    pool.until(lambda: has_template(pool, ref), what="its template, which takes a blank")
    pool.until(lambda: len(pool.in_state("blank")) >= 2, what="two blanks")
    everybody = {record.pid for record in pool.instances()}
    zygotes = {note.pid for note in pool.notes() if note.kind == "zygote"}
    kept, killed = (before[instance_id] for instance_id in sorted(before))
    pool.kill()
    os.kill(killed.pid, signal.SIGKILL)
    assert all(alive(pid) for pid in (everybody | zygotes) - {killed.pid})
    assert call(kept, b'{"values": [2]}') == b"2.0", "it serves without a manager"
    (pool.data_dir / "run" / "i-stale.sock").touch()
    pool.start(wait_ready=False)
    pool.until(lambda: len(pool.in_state("ready", ref)) == 2 and killed.instance_id not in pool.ids(), what="replaced")
    after = next(record for record in pool.instances(ref) if record.instance_id == kept.instance_id)
    assert (after.pid, after.token, after.address) == (kept.pid, kept.token, kept.address)
    assert {note.pid for note in pool.notes() if note.kind == "zygote"} == zygotes
    assert {record.pid for record in pool.in_state("blank")} & everybody, "blanks are adopted too"
    assert not (pool.data_dir / "run" / "i-stale.sock").exists()
    assert pool.stop(signal.SIGHUP) == 0
    assert alive(kept.pid) and all(alive(pid) for pid in zygotes), "a hang-up ends the manager alone"


def test_without_redis_instances_stay_and_after_a_flush_everything_is_written_again(pool: Pool) -> None:
    ref = pool.deploy("echo_sum", name="flushed", scaling=quick_scaling(min_instances=1)).ref
    (record,) = pool.ready(ref)
    pool.redis.flushdb()
    pool.until(lambda: pool.in_state("ready", ref), what="written again after a flush")
    pool.until(lambda: pool.status(ref) is not None and pool.node() is not None, what="so are the statuses")
    assert [r.pid for r in pool.in_state("ready", ref)] == [record.pid]
    assert alive(record.pid)


def test_a_deleted_function_is_drained_and_a_new_version_replaces_an_old_one(pool: Pool) -> None:
    first = pool.deploy("echo_sum", name="replaced", scaling=quick_scaling(min_instances=1)).ref
    (old,) = pool.ready(first)
    second = pool.deploy("echo_sum", name="replaced", scaling=quick_scaling(min_instances=1)).ref
    pool.ready(second)
    pool.until(lambda: not alive(old.pid), what="the old version leaves after its quiet window")
    (new,) = pool.in_state("ready", second)
    pool.registry.delete_function("replaced")
    pool.until(lambda: not alive(new.pid), what="a deleted function leaves")


def test_warm_requests_hold_instances(pool: Pool) -> None:
    ref = pool.deploy("echo_sum", name="warmed", scaling=quick_scaling()).ref
    pool.warm(ref, 2, 600.0)
    assert len(pool.ready(ref, 2)) == 2
    pool.warm(ref, 2, 1.0)
    pool.until(lambda: not pool.instances(ref), what="the request runs out")
    assert "warm" in [decision.rule for decision in pool.decisions("warmed")]


def test_a_second_manager_on_the_same_folder_is_refused(pool: Pool) -> None:
    first = pool.process
    pool.start(wait_ready=False)
    second, pool.process = pool.process, first
    assert second is not None and second.wait(60) == 10
    assert "another pool manager runs on" in pool.log()


def test_a_deployed_version_is_local_and_loaded_before_its_first_call(pool: Pool) -> None:
    ref = pool.deploy("linear", name="prepared", scaling=quick_scaling(), weights={"weight.bin": b"w"}).ref

    def is_begun() -> bool:
        return any(note.ref == ref and note.kind == "template" for note in pool.notes())

    pool.until(is_begun, what="a template that nobody called for")
    pool.until(lambda: has_template(pool, ref), what="and it is up")
    assert pool.instances(ref) == [], "a template serves nobody"
    pool.demand(ref)
    (record,) = pool.ready(ref)
    assert record.from_template and record.boot_ms["fetch"] == 0 and record.boot_ms["import"] == 0


def test_a_deployed_version_that_does_not_load_says_so_and_is_tried_as_ever(pool: Pool) -> None:
    ref = pool.deploy("raises_in_load", name="unloadable", scaling=quick_scaling()).ref
    pool.until(lambda: [d for d in pool.decisions("unloadable") if d.rule.startswith("does not load: ")])
    assert pool.boot_failure(ref) is None
    pool.demand(ref)
    failure = pool.until(lambda: pool.boot_failure(ref))
    assert failure.num_failures >= 1


def test_of_many_deploys_only_the_newest_keep_a_template(pool: Pool) -> None:
    refs: list[str] = []

    def templates() -> set[str]:
        return {note.ref for note in pool.notes() if note.kind == "template" and note.ref.startswith("many-")}

    for number in range(10):
        refs.append(pool.deploy("echo_sum", name=f"many-{number}", scaling=quick_scaling()).ref)
        pool.until(lambda: refs[-1] in templates(), what="a template")
    pool.until(lambda: templates() == set(refs[-8:]), what="eight are kept")
