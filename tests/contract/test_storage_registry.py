"""The registry: numbered versions, routes that lose no update, and an index rebuilt from object storage."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

import msgspec
import pytest
import redis as redis_sync

from samovar.errors import (
    Conflict,
    DeployRefused,
    FunctionNotFound,
    InvalidInput,
    NotFound,
    StoreUnavailable,
    VersionRejected,
)
from samovar.spec import Manifest, Route, Scaling
from samovar_storage import keys, routes
from samovar_storage.live import connect_sync
from samovar_storage.objects import ObjectStore
from samovar_storage.registry import Registry, manifest_key, route_key
from support.listening import listening
from support.versions import store_version


@pytest.fixture
def registry(object_store: ObjectStore, redis: redis_sync.Redis) -> Registry:
    return Registry(object_store, redis)


@pytest.fixture
def manifest(object_store: ObjectStore) -> Manifest:
    return store_version(object_store, version=0)


def together(num_threads: int, work: Callable[[int], None]) -> list[Exception]:
    """Run `work(i)` in threads that start together; return what they raised."""
    barrier = threading.Barrier(num_threads)
    raised: list[Exception] = []

    def run(number: int) -> None:
        barrier.wait()
        try:
            work(number)
        except Exception as error:  # noqa: BLE001 - reported to the test below
            raised.append(error)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(num_threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return raised


def test_versions_are_numbered_and_the_newest_gets_all_traffic(registry: Registry, manifest: Manifest) -> None:
    first, second = registry.publish_version(manifest), registry.publish_version(manifest)
    assert (first.version, second.version) == (1, 2)
    record = registry.record("embed")
    assert record.route.shares == {"2": 100} and record.route.latest == 2
    assert record.manifests == {"1": first, "2": second}, "the one before is kept: it serves until the new one is ready"
    third = registry.publish_version(manifest)
    assert registry.record("embed").manifests == {"2": second, "3": third}
    assert registry.manifest("embed", 1) == first
    assert registry.records().keys() == {"embed"}


def test_subscribers_hear_of_a_deploy(registry: Registry, redis: redis_sync.Redis, manifest: Manifest) -> None:
    with listening(redis, keys.CHANNEL_FUNCTIONS) as subscription:
        registry.publish_version(manifest)
        message = subscription.get_message(timeout=60)
    assert message is not None and message["data"] == b"embed"


def test_deploys_at_once_lose_none(object_store: ObjectStore, redis: redis_sync.Redis, manifest: Manifest) -> None:
    published: list[int] = []

    def deploy(number: int) -> None:
        registry = Registry(object_store, redis)
        published.append(registry.publish_version(msgspec.structs.replace(manifest, entry=f"app:f{number}")).version)

    assert together(6, deploy) == []
    assert sorted(published) == [1, 2, 3, 4, 5, 6]
    registry = Registry(object_store, redis)
    assert {registry.manifest("embed", version).entry for version in published} == {f"app:f{i}" for i in range(6)}
    assert registry.record("embed").route.shares == {"6": 100}


class Unlocked:
    """A Redis whose locks are always granted: the conditional puts alone must keep writers apart."""

    def __init__(self, redis: redis_sync.Redis) -> None:
        self._redis = redis

    def __getattr__(self, name: str) -> object:
        return getattr(self._redis, name)

    def lock(self, *args: object, **kwargs: object) -> object:
        class Granted:
            def acquire(self) -> bool:
                return True

            def release(self) -> None:
                return None

        return Granted()


def test_without_any_lock_nothing_is_lost_either(
    object_store: ObjectStore, redis: redis_sync.Redis, manifest: Manifest
) -> None:
    unlocked: redis_sync.Redis = Unlocked(redis)  # type: ignore[assignment]
    Registry(object_store, unlocked).publish_version(manifest)

    def work(number: int) -> None:
        registry = Registry(object_store, unlocked)
        if number % 2:
            registry.publish_version(msgspec.structs.replace(manifest, entry=f"app:f{number}"))
        else:
            registry.update_route("embed", _count_up)

    assert together(4, work) == []
    route = msgspec.json.decode(object_store.get(route_key("embed"))[0], type=Route)
    assert route.latest == 3 and route.shares == {"3": 100}
    assert route.scaling is not None and route.scaling.max_instances == 10
    assert Registry(object_store, redis).record("embed").route == route


def _count_up(route: Route) -> Route:
    scaling = route.scaling or Scaling()
    return msgspec.structs.replace(route, scaling=Scaling(max_instances=scaling.max_instances + 1))


def test_a_route_change_is_checked(registry: Registry, manifest: Manifest) -> None:
    registry.publish_version(manifest)
    registry.publish_version(manifest)
    split = registry.update_route("embed", lambda route: msgspec.structs.replace(route, shares={"1": 10, "2": 90}))
    assert registry.record("embed").manifests.keys() == {"1", "2"}
    for shares in ({"1": 10}, {"3": 100}, {"x": 100}, {"1": -1, "2": 101}):
        with pytest.raises(InvalidInput):
            registry.update_route("embed", lambda route, s=shares: msgspec.structs.replace(route, shares=s))  # type: ignore[misc]
    assert registry.record("embed").route == split
    with pytest.raises(FunctionNotFound):
        registry.update_route("nobody", lambda route: route)


def test_a_deleted_function_is_gone_and_its_numbers_are_not_reused(
    registry: Registry, object_store: ObjectStore, manifest: Manifest
) -> None:
    registry.publish_version(manifest)
    registry.delete_function("embed")
    for call in (lambda: registry.record("embed"), lambda: registry.delete_function("embed")):
        with pytest.raises(FunctionNotFound):
            call()
    assert object_store.head(manifest_key("embed", 1)) is None
    assert registry.records() == {}
    assert registry.publish_version(manifest).version == 2
    assert registry.record("embed").route.shares == {"2": 100}


def test_route_commands_at_once_lose_none(
    registry: Registry, object_store: ObjectStore, redis: redis_sync.Redis, manifest: Manifest
) -> None:
    for _ in range(3):
        registry.publish_version(manifest)
    author = routes.Author("k", 1.0)
    commands: list[Callable[[Route], Route]] = [
        lambda route: routes.canaried(route, 1, routes.Trial(percent=10), author),
        lambda route: routes.mirrored(route, 2, 5, author),
        lambda route: msgspec.structs.replace(route, scaling=Scaling(max_instances=3)),
    ]

    def work(number: int) -> None:
        Registry(object_store, Unlocked(redis)).update_route("embed", commands[number])  # type: ignore[arg-type]

    assert together(3, work) == []
    route = registry.record("embed").route
    assert route.canary is not None and route.mirror is not None and route.scaling is not None
    assert registry.record("embed").manifests.keys() == {"1", "2", "3"}, "canary, mirror, stable"
    assert sorted(change.what for change in route.history[:2]) == ["canary", "mirror"]


def test_a_rejected_version_cannot_be_routed_by_any_change(registry: Registry, manifest: Manifest) -> None:
    for _ in range(3):
        registry.publish_version(manifest)
    author = routes.Author("k", 1.0)
    registry.update_route("embed", lambda route: routes.rolled_back(route, author))
    assert registry.record("embed").route.shares == {"2": 100}
    with pytest.raises(VersionRejected):
        registry.update_route("embed", lambda route: msgspec.structs.replace(route, shares={"3": 100}))
    with pytest.raises(InvalidInput):
        registry.update_route("embed", lambda route: routes.canaried(route, 9, routes.Trial(percent=10), author))
    assert registry.publish_version(manifest).version == 4, "redeployed, under a new number"
    assert registry.record("embed").route.shares == {"4": 100}


def test_an_impossible_name_is_refused(registry: Registry, manifest: Manifest) -> None:
    with pytest.raises(DeployRefused):
        registry.publish_version(msgspec.structs.replace(manifest, name="../evil"))


def test_a_published_manifest_is_never_overwritten(
    registry: Registry, object_store: ObjectStore, manifest: Manifest
) -> None:
    # a deploy that died between manifest and route left version 1 behind
    object_store.put(manifest_key("embed", 1), b"left behind")
    assert registry.publish_version(manifest).version == 2
    assert object_store.get(manifest_key("embed", 1))[0] == b"left behind"


def test_a_flushed_redis_is_rebuilt_by_one(
    registry: Registry, object_store: ObjectStore, redis: redis_sync.Redis, manifest: Manifest
) -> None:
    for name in ("a", "b", "c"):
        registry.publish_version(msgspec.structs.replace(manifest, name=name))
    registry.delete_function("c")
    key, _ = registry.keys.create("ci", ["deploy"])
    before = registry.records()
    redis.flushdb()
    read: list[int] = []
    assert together(3, lambda _: read.append(Registry(object_store, redis).ensure_built())) == []
    # deleted functions are read too; one caller did all of it
    assert sorted(read) == [0, 0, 3]
    assert registry.records() == before
    assert [record.key_id for record in registry.keys.list()] == [key.key_id]
    assert registry.ensure_built() == 0


def test_a_rebuild_leaves_out_what_it_cannot_read_and_drops_what_is_gone(
    registry: Registry, redis: redis_sync.Redis, object_store: ObjectStore, manifest: Manifest
) -> None:
    for name in ("good", "bad", "gone"):
        registry.publish_version(msgspec.structs.replace(manifest, name=name))
    object_store.put(route_key("bad"), b"{not json")
    object_store.delete(route_key("gone"))
    object_store.put("functions/stray.txt", b"")
    registry.rebuild()
    assert "gone" in registry.records(), "it may be a first deploy under way"
    Registry(object_store, redis, lambda: time.time() + 60).rebuild()
    assert "good" in registry.records() and "gone" not in registry.records()


def test_what_breaks_a_rule_that_came_later_is_left_out_alone(
    registry: Registry, redis: redis_sync.Redis, object_store: ObjectStore, manifest: Manifest
) -> None:
    for name in ("good", "old"):
        registry.publish_version(msgspec.structs.replace(manifest, name=name))
    row, stored = redis.hget(keys.FUNCTIONS, "old"), object_store.get(manifest_key("old", 1))[0]
    assert isinstance(row, bytes)
    redis.hset(keys.FUNCTIONS, "old", row.replace(b'"timeout_s":60.0', b'"timeout_s":-1.0'))
    object_store.put(manifest_key("old", 1), stored.replace(b'"timeout_s":60.0', b'"timeout_s":-1.0'))
    assert registry.records().keys() == {"good"}
    with pytest.raises(Conflict, match="timeout_s is a number of seconds > 0; deploy it again"):
        registry.record("old")
    made = registry.publish_version(msgspec.structs.replace(manifest, name="old"))
    assert made.version == 2
    assert registry.record("old").manifests.keys() == {"2"}, "a good version after it serves"


def test_what_a_crash_left_behind_is_synchronised_at_the_next_start(
    registry: Registry, object_store: ObjectStore, redis: redis_sync.Redis, manifest: Manifest
) -> None:
    registry.rebuild()
    registry.publish_version(manifest)
    # the process died after the conditional put: object storage is ahead of the index, and the name is marked
    data, etag = object_store.get(route_key("embed"))
    route = msgspec.json.decode(data, type=Route)
    ahead = msgspec.structs.replace(route, scaling=Scaling(max_instances=3), updated_at_s=route.updated_at_s + 1)
    redis.sadd(keys.REGISTRY_DIRTY, "embed")
    object_store.put(route_key("embed"), msgspec.json.encode(ahead), if_match=etag)
    assert registry.record("embed").route == route
    assert registry.ensure_built() == 1
    assert registry.record("embed").route == ahead
    assert registry.ensure_built() == 0


def test_a_deploy_without_redis_writes_nothing(object_store: ObjectStore, manifest: Manifest) -> None:
    with pytest.raises(StoreUnavailable):
        Registry(object_store, connect_sync("redis://127.0.0.1:1/0")).publish_version(manifest)
    with pytest.raises(NotFound):
        object_store.get(manifest_key("embed", 1))


def test_a_route_that_never_stands_still_is_a_conflict(
    registry: Registry, object_store: ObjectStore, manifest: Manifest
) -> None:
    registry.publish_version(manifest)

    def meddle(route: Route) -> Route:
        data, _ = object_store.get(route_key("embed"))
        object_store.put(route_key("embed"), data + b" " if data.count(b" ") < 50 else data.strip())
        return route

    with pytest.raises(Conflict):
        registry.update_route("embed", meddle)
