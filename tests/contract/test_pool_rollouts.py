"""The verdict carried out: traffic in Redis becomes one conditional write of the route, with its reason."""

from __future__ import annotations

import time
from types import SimpleNamespace
from typing import Any

import msgspec
import redis as redis_sync
import redis.asyncio as redis_async

from samovar.spec import Route
from samovar_pool.rollouts import Rollouts
from samovar_pool.versions import Catalogue
from samovar_storage import live, routes
from samovar_storage.objects import ObjectStore
from samovar_storage.records import BootFailure, Decision
from samovar_storage.registry import Registry
from samovar_storage.traffic import Tally, TrafficSlice, bucket_of, write_slices
from samovar_storage.trials import add_mirrored, mirrored, trial
from support.versions import store_version

AGE_S = 40


class Trial:
    """A function with a canary that was started AGE_S ago, and what the manager's leader makes of it."""

    def __init__(self, store: ObjectStore, redis: redis_sync.Redis, aredis: redis_async.Redis, auto: bool) -> None:
        self.redis, self.registry, self.decisions = aredis, Registry(store, redis), list[Decision]()
        manifest = store_version(store, version=0)
        started = Registry(store, redis, lambda: time.time() - AGE_S)
        started.publish_version(manifest)
        started.publish_version(manifest, "me", (), routes.Trial(percent=10, auto=auto, bake_s=30.0))
        nobody: Any = SimpleNamespace(instances={})
        self.rollouts = Rollouts(aredis, self.registry, Catalogue(), nobody, lambda _, new: self.decisions.extend(new))

    async def calls(self, ref: str, ok: int, failed: int, seconds: int = 30) -> None:
        """Write so many seconds of traffic."""
        start_s = int(time.time()) - AGE_S + 1
        tally = Tally(ok=ok, failed=failed, total={bucket_of(0.02): ok})
        await write_slices(
            self.redis,
            [TrafficSlice(gateway="g", ref=ref, at_s=start_s + n, span_s=1.0, calls=tally) for n in range(seconds)],
        )

    async def look(self) -> Route:
        """Return the route after one look."""
        await self.rollouts.look(self.registry.record("embed").route, time.time())
        return self.registry.record("embed").route


async def test_a_clean_canary_is_promoted(
    object_store: ObjectStore, redis: redis_sync.Redis, aredis: redis_async.Redis
) -> None:
    judged = Trial(object_store, redis, aredis, auto=True)
    await judged.calls("embed@1", 90, 0)
    await judged.calls("embed@2", 10, 0)
    route = await judged.look()
    assert (route.shares, route.canary) == ({"2": 100}, None)
    assert route.history[0].by == "auto" and "no regression in 300 calls" in route.history[0].reason
    assert [decision.action for decision in judged.decisions] == ["promote"]


async def test_a_failing_canary_is_rolled_back_and_rejected(
    object_store: ObjectStore, redis: redis_sync.Redis, aredis: redis_async.Redis
) -> None:
    judged = Trial(object_store, redis, aredis, auto=True)
    await judged.calls("embed@1", 90, 0)
    await judged.calls("embed@2", 8, 2)
    route = await judged.look()
    assert (route.shares, route.canary, route.rejected) == ({"1": 100}, None, [2])
    assert "20.00% of its calls fail" in route.history[0].reason
    report = await trial(aredis, "embed")
    assert report is not None and (report.action, report.rule) == ("rollback", "errors")


async def test_without_auto_it_is_only_reported(
    object_store: ObjectStore, redis: redis_sync.Redis, aredis: redis_async.Redis
) -> None:
    judged = Trial(object_store, redis, aredis, auto=False)
    await judged.calls("embed@1", 90, 0)
    await judged.calls("embed@2", 8, 2)
    route = await judged.look()
    report = await trial(aredis, "embed")
    assert route.canary is not None and report is not None and report.action == "rollback" and not judged.decisions


async def test_one_that_does_not_come_up_is_rolled_back(
    object_store: ObjectStore, redis: redis_sync.Redis, aredis: redis_async.Redis
) -> None:
    judged = Trial(object_store, redis, aredis, auto=True)
    failure = BootFailure(ref="embed@2", code="load_failed", status=500, detail="no", num_failures=1)
    now_s = time.time()
    await live.put_boot_failure(aredis, msgspec.structs.replace(failure, failed_at_s=now_s, retry_at_s=now_s + 9))
    assert (await judged.look()).canary is not None, "once may be bad luck"
    await live.put_boot_failure(aredis, msgspec.structs.replace(failure, num_failures=2, retry_at_s=now_s + 9))
    assert (await judged.look()).rejected == [2]
    assert "boot: it does not come up" in judged.decisions[0].rule


async def test_mirrored_answers_add_up_over_gateways(aredis: redis_async.Redis) -> None:
    assert await mirrored(aredis, "embed@2") is None
    for _ in range(2):
        await add_mirrored(aredis, "embed@2", {"compared": 3, "equal": 2, "different": 1, "path:$.score": 1})
    found = await mirrored(aredis, "embed@2")
    assert found is not None and (found.compared, found.equal, found.different) == (6, 4, 2)
    assert found.paths == {"$.score": 2}
