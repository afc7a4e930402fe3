"""The request log of a gateway whose object store goes away, which is killed meanwhile, and starts again."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import redis as redis_sync

from samovar.spec import Limits
from samovar_storage import keys
from samovar_storage.embedded import EmbeddedSeaweed
from samovar_storage.objects import ObjectStore
from samovar_storage.requestlog import spool
from support.gateway import Gateway, running_gateway
from support.processes import running
from support.stores import Stores
from support.waiting import wait_until

pytestmark = pytest.mark.process


@pytest.fixture
def own_seaweed(short_path: Path) -> Iterator[EmbeddedSeaweed]:
    """A SeaweedFS of this test's own, not started."""
    folder = short_path / "seaweed"
    folder.mkdir(mode=0o700)
    yield EmbeddedSeaweed(folder)


def started(server: EmbeddedSeaweed, log: Path) -> Any:
    return running(server.command(), log, server.environment(), server.stop_grace_s)


def found(gateway: Gateway) -> tuple[int, list[str]]:
    """Return how many answered calls have a record, and the stores that did not answer."""
    answer = gateway.client.get(
        "/v1/functions/echo/requests", params={"status": "200", "limit": 1000}, timeout=90
    ).json()
    numbers = [record["request_id"] for record in answer["records"]]
    assert len(numbers) == len(set(numbers)), "no record twice"
    return len(numbers), answer["missing"]


def call(gateway: Gateway, *numbers: int) -> None:
    for number in numbers:
        assert gateway.invoke(body={"x": [number]}, x_request_id=f"r{number}").status_code == 200


def test_records_outlive_the_store_and_the_gateway(
    stores: Stores, own_seaweed: EmbeddedSeaweed, short_path: Path
) -> None:
    mine = replace(
        stores,
        s3_endpoint=own_seaweed.endpoint,
        s3_access_key=own_seaweed.access_key,
        s3_secret_key=own_seaweed.secret_key,
    )
    log, run = short_path / "weed.log", short_path / "run"
    run.mkdir()
    folder = run / "data" / "request-log"
    with started(own_seaweed, log):
        own_seaweed.wait_ready(60)
        store = ObjectStore.from_settings(mine.settings(run))
        store.ensure_bucket()
        first = running_gateway(mine, store, run)
        gateway = first.__enter__()
        version = gateway.deploy(limits=Limits(timeout_s=10.0))
        gateway.start_instance(version.ref)
        call(gateway, 0, 1)
        assert found(gateway) == (2, [])
    # the store is away: calls go on, their records are in the spool and still shown from Redis
    call(gateway, 2, 3)
    wait_until(lambda: gateway.metric("samovar_request_log_written_total") >= 4, what="written to the spool")
    assert found(gateway) == (4, ["object storage"])
    wait_until(lambda: spool.spooled_bytes(folder) > 0, what="the spool holds them")
    # the gateway is killed, with all that it had not written within half a second at the most
    os.kill(gateway.process.pid, signal.SIGKILL)
    gateway.process.wait(60)
    first.__exit__(None, None, None)
    (run / "gateway.log").unlink()
    with redis_sync.Redis.from_url(mine.redis_url) as redis:
        redis.flushdb()
    assert spool.spooled_bytes(folder) > 0
    with started(own_seaweed, log):
        own_seaweed.wait_ready(60)
        with running_gateway(mine, store, run) as gateway:
            wait_until(lambda: found(gateway) == (4, []), what="every record is in object storage")
            assert wait_until(lambda: not [*folder.glob("*.ready")], what="the spool is shipped")
            assert gateway.metric("samovar_request_log_shipped_total") >= 4
    store.close()


def test_what_the_spool_cannot_take_is_counted_and_shown_while_calls_go_on(
    stores: Stores, object_store: ObjectStore, short_path: Path
) -> None:
    with running_gateway(stores, object_store, short_path, request_log_spool_bytes=0) as gateway:
        version = gateway.deploy()
        gateway.start_instance(version.ref)
        call(gateway, *range(20))
        wait_until(lambda: gateway.metric("samovar_request_log_dropped_total") >= 20, what="counted")
        assert gateway.metric("samovar_request_log_written_total") == 0
        assert found(gateway) == (20, []), "Redis has them"


def test_a_log_that_is_off_keeps_nothing(stores: Stores, object_store: ObjectStore, short_path: Path) -> None:
    with running_gateway(stores, object_store, short_path, request_log=False) as gateway:
        version = gateway.deploy()
        gateway.start_instance(version.ref)
        call(gateway, *range(20))
        wait_until(lambda: gateway.redis.exists(keys.traffic(version.ref)), what="traffic is counted all the same")
        assert found(gateway) == (0, [])
        assert gateway.metric("samovar_request_log_dropped_total") == 0
