"""A real gateway process over the session's stores, with stand-in instances that tests start and kill."""

from __future__ import annotations

import itertools
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import httpx
import msgspec
import redis as redis_sync

from samovar.spec import BlobRef, Limits, Manifest, Scaling
from samovar_storage import keys
from samovar_storage.objects import ObjectStore
from samovar_storage.records import InstanceRecord, dumps
from samovar_storage.registry import Registry
from support.processes import running
from support.stores import Stores
from support.waiting import PATIENCE_S, wait_until

ADMIN_KEY = "sv_0123456789ab_adminsecretadminsecret"
FAKE_INSTANCE = Path(__file__).with_name("fake_instance.py")
TOKEN = "instance-token"
_numbers = itertools.count(1)


def environment() -> dict[str, str]:
    """Return an environment without settings of ours."""
    return {name: value for name, value in os.environ.items() if not name.startswith("SAMOVAR_")}


def manifest(name: str = "echo", **more: Any) -> Manifest:
    """Return a version that only fake instances can serve."""
    fields: dict[str, Any] = {"entry": "app:f", "kind": "function", "handler": "sync"} | more
    return Manifest(name=name, version=0, code=BlobRef(sha256="0" * 64, size_bytes=1), **fields)


class Gateway:
    """A running gateway. client: speaks to it with the admin key. redis_url, objects: the stores it is on."""

    def __init__(self, url: str, process: subprocess.Popen[bytes], stores: Stores, store: ObjectStore, run: Path):
        self.url = url
        self.process = process
        self.client = httpx.Client(base_url=url, headers={"authorization": f"Bearer {ADMIN_KEY}"}, timeout=PATIENCE_S)
        self.redis_url = stores.redis_url
        self.objects = store
        self.redis = redis_sync.Redis.from_url(stores.redis_url)
        self.registry = Registry(store, self.redis)
        self._run = run
        self._stack = ExitStack()

    def deploy(self, name: str = "echo", limits: Limits | None = None, **more: Any) -> Manifest:
        """Publish a version and wait until the gateway knows it."""
        wanted = manifest(name, limits=limits or Limits(timeout_s=10.0), scaling=Scaling(), **more)
        published = self.registry.publish_version(wanted)
        wait_until(lambda: self.client.get(f"/v1/functions/{name}/invoke").status_code == 405, what="routed")
        return published

    def start_instance(self, ref: str, concurrency: int = 1, announce: bool = True) -> FakeInstance:
        """Start a stand-in instance of `ref` and, unless told otherwise, announce it as ready."""
        instance = FakeInstance(f"i{next(_numbers)}", ref, concurrency, self._run, self.redis)
        self._stack.enter_context(instance.process())
        if announce:
            instance.announce()
        return instance

    def invoke(self, name: str = "echo", body: Any = None, **headers: str) -> httpx.Response:
        """Call a function; header names are written with underscores."""
        sent = {key.replace("_", "-"): value for key, value in headers.items()}
        content = body if isinstance(body, bytes) else json.dumps(body or {}).encode()
        return self.client.post(f"/v1/functions/{name}/invoke", content=content, headers=sent)

    def raw(self, name: str, body: bytes, head: bytes = b"", length: int | None = None) -> bytes:
        """Return the bytes of an invocation, to be sent as a test likes. head: further header lines."""
        length = len(body) if length is None else length
        lines = [
            b"POST /v1/functions/%s/invoke HTTP/1.1" % name.encode(),
            b"host: x",
            b"authorization: Bearer " + ADMIN_KEY.encode(),
            b"content-length: %d" % length,
        ]
        return b"\r\n".join(lines) + b"\r\n" + head + b"\r\n" + body

    def connect(self) -> socket.socket:
        """Return a bare connection."""
        host, port = self.url.removeprefix("http://").split(":")
        return socket.create_connection((host, int(port)), timeout=PATIENCE_S)

    def metric(self, name: str) -> float:
        """Return the sum of a metric over the labels that `name` does not give."""
        name, _, given = name.partition("{")
        wanted = given.rstrip("}").split(",") if given else []
        lines = self.client.get("/metrics").text.splitlines()
        found = [line for line in lines if line.startswith((name + "{", name + " ")) and all(w in line for w in wanted)]
        return sum(float(line.rpartition(" ")[2]) for line in found)

    @property
    def grpc(self) -> str:
        """Where it speaks gRPC: host and port."""
        return (self._run / "gateway.log").read_text().partition("serving grpc://")[2].partition("\n")[0]

    def close(self) -> None:
        """End the stand-ins and close the clients."""
        self._stack.close()
        self.client.close()
        self.redis.close()


