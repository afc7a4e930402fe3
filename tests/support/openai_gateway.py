"""A gateway with real instances of functions behind it, for clients of OpenAI's API."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import msgspec
import redis as redis_sync
from openai import AsyncOpenAI, OpenAI

from samovar.inspection import inspect_file
from samovar.spec import BlobRef, Manifest
from samovar_storage import keys
from samovar_storage.objects import ObjectStore
from samovar_storage.records import InstanceRecord, dumps
from support.folders import short_folder
from support.gateway import ADMIN_KEY, Gateway, running_gateway
from support.instance_driver import FUNCTIONS, TOKEN, Instance, Zygote
from support.stores import stores_for_a_test
from support.waiting import wait_until

DATABASE = 13


class Platform:
    """A gateway, and instances that a zygote forks. instances: by function."""

    def __init__(self, gateway: Gateway, zygote: Zygote, redis: redis_sync.Redis, folder: Path) -> None:
        self.gateway = gateway
        self.folder = folder
        self.instances: dict[str, Instance] = {}
        self._zygote = zygote
        self._redis = redis

    def deploy(self, folder: Path, **changes: Any) -> Manifest:
        """Publish the function in a folder, without an instance. changes: to its manifest."""
        draft = msgspec.structs.replace(manifest_of(folder), code=BlobRef(sha256="0" * 64, size_bytes=1), **changes)
        published = self.gateway.registry.publish_version(draft)
        invoke = f"/v1/functions/{published.name}/invoke"
        wait_until(lambda: self.gateway.client.get(invoke).status_code == 405, what="routed")
        return published

    def serve(self, function: str, **changes: Any) -> Instance:
        """Publish one of the tests' functions and start an instance of it. changes: to its manifest."""
        folder = FUNCTIONS / function
        return self.start(self.deploy(folder, **changes).ref, folder)

    def start(self, ref: str, folder: Path, weights: Path | None = None) -> Instance:
        """Start an instance of a version."""
        name, _, version = ref.partition("@")
        instance = self._zygote.fork()
        answer = instance.specialise(folder, weights=weights, name=name, version=int(version))
        assert instance.ready is not None, f"{answer}\n{instance.log_text()}"
        record = InstanceRecord(
            instance_id=f"real-{instance.pid}",
            state="ready",
            ref=ref,
            address=instance.address,
            token=TOKEN,
            concurrency=instance.connect().welcome.concurrency,
            boot_ms={},
        )
        self._redis.hset(keys.INSTANCES, record.instance_id, dumps(record))
        self._redis.publish(keys.CHANNEL_INSTANCES, dumps(record))
        self.instances[name] = instance
        return instance

    def client(self, key: str = ADMIN_KEY, **options: Any) -> OpenAI:
        """Return OpenAI's own client of this gateway."""
        return OpenAI(base_url=self.gateway.url + "/v1", api_key=key, **{"max_retries": 0, "timeout": 30} | options)

    def async_client(self, **options: Any) -> AsyncOpenAI:
        """Return OpenAI's own client of this gateway, for coroutines."""
        url = self.gateway.url + "/v1"
        return AsyncOpenAI(base_url=url, api_key=ADMIN_KEY, **{"max_retries": 0, "timeout": 30} | options)


def manifest_of(folder: Path) -> Manifest:
    """Return the manifest of the function in a folder as `samovar deploy` drafts it."""
    try:
        return inspect_file(str(folder)).manifest
    finally:
        sys.modules.pop("app", None)


@contextmanager
def running_platform(valkey: Any, seaweed: Any, zygote: Zygote, *functions: str, **settings: Any) -> Iterator[Platform]:
    """A platform for the body of a `with`; what the zygote has forked by then is ended with it.

    functions: of the tests', each with an instance. settings: of the gateway.
    """
    stores = stores_for_a_test(valkey, seaweed, DATABASE)
    with redis_sync.Redis.from_url(stores.redis_url) as redis, short_folder() as folder:
        redis.flushdb()
        store = ObjectStore.from_settings(stores.settings(folder))
        store.ensure_bucket()
        with running_gateway(stores, store, folder, **settings) as gateway:
            platform = Platform(gateway, zygote, redis, folder)
            for function in functions:
                platform.serve(function)
            yield platform
        store.close()
    zygote.clean()
