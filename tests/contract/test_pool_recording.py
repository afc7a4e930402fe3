"""What the pool manager writes to the real Valkey: the newest of each thing; and the lease it writes under."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import msgspec
import redis.asyncio as redis_async

from samovar.lifecycle import State
from samovar.spec import BlobRef, Manifest, Route
from samovar_pool.leader import Lease, NodeLock
from samovar_pool.recorder import Recorder
from samovar_pool.signals import SCAN_COUNT, Signals
from samovar_pool.versions import Catalogue, Version
from samovar_storage import keys, live
from samovar_storage.records import FunctionRecord, InstanceRecord, VersionStatus, dumps


def function_record(name: str) -> FunctionRecord:
    facts = {"name": name, "version": 1, "entry": "app:f", "kind": "function", "handler": "sync"}
    manifest = msgspec.convert({**facts, "code": BlobRef(sha256="0" * 64, size_bytes=1)}, Manifest)
    return FunctionRecord(name=name, route=Route(name=name, shares={"1": 100}, latest=1), manifests={"1": manifest})


def instance(number: int, state: State) -> InstanceRecord:
    return InstanceRecord(instance_id=f"i-{number}", state=state, ref="f@1")


@asynccontextmanager
async def recording(redis: redis_async.Redis, fence: list[int], deposed: list[bool]) -> AsyncIterator[Recorder]:
    recorder = Recorder(redis, list, lambda: deposed.append(True), lambda: fence[-1])
    yield recorder
    task = asyncio.create_task(recorder.run())
    await recorder.drain(5.0)
    task.cancel()


async def test_only_the_newest_of_each_is_written_and_none_is_lost(aredis: redis_async.Redis) -> None:
    token = await live.acquire_lease(aredis)
    assert token is not None
    deposed: list[bool] = []
    async with recording(aredis, [token], deposed) as recorder:
        for state in (State.BLANK, State.LOADING, State.READY):
            for number in range(250):
                recorder.instance(instance(number, state))
        recorder.gone(instance(0, State.READY))
        for desired in range(300):
            recorder.status(
                VersionStatus(ref="f@1", desired=desired, ready=0, starting=0, draining=0, reason="", at_s=0.0)
            )
    stored = await live.instances(aredis)
    assert len(stored) == 249 and {record.state for record in stored.values()} == {"ready"}
    assert (await live.statuses(aredis, ["f@1"]))["f@1"].desired == 299 and not deposed


async def test_writing_ends_once_when_another_leads(aredis: redis_async.Redis) -> None:
    old = await live.acquire_lease(aredis)
    assert old is not None
    await live.release_lease(aredis, old)
    assert await live.acquire_lease(aredis)
    deposed: list[bool] = []
    async with recording(aredis, [old], deposed) as recorder:
        for number in range(250):
            recorder.instance(instance(number, State.READY))
    assert deposed == [True] and await live.instances(aredis) == {}


async def test_a_lease_that_ran_out_is_kept_and_a_flushed_one_taken_anew(
    aredis: redis_async.Redis, tmp_path: Path
) -> None:
    lost: list[bool] = []
    lock = NodeLock(tmp_path)
    lease = Lease(aredis, lock, lambda: lost.append(True))
    token = await lease.acquire()
    await aredis.delete(keys.MANAGER_LEASE)
    await lease.renew()
    assert lease.token == token and await aredis.get(keys.MANAGER_LEASE) == str(token).encode()
    await aredis.flushdb()
    await lease.renew()
    assert await live.renew_lease(aredis, lease.token) and not lost
    await live.release_lease(aredis, lease.token)
    assert await live.acquire_lease(aredis)
    await lease.renew()
    assert lost == [True]
    lock.close()


async def test_an_index_of_many_functions_is_mirrored_in_parts(aredis: redis_async.Redis) -> None:
    names = [f"f-{number}" for number in range(3 * SCAN_COUNT)]
    records: dict[str, FunctionRecord] = {name: function_record(name) for name in names}
    await aredis.hset(keys.FUNCTIONS, mapping={name: dumps(record) for name, record in records.items()})
    await aredis.set(keys.REGISTRY_BUILT, "1")
    catalogue = Catalogue()
    deployed: list[Version] = []
    signals = Signals(aredis, catalogue, 1.0, lambda: None, deployed.append)
    await signals.reload_functions()
    assert set(catalogue.versions) == {f"{name}@1" for name in names} and not deployed
    await aredis.hdel(keys.FUNCTIONS, "f-7")
    await signals.reload_functions()
    assert catalogue.is_deleted("f-7@1") and not catalogue.is_deleted("f-8@1")
