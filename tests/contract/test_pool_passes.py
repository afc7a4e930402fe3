"""What one look of the pool manager takes in: the active versions, however many there are."""

from __future__ import annotations

import time
from pathlib import Path

import msgspec
import redis.asyncio as redis_async

from samovar.layers import Layers
from samovar.lifecycle import State
from samovar.spec import BlobRef, Manifest, Route, Scaling
from samovar_pool import reconciler
from samovar_pool.backends.instance import Instance
from samovar_pool.backends.local import LocalBackend
from samovar_pool.backends.rundir import RunDir
from samovar_pool.backends.sandbox import Sandboxing, Uids
from samovar_pool.job_backlog import JobBacklog
from samovar_pool.knowledge import Knowledge
from samovar_pool.manager import Manager
from samovar_pool.observer import Observer
from samovar_pool.prepare import Preparer
from samovar_pool.settings import PoolSettings
from samovar_pool.signals import Signals
from samovar_pool.topology import CpuPlan
from samovar_pool.versions import Catalogue
from samovar_storage.cache import NodeCache
from samovar_storage.jobs.redis_jobs import RedisJobs
from samovar_storage.objects import ObjectStore
from samovar_storage.records import FunctionRecord

NUM_FUNCTIONS = 5000
NUM_READY = 200


def function_record(number: int) -> FunctionRecord:
    name, scaling = f"f-{number}", Scaling(min_instances=int(number < NUM_READY), max_instances=1)
    facts = {"name": name, "version": 1, "entry": "app:f", "kind": "function", "handler": "sync", "scaling": scaling}
    manifest = msgspec.convert({**facts, "code": BlobRef(sha256="0" * 64, size_bytes=1)}, Manifest)
    return FunctionRecord(name=name, route=Route(name=name, shares={"1": 100}, latest=1), manifests={"1": manifest})


async def test_sleeping_functions_cost_a_pass_nothing(
    aredis: redis_async.Redis, object_store: ObjectStore, tmp_path: Path
) -> None:
    catalogue, knowledge = Catalogue(), Knowledge()
    settings = PoolSettings(data_dir=tmp_path)
    manager = Manager(catalogue, knowledge, 1.0, True)
    preparer = Preparer(NodeCache(tmp_path / "cache", 1 << 30, object_store), Layers(tmp_path / "layers", 1.0))
    anywhere = CpuPlan(())
    backend = LocalBackend(
        RunDir(tmp_path, "unix"),
        preparer,
        manager,
        simulated=False,
        preload=[],
        sandboxing=Sandboxing("off", Uids(range(0)), None),
        cpu_plan=lambda *_: anywhere,
    )
    signals = Signals(aredis, catalogue, 1.0, lambda: None, lambda _: None)
    backlog = JobBacklog(RedisJobs(aredis, object_store).waiting, lambda: None)
    observer = Observer(settings, signals, backlog, catalogue, backend, knowledge, list, {})
    for number in range(NUM_FUNCTIONS):
        record = function_record(number)
        catalogue.update(record.name, record)
    assert len(observer.observe(time.monotonic()).decisions) == NUM_READY, "those that should have instances"
    for number in range(NUM_READY):
        version = catalogue.versions[f"f-{number}@1"]
        now_s = time.monotonic()
        ready = Instance(f"i-{number}", "t", "", state=State.READY, ref=version.ref, version=version, ready_at_s=now_s)
        backend.instances[ready.instance_id] = ready
    first = observer.observe(time.monotonic())
    again = observer.observe(time.monotonic())
    assert again.snapshot.versions["f-7@1"] is first.snapshot.versions["f-7@1"], "one at rest is not judged anew"
    signals.demand = {"f-7@1": 3.0, "f-4999@1": 1.0}
    signals.woken_at_s = dict.fromkeys(signals.demand, time.monotonic())
    woken = observer.observe(time.monotonic())
    assert len(woken.decisions) == NUM_READY + 1 and woken.decisions["f-4999@1"].target == 1
    assert woken.snapshot.versions["f-7@1"] is not again.snapshot.versions["f-7@1"]
    assert {action.rule for action in reconciler.reconcile(woken.snapshot)} == {"wanted"}, "a zygote for a blank"
    preparer.close()
