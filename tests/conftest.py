"""Fixtures of all tests: one real Valkey and one real SeaweedFS per session, a database and a bucket per test."""

from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import redis as redis_sync
import redis.asyncio as redis_async
from hypothesis import HealthCheck, settings

from samovar_storage.embedded import EmbeddedSeaweed, EmbeddedValkey
from samovar_storage.jobs.redis_jobs import RedisJobs
from samovar_storage.live import connect_async, connect_sync
from samovar_storage.objects import ObjectStore
from support.folders import short_folder
from support.processes import running
from support.stores import Stores, stores_for_a_test

_numbers = itertools.count()

# how long an example takes is the machine's business: a slow one is no failure
settings.register_profile("any machine", deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("any machine")


@pytest.fixture(scope="session")
def services_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The data folder of the session's two servers."""
    return tmp_path_factory.mktemp("services")


@pytest.fixture(scope="session")
def valkey(services_dir: Path) -> Iterator[EmbeddedValkey]:
    """A running Valkey, started once."""
    server = EmbeddedValkey(services_dir)
    with running(server.command(), services_dir / "valkey.log", server.environment(), server.stop_grace_s):
        server.wait_ready(20)
        yield server


@pytest.fixture(scope="session")
def seaweed(services_dir: Path) -> Iterator[EmbeddedSeaweed]:
    """A running SeaweedFS, started once."""
    server = EmbeddedSeaweed(services_dir)
    with running(server.command(), services_dir / "seaweedfs.log", server.environment(), server.stop_grace_s):
        server.wait_ready(60)
        yield server


@pytest.fixture
def stores(valkey: EmbeddedValkey, seaweed: EmbeddedSeaweed) -> Stores:
    """An empty database and a bucket of this test's own (not created yet; `object_store` and the gateway do)."""
    stores = stores_for_a_test(valkey, seaweed, next(_numbers))
    with redis_sync.Redis.from_url(stores.redis_url) as redis:
        redis.flushdb()
    return stores


@pytest.fixture
def object_store(stores: Stores, tmp_path: Path) -> Iterator[ObjectStore]:
    """This test's bucket, created."""
    store = ObjectStore.from_settings(stores.settings(tmp_path))
    store.ensure_bucket()
    yield store
    store.close()


@pytest.fixture
def redis(stores: Stores) -> Iterator[redis_sync.Redis]:
    """This test's database, blocking client."""
    client = connect_sync(stores.redis_url)
    yield client
    client.close()


@pytest.fixture
async def aredis(stores: Stores) -> AsyncIterator[redis_async.Redis]:
    """This test's database, asyncio client."""
    client = connect_async(stores.redis_url)
    yield client
    await client.aclose()


@pytest.fixture(scope="session")
def any_bucket(valkey: EmbeddedValkey, seaweed: EmbeddedSeaweed, services_dir: Path) -> Iterator[ObjectStore]:
    """An object store whose connections tests may share: making a client takes longer than most tests."""
    store = ObjectStore.from_settings(stores_for_a_test(valkey, seaweed, 0).settings(services_dir))
    yield store
    store.close()


@pytest.fixture
def jobs(aredis: redis_async.Redis, any_bucket: ObjectStore, stores: Stores) -> RedisJobs:
    """The store of jobs over this test's database and bucket; large payloads need `object_store`, which creates it."""
    return RedisJobs(aredis, ObjectStore(any_bucket._client, stores.s3_bucket))


@pytest.fixture
def settings_file(stores: Stores, tmp_path: Path) -> Callable[..., Path]:
    """Write a 0600 settings file for `--config` that points at this test's stores: `settings_file(port=0, …)`."""

    def write(data_dir: Path | None = None, **more: Any) -> Path:
        folder = data_dir or tmp_path / "data"
        folder.mkdir(mode=0o700, exist_ok=True)
        return stores.write_settings_file(tmp_path / "settings.json", folder, **more)

    return write


@pytest.fixture
def short_path() -> Iterator[Path]:
    """A fresh folder whose path leaves room for Unix sockets."""
    with short_folder() as folder:
        yield folder
