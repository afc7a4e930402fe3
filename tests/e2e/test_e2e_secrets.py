"""Planted secrets, in redacted paths and in headers, are in nothing that the platform keeps, prints or counts."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from pathlib import Path

import httpx
import pyarrow.parquet as pq
import pytest
import redis as redis_sync

from support.journeys import Caller
from support.platform import Platform
from support.waiting import wait_until

pytestmark = pytest.mark.e2e

TOKEN, KEY, BROKEN, HEADER = (f"planted{kind}0c4e1f" for kind in ("token", "itemkey", "broken", "header"))
PLANTED = (TOKEN, KEY, BROKEN, HEADER)
NAME = "keeps-secrets"
# what only its owner may read, and where the platform's own keys have to be
PRIVATE = ("settings.json", "connection.json")


def calls(caller: Caller, api_key: str) -> list[int]:
    """Make calls of every kind with secrets where the function's author said that secrets are."""
    good = {"user": {"name": "ann", "token": TOKEN}, "items": [{"key": KEY, "n": 1}, {"key": [KEY]}, KEY]}
    bodies = [
        json.dumps(good),
        json.dumps({"user": {"name": "nobody", "token": TOKEN}}),
        json.dumps({"user": {"name": "bob", "token": {"inner": [TOKEN]}}, "items": {"key": KEY}}),
        f'{{"user": {{"token": "{BROKEN}"',
    ]
    headers = {"authorization": f"Bearer {api_key}", "cookie": HEADER, "x-custom-secret": HEADER}
    return [
        caller.http.post(f"/v1/functions/{NAME}/invoke", content=body, headers=headers).status_code for body in bodies
    ]


def found_in(data: bytes, planted: tuple[str, ...]) -> list[str]:
    return [secret for secret in planted if secret.encode() in data]


def kept_files(platform: Platform) -> Iterator[Path]:
    for path in platform.data_dir.rglob("*"):
        if path.is_file() and path.name not in PRIVATE and "templates" not in path.parts:
            yield path


def test_no_planted_secret_is_anywhere(platform: Platform, caller: Caller, tmp_path: Path) -> None:
    caller.deploy("keeps_secrets")
    made = caller.http.post("/v1/keys", json={"name": "caller", "scopes": ["invoke"]}).raise_for_status().json()
    secret = made["key"].rpartition("_")[2]
    planted = (*PLANTED, secret)
    started_s = time.time() - 1
    assert calls(caller, made["key"]) == [200, 500, 422, 400]

    def records() -> list[dict[str, object]]:
        answer = caller.http.get(f"/v1/functions/{NAME}/requests", params={"since_s": started_s}).raise_for_status()
        assert found_in(answer.content, planted) == []
        return list(answer.json()["records"])

    # the records are there, with what was not secret
    shown = wait_until(lambda: kept if len(kept := records()) == 4 else None, what="every record")
    by_status = {record["status"]: record for record in shown}
    assert '"name":"ann"' in by_status[200]["payload"] and '"key":"[redacted]"' in by_status[200]["payload"]
    assert '"token":"[redacted]"' in by_status[200]["answer"]
    assert by_status[400]["payload_form"] == "hash"
    # the files of the log
    links = caller.http.get(f"/v1/functions/{NAME}/requests/files", params={"since_s": started_s}).json()["files"]
    assert links
    for number, link in enumerate(links):
        path = tmp_path / f"{number}.parquet"
        path.write_bytes(httpx.get(link["url"], trust_env=False).raise_for_status().content)
        assert found_in(json.dumps(pq.read_table(path).to_pylist(), default=str).encode(), planted) == []
    # what the gateway counts
    assert found_in(caller.http.get("/metrics").content, planted) == []
    # every key of Redis
    settings = json.loads((platform.data_dir / "settings.json").read_bytes())
    with redis_sync.Redis.from_url(settings["redis_url"]) as redis:
        for key in redis.scan_iter(count=1000):
            assert found_in(redis.dump(key) or b"", planted) == [], key
    # the folder: object store, append-only file, spool, logs of every process
    leaks = {str(path): found for path in kept_files(platform) if (found := found_in(_bytes(path), planted))}
    assert leaks == {}


def _bytes(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError:  # gone meanwhile, or a socket
        return b""
