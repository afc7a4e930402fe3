"""Fallback chains and caches through a real gateway: whose answer comes, how it is marked, and who is called."""

from __future__ import annotations

import itertools
import json
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import httpx
import pytest
import redis as redis_sync

from samovar.policies import Cache, Cached, Fallback
from samovar.spec import Limits
from samovar_storage import keys
from samovar_storage.objects import ObjectStore
from support.folders import short_folder
from support.gateway import FakeInstance, Gateway, running_gateway
from support.stores import stores_for_a_test
from support.waiting import wait_until

pytestmark = pytest.mark.process

_numbers = itertools.count()


@pytest.fixture(scope="module")
def gateway(valkey: Any, seaweed: Any) -> Iterator[Gateway]:
    """One gateway for this module; each test deploys functions of its own."""
    stores = stores_for_a_test(valkey, seaweed, 12)
    with redis_sync.Redis.from_url(stores.redis_url) as redis:
        redis.flushdb()
    with short_folder() as folder:
        store = ObjectStore.from_settings(stores.settings(folder))
        store.ensure_bucket()
        with running_gateway(stores, store, folder) as running:
            yield running
        store.close()


@pytest.fixture
def name() -> str:
    return f"f{next(_numbers)}"


@pytest.fixture
def broken(tmp_path: Path) -> Path:
    """While this file exists, calls that name it in "fail_if" fail."""
    return tmp_path / "broken"


def served(gateway: Gateway, name: str, concurrency: int = 4, **policies: Any) -> FakeInstance:
    ref = gateway.deploy(name, **policies).ref
    return gateway.start_instance(ref, concurrency)


def counted(gateway: Gateway, metric: str, name: str, **labels: str) -> float:
    """Return the sum of a metric's samples of a function that carry these labels."""
    wanted = [f'function="{name}"', *(f'{label}="{value}"' for label, value in labels.items())]
    lines = gateway.client.get("/metrics").text.splitlines()
    return sum(
        float(line.rpartition(" ")[2])
        for line in lines
        if line.startswith(metric + "{") and all(part in line for part in wanted)
    )


def is_kept(gateway: Gateway, name: str, count: int = 1) -> None:
    wait_until(lambda: gateway.redis.zcard(keys.answers_of(name)) >= count, what="answer kept in Redis")


def test_a_failure_is_answered_with_the_last_good_answer(gateway: Gateway, name: str, broken: Path) -> None:
    served(gateway, name, fallback=Fallback(cached=Cached()))
    body = {"fail_if": str(broken), "q": 1}
    good = gateway.invoke(name, body)
    assert good.status_code == 200, good.text
    assert "samovar-fallback" not in good.headers
    is_kept(gateway, name)
    broken.touch()
    same_input = b'{ "q": 1,  "fail_if": ' + json.dumps(str(broken)).encode() + b"}"
    stale = gateway.invoke(name, same_input)
    assert (stale.status_code, stale.json()) == (200, good.json())
    assert stale.headers["samovar-fallback"] == "cached"
    assert stale.headers["cache-status"] == "samovar; fwd=stale; fwd-status=500; detail=function_raised"
    assert 0 <= int(stale.headers["age"]) < 60
    assert stale.headers["samovar-version"] == "1"
    assert stale.headers["content-type"] == "application/json"
    other = gateway.invoke(name, body | {"q": 2})
    assert (other.status_code, other.json()["code"]) == (500, "function_raised")
    assert counted(gateway, "samovar_fallbacks_total", name, by="cached") == 1
    assert counted(gateway, "samovar_fallbacks_total", name, by="none") == 1
