"""Stores that answer with errors or slowly, and a disk that is full, under somebody else's load.

The platform runs on a Redis and an S3 "of its own", which are the session's behind proxies, and its node cache lies on
a file system of a few MiB.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from samovar.errors import SamovarError
from samovar_storage.embedded import EmbeddedSeaweed, EmbeddedValkey
from support.faults import Bystander, Row, answers, loaded, timed_call
from support.flaky_store import FlakyStore, flaky_store
from support.folders import short_folder
from support.journeys import Caller
from support.platform import Platform, end, environment, start, wait_ready
from support.small_disk import within_small_disk
from support.stores import stores_for_a_test
from support.waiting import wait_until

pytestmark = pytest.mark.e2e

MIB = 1 << 20
CACHE_DISK_BYTES = 24 * MIB
TOO_LARGE_BYTES = 40 * MIB
SLOW_S = 5.0


@dataclass(frozen=True)
class Setup:
    """The platform, and the proxies in front of its stores."""

    platform: Platform
    caller: Caller
    redis: FlakyStore
    s3: FlakyStore


@pytest.fixture(scope="module")
def setup(valkey: EmbeddedValkey, seaweed: EmbeddedSeaweed) -> Iterator[Setup]:
    """A platform on stores that do as they are told."""
    stores = stores_for_a_test(valkey, seaweed, 0)
    with short_folder() as folder, flaky_store(stores.redis_url) as redis, flaky_store(stores.s3_endpoint) as s3:
        environ = environment(
            SAMOVAR_REDIS_URL=redis.url,
            SAMOVAR_S3_ACCESS_KEY=stores.s3_access_key,
            SAMOVAR_S3_SECRET_KEY=stores.s3_secret_key,
        )
        data_dir = folder / "data"
        data_dir.mkdir(mode=0o700)
        platform = start(
            data_dir,
            *("--s3-endpoint", s3.url, "--s3-bucket", stores.s3_bucket),
            environ=environ,
            within=within_small_disk(data_dir / "cache", CACHE_DISK_BYTES),
        )
        try:
            with Caller.of(wait_ready(platform)) as caller:
                yield Setup(platform, caller, redis, s3)
        finally:
            redis.delay_s = s3.delay_s = 0.0
            s3.answers_500 = False
            end(platform)


@pytest.fixture(scope="module")
def watched(setup: Setup, rows: list[Row]) -> Iterator[Bystander]:
    """The other function, called all the while."""
    setup.caller.deploy("breaks", "idle")
    setup.caller.answer("idle", {"deed": "answer"})
    with loaded(setup.platform, setup.caller, rows) as found:
        yield found


def refusal_of_a_deploy(caller: Caller, name: str) -> str:
    """Try to deploy; return the code that the person gets, "" if it worked."""
    try:
        caller.deploy("echo_sum", name)
    except SamovarError as error:
        return error.code
    return ""


def test_object_storage_answers_500(setup: Setup, watched: Bystander) -> None:
    with watched.watch("object storage answers 500, until a deploy works after it") as row:
        setup.s3.answers_500 = True
        try:
            assert refusal_of_a_deploy(setup.caller, "during-500") == "store_unavailable"
            assert setup.caller.answer("idle", {"deed": "answer"}) == "done"
        finally:
            setup.s3.answers_500 = False
        back_s = time.monotonic()
        wait_until(lambda: not refusal_of_a_deploy(setup.caller, "after-500"), what="a deploy")
        assert setup.caller.answer("after-500", {"values": [1]}) == 1
        row.recovery_s = time.monotonic() - back_s


def test_object_storage_takes_five_seconds(setup: Setup, watched: Bystander) -> None:
    with watched.watch("object storage takes 5 s a request, until a deploy works after it") as row:
        setup.s3.delay_s = SLOW_S
        try:
            created = setup.caller.http.post("/v1/keys", json={"name": "slow", "scopes": ["invoke"], "functions": []})
            assert created.status_code in (201, 503), created.text
            assert setup.caller.answer("idle", {"deed": "answer"}) == "done"
        finally:
            setup.s3.delay_s = 0.0
        back_s = time.monotonic()
        wait_until(lambda: not refusal_of_a_deploy(setup.caller, "after-slow"), what="a deploy")
        row.recovery_s = time.monotonic() - back_s


def test_redis_takes_five_seconds(setup: Setup, watched: Bystander) -> None:
    """A call that needs a new instance waits in vain, to its deadline; calls of functions that run go on."""
    setup.caller.deploy("echo_sum", "asleep")
    with watched.watch("Redis takes 5 s a command, until a cold start works after it") as row:
        setup.redis.delay_s = SLOW_S
        try:
            assert setup.caller.answer("idle", {"deed": "answer"}) == "done"
            assert timed_call(setup.caller, "asleep", {"values": [1]}, 3.0).code in ("ok", "deadline_exceeded")
        finally:
            setup.redis.delay_s = 0.0
        back_s = time.monotonic()
        wait_until(lambda: answers(setup.caller, "asleep", {"values": [1]}), what="a cold start")
        row.recovery_s = time.monotonic() - back_s


def test_the_disk_of_the_cache_is_full(setup: Setup, watched: Bystander, tmp_path: Path) -> None:
    """Whose files do not fit is told so; everybody else goes on, newcomers that fit included."""
    model = tmp_path / "large" / "model"
    model.mkdir(parents=True)
    (model / "w.safetensors").write_bytes(os.urandom(TOO_LARGE_BYTES))
    (tmp_path / "large" / "app.py").write_text(
        "import samovar as sv\n"
        "@sv.function(name='large', weights=sv.Weights('model'))\n"
        "class Large:\n"
        "    def load(self, weights, device):\n"
        "        pass\n"
        "    def __call__(self) -> str:\n"
        "        return 'fits'\n"
    )
    setup.caller.deploy(tmp_path / "large")
    with watched.watch("the disk of the node cache is full") as row:
        ended = timed_call(setup.caller, "large", {}, 60.0)
        assert ended.code == "disk_full", ended
        assert refusal_of_a_deploy(setup.caller, "fits") == ""
        assert setup.caller.answer("fits", {"values": [1]}) == 1
        row.recovered()