class FakeInstance:
    """One stand-in instance process and its record."""

    def __init__(self, instance_id: str, ref: str, concurrency: int, run: Path, redis: redis_sync.Redis) -> None:
        self.socket = run / f"{instance_id}.sock"
        self.record = InstanceRecord(
            instance_id=instance_id,
            state="ready",
            ref=ref,
            address=f"unix:{self.socket}",
            token=TOKEN,
            concurrency=concurrency,
            boot_ms={"claim": 1.0, "fetch": 2.0, "import": 3.0, "load": 4.0, "warmup": 5.0},
        )
        self._redis = redis
        self._log = run / f"{instance_id}.log"

    @contextmanager
    def process(self) -> Iterator[None]:
        """Run it for the body of a `with`."""
        arguments = [str(self.socket), self.record.ref, TOKEN, str(self.record.concurrency)]
        command = [sys.executable, "-P", str(FAKE_INSTANCE), *arguments]
        with running(command, self._log, grace_s=2.0) as self.popen:
            wait_until(self.socket.exists, what="instance socket")
            yield

    def behave(self, **mode: Any) -> dict[str, int]:
        """From now on every call is as if its body also said `mode`; return what it has seen: calls, checks."""
        self.socket.with_suffix(".mode").write_text(json.dumps(mode))
        seen = self.socket.with_suffix(".seen")
        seen.unlink(missing_ok=True)
        self.popen.send_signal(signal.SIGUSR1)
        wait_until(seen.exists, what="the mode was taken")
        found: dict[str, int] = json.loads(seen.read_text())
        return found

    def announce(self, state: str = "ready", ended: str = "") -> None:
        """Write and publish the record as the pool manager would."""
        record = msgspec.structs.replace(self.record, state=state, ended=ended)
        if state == "gone":
            self._redis.hdel(keys.INSTANCES, record.instance_id)
        else:
            self._redis.hset(keys.INSTANCES, record.instance_id, dumps(record))
        self._redis.publish(keys.CHANNEL_INSTANCES, dumps(record))


@contextmanager
def running_gateway(stores: Stores, store: ObjectStore, run: Path, **more: Any) -> Iterator[Gateway]:
    """A ready gateway for the body of a `with`. more: settings."""
    data = run / "data"
    data.mkdir(mode=0o700, exist_ok=True)
    values = {"port": 0, "admin_key": ADMIN_KEY} | more
    config = stores.write_settings_file(run / "settings.json", data, **values)
    log = run / "gateway.log"
    with running([sys.executable, "-m", "samovar_gateway", "--config", str(config)], log, environment()) as process:
        url = wait_until(lambda: _url(log, process), what="gateway listens")
        gateway = Gateway(url, process, stores, store, run)
        try:
            wait_until(lambda: httpx.get(url + "/readyz", timeout=PATIENCE_S).status_code == 200, what="gateway ready")
            yield gateway
        finally:
            gateway.close()


def _url(log: Path, process: subprocess.Popen[bytes]) -> str:
    text = log.read_text()
    assert process.poll() is None, text
    return "http" + text.partition("listening on http")[2].partition("\n")[0] if "listening on" in text else ""


def milliseconds(timing: str) -> dict[str, float]:
    """Return phase → milliseconds of a Server-Timing header."""
    parts = (part.strip().partition(";dur=") for part in timing.split(","))
    return {name: float(value) for name, _, value in parts}


def now_s() -> float:
    """Return unix seconds, as records hold them."""
    return time.time()
