"""A job's answer is its invocation's: the same function called directly, with `Prefer`, and by `…/result`."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from typing import Any

import httpx
import pytest
import redis as redis_sync

from samovar_storage import keys
from samovar_storage.objects import ObjectStore
from support.folders import short_folder
from support.gateway import Gateway, environment, running_gateway
from support.processes import running
from support.stores import stores_for_a_test
from support.waiting import wait_until

pytestmark = pytest.mark.process

OF_A_CALL = ("request_id", "job", "pid", "answers", "ms")  # differ between any two calls


@pytest.fixture(scope="module")
def gateway(valkey: Any, seaweed: Any) -> Iterator[Gateway]:
    """A gateway, a job worker and an instance."""
    stores = stores_for_a_test(valkey, seaweed, 11)
    with redis_sync.Redis.from_url(stores.redis_url) as redis:
        redis.flushdb()
    with short_folder() as folder:
        store = ObjectStore.from_settings(stores.settings(folder))
        store.ensure_bucket()
        with running_gateway(stores, store, folder) as gateway:
            gateway.start_instance(gateway.deploy("echo").ref, 4)
            gateway.start_instance(gateway.deploy("streams", handler="generator").ref, 4)
            (folder / "worker").mkdir(mode=0o700)
            config = stores.write_settings_file(folder / "worker.json", folder / "worker")
            command = [sys.executable, "-P", "-m", "samovar_jobs", "--config", str(config)]
            with running(command, folder / "worker.log", environment()):
                wait_until(lambda: gateway.redis.hlen(keys.JOBS_WORKERS), 30, "the worker beats")
                yield gateway
        store.close()


def alike(answer: httpx.Response) -> Any:
    """Return what is the same for each call with the same input."""
    kind = answer.headers["content-type"]
    if "json" not in kind or "ndjson" in kind:
        return answer.status_code, kind, answer.content
    content = answer.json()
    if isinstance(content, dict):
        content = {name: value for name, value in content.items() if name not in OF_A_CALL}
    return answer.status_code, kind, content


@pytest.mark.parametrize(
    ("name", "body"),
    [
        ("echo", b'{"x": [1, 2, 3]}'),
        ("echo", b'{"fail": "no", "code": "function_raised", "status": 500}'),
        ("echo", b'{"fail": "no", "code": "invalid_input", "status": 422}'),
        ("streams", b'{"stream": 3}'),
    ],
)
def test_whichever_way_it_is_asked(gateway: Gateway, name: str, body: bytes) -> None:
    direct = gateway.invoke(name, body)
    preferred = gateway.invoke(name, body, prefer="respond-async, wait=30")
    assert preferred.headers.get("preference-applied") == "wait=30", preferred.text
    assert alike(preferred) == alike(direct)
    assert preferred.headers["samovar-version"] == "1"
    job = gateway.client.post(f"/v1/functions/{name}/jobs", content=b'{"input": ' + body + b"}").json()
    seen = gateway.client.get(f"/v1/jobs/{job['id']}", params={"wait_s": "30"}).json()
    assert seen["state"] == ("finished" if direct.status_code == 200 else "failed")
    assert alike(gateway.client.get(f"/v1/jobs/{job['id']}/result")) == alike(direct)


def test_a_job_that_is_preferred_goes_on_when_the_caller_leaves(gateway: Gateway) -> None:
    with pytest.raises(httpx.ReadTimeout):
        gateway.client.post(
            "/v1/functions/echo/invoke",
            json={"sleep_s": 1.0},
            headers={"prefer": "respond-async, wait=30"},
            timeout=httpx.Timeout(5, read=0.3),
        )
    (job, *_) = gateway.client.get("/v1/jobs").json()["jobs"]
    seen = gateway.client.get(f"/v1/jobs/{job['id']}", params={"wait_s": "30"}).json()
    assert seen["state"] == "finished"
