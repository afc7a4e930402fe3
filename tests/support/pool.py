"""A real pool manager for tests: started on a test's stores, with helpers to deploy, demand and look."""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import socket
import subprocess
import sys
import time
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import redis as redis_sync

from samovar import bundle, wire
from samovar.inspection import inspect_file
from samovar.spec import BlobRef, FileRef, Manifest, Scaling
from samovar_pool.backends.rundir import Note, RunDir
from samovar_storage import keys
from samovar_storage.blobs import blob_key
from samovar_storage.live import connect_sync
from samovar_storage.objects import ObjectStore
from samovar_storage.readable import readable_rows
from samovar_storage.records import (
    BootFailure,
    Decision,
    Demand,
    InstanceRecord,
    LogLine,
    NodeStatus,
    VersionStatus,
    WarmRequest,
    dumps,
    loads,
)
from samovar_storage.registry import Registry
from support.stores import Stores
from support.waiting import PATIENCE_S, wait_until

FUNCTIONS = Path(__file__).parents[1] / "functions"


class Pool:
    """One pool manager process (and its successors) on one data folder."""

    def __init__(self, settings_file: Path, data_dir: Path, redis: redis_sync.Redis, store: ObjectStore) -> None:
        self.data_dir = data_dir
        self.redis = redis
        self.registry = Registry(store, redis)
        self.store = store
        self._settings_file = settings_file
        self._log = (data_dir.parent / "pool.log").open("ab")
        self.process: subprocess.Popen[bytes] | None = None
        self._demand: dict[str, Demand] = {}
        self.registry.ensure_built()

    # ---- the process -----------------------------------------------------------------------------------------------

    def start(self, wait_ready: bool = True) -> None:
        """Start a manager; with `wait_ready`, return once it has a blank."""
        if wait_ready:
            self.redis.delete(keys.INSTANCES)  # blanks that the manager before it published do not say that it is up
        command = [sys.executable, "-m", "samovar_pool", "--config", str(self._settings_file)]
        environ = {name: value for name, value in os.environ.items() if not name.startswith("SAMOVAR_")}
        self.process = subprocess.Popen(
            command, env=environ, stdin=subprocess.DEVNULL, stdout=self._log, stderr=self._log, start_new_session=True
        )
        if wait_ready:
            self.until(lambda: self.in_state("blank"), 90, "a blank")

    def kill(self) -> None:
        """kill -9."""
        assert self.process is not None
        self.process.kill()
        self.process.wait(60)

    def stop(self, number: signal.Signals = signal.SIGTERM, timeout_s: float = PATIENCE_S) -> int:
        """Send a signal; return the exit code."""
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(timeout_s)

    def is_running(self) -> bool:
        """Return whether the manager runs."""
        return self.process is not None and self.process.poll() is None

    def close(self) -> None:
        """Nothing of this pool is left running afterwards."""
        if self.process is not None and self.is_running():
            self.process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(60)
            self.process.kill()
            self.process.wait(60)
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                process.kill()
        self._log.close()

    def process_id(self) -> int:
        """Return the manager's pid."""
        assert self.process is not None
        return self.process.pid

    def notes(self) -> list[Note]:
        """Return the notes in the run folder."""
        return RunDir(self.data_dir, "unix").notes()

    def reset(self) -> None:
        """Take back every demand and delete every function."""
        self._demand.clear()
        self.renew()
        for name in self.registry.records():
            self.registry.delete_function(name)

    def log(self) -> str:
        """Return what the managers logged."""
        return (self.data_dir.parent / "pool.log").read_text(errors="replace")

    def processes(self) -> list[psutil.Process]:
        """Return the live processes that the run folder names, and zygotes and forks that name the folder."""
        found = []
        for process in psutil.process_iter(["pid", "cmdline", "status"]):
            with contextlib.suppress(psutil.Error):
                alive = process.info["status"] != psutil.STATUS_ZOMBIE
                if alive and str(self.data_dir) in " ".join(process.info["cmdline"] or ()):
                    found.append(process)
        return found

    # ---- functions and demand --------------------------------------------------------------------------------------

    def deploy(self, folder: str | Path, weights: dict[str, bytes] | None = None, **changes: Any) -> Manifest:
        """Deploy the app.py of a folder (a name under tests/functions, or a path) as its next version."""
        path = FUNCTIONS / folder if isinstance(folder, str) else folder
        draft = _inspect(path)
        return self._publish(msgspec.structs.replace(draft, **changes), path, weights or {})

    def _publish(self, manifest: Manifest, folder: Path, weights: dict[str, bytes]) -> Manifest:
        archive = bundle.pack(bundle.code_files(folder))
        code = self._put(archive)
        files = []
        for name, data in weights.items():
            blob = self._put(data)
            files.append(FileRef(path=name, sha256=blob.sha256, size_bytes=blob.size_bytes))
        return self.registry.publish_version(msgspec.structs.replace(manifest, code=code, weights=files))

    def _put(self, data: bytes) -> BlobRef:
        blob = BlobRef(sha256=hashlib.sha256(data).hexdigest(), size_bytes=len(data))
        self.store.put(blob_key(blob.sha256), data)
        return blob

    def write(self, name: str, source: str, **changes: Any) -> Manifest:
        """Deploy a function written in the test."""
        return self.deploy(self._source(name, source), **changes)

    def _source(self, name: str, source: str) -> Path:
        folder = self.data_dir.parent / "src" / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "app.py").write_text(source)
        return folder

    def write_unchecked(self, name: str, source: str, requirements: list[str]) -> Manifest:
        """Deploy a function that this environment cannot import."""
        folder = self._source(name, source)
        draft = _inspect(FUNCTIONS / "echo_sum")
        changes = {"name": name, "entry": "app:f", "requirements": requirements, "example": None}
        return self._publish(msgspec.structs.replace(draft, **changes), folder, {})

    def warm(self, ref: str, instances: int, for_s: float) -> None:
        """Ask for warm instances as the gateway does."""
        request = WarmRequest(ref=ref, instances=instances, until_s=time.time() + for_s)
        self.redis.set(keys.warm(ref), dumps(request), px=int(for_s * 1000))
        self.redis.publish(keys.CHANNEL_WAKE, ref)

    def demand(self, ref: str, queued: int = 1, running: int = 0) -> None:
        """Write the demand of a gateway, and wake the manager if it was zero before."""
        was_zero = ref not in self._demand
        if queued or running:
            self._demand[ref] = Demand(queued=queued, running=running)
        else:
            self._demand.pop(ref, None)
        self.renew()
        if was_zero and queued:
            self.redis.publish(keys.CHANNEL_WAKE, ref)

    def renew(self) -> None:
        """Renew the demand's lifetime, as a gateway does."""
        key = keys.demand("test-gateway")
        with self.redis.pipeline() as pipe:
            pipe.delete(key)
            if self._demand:
                pipe.hset(key, mapping={ref: dumps(value) for ref, value in self._demand.items()})
                pipe.expire(key, keys.DEMAND_LIFETIME_S)
            pipe.zadd(keys.GATEWAYS, {"test-gateway": time.time()})
            pipe.execute()

    def until(self, predicate: Callable[[], Any], timeout_s: float = PATIENCE_S, what: str = "") -> Any:
        """Wait for something, renewing the demand meanwhile; the manager's log is in the failure."""

        def check() -> Any:
            self.renew()
            return predicate()

        try:
            return wait_until(check, timeout_s, what)
        except AssertionError as error:
            raise AssertionError(f"{error}\n{self.log()[-6000:]}") from None

    # ---- what the manager says -------------------------------------------------------------------------------------

    def instances(self, ref: str | None = None) -> list[InstanceRecord]:
        """Return the published instances, of one version or all."""
        rows = self.redis.hgetall(keys.INSTANCES)
        records = readable_rows("instance", rows, InstanceRecord).values()
        return [record for record in records if ref is None or record.ref == ref]

    def in_state(self, state: str, ref: str | None = None) -> list[InstanceRecord]:
        """Return the published instances in a state."""
        return [record for record in self.instances(ref) if record.state == state]

    def ready(self, ref: str, count: int = 1, timeout_s: float = PATIENCE_S) -> list[InstanceRecord]:
        """Wait until at least `count` instances of `ref` are ready, and return them."""
        found = self.until(lambda: len(r := self.in_state("ready", ref)) >= count and r, timeout_s, f"{count} of {ref}")
        assert isinstance(found, list)
        return found

    def ids(self) -> set[str]:
        """Return the ids of all published instances."""
        return {record.instance_id for record in self.instances()}

    def logs(self, name: str) -> list[LogLine]:
        """Return the shipped lines of a function."""
        rows: Any = self.redis.xrange(keys.logs(name))
        return [loads(fields[b"line"], LogLine) for _, fields in rows]

    def boot_failure(self, ref: str) -> BootFailure | None:
        """Return the recorded boot failure."""
        data = self.redis.get(keys.boot(ref))
        return loads(data, BootFailure) if data is not None else None

    def decisions(self, name: str) -> list[Decision]:
        """Return the recorded decisions, newest first."""
        return [loads(row, Decision) for row in self.redis.lrange(keys.decisions(name), 0, -1)]

    def status(self, ref: str) -> VersionStatus | None:
        """Return the recorded status."""
        data = self.redis.get(keys.status(ref))
        return loads(data, VersionStatus) if data is not None else None

    def node(self) -> NodeStatus | None:
        """Return the recorded node status."""
        found = [
            loads(data, NodeStatus) for key in self.redis.scan_iter(keys.node("*")) if (data := self.redis.get(key))
        ]
        return found[0] if found else None


def _inspect(folder: Path) -> Manifest:
    """Return the draft of a folder's app.py, forgetting every other `app` that this process imported."""
    sys.modules.pop("app", None)
    try:
        return inspect_file(str(folder / "app.py")).manifest
    finally:
        sys.modules.pop("app", None)
        sys.path[:] = [path for path in sys.path if path != str(folder)]


def alive(pid: int) -> bool:
    """Return whether a process runs (a zombie does not)."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@contextlib.contextmanager
def running_pool(stores: Stores, folder: Path, **settings: Any) -> Iterator[Pool]:
    """Yield a pool that is not started yet; nothing of it is left afterwards."""
    data_dir = folder / "data"
    data_dir.mkdir(mode=0o700)
    config = stores.write_settings_file(folder / "settings.json", data_dir, **settings)
    store = ObjectStore.from_settings(stores.settings(data_dir))
    store.ensure_bucket()
    redis = connect_sync(stores.redis_url)
    redis.flushdb()
    pool = Pool(config, data_dir, redis, store)
    try:
        yield pool
    finally:
        pool.close()
        redis.close()
        store.close()


def quick_scaling(**more: Any) -> Scaling:
    """Return a scaling that goes to zero after a second without demand."""
    return Scaling(**{"scale_down_window_s": 1.0, **more})


def make_wheel(folder: Path, name: str, version: str, source: str) -> Path:
    """Write a wheel of one package `name` with one module, without any build tool; return its path."""
    wheel = folder / f"{name}-{version}-py3-none-any.whl"
    info = f"{name}-{version}.dist-info"
    files = {
        f"{name}/__init__.py": source,
        f"{info}/METADATA": f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n",
        f"{info}/WHEEL": "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    files[f"{info}/RECORD"] = "".join(f"{path},,\n" for path in [*files, f"{info}/RECORD"])
    with zipfile.ZipFile(wheel, "w") as archive:
        for path, text in files.items():
            archive.writestr(path, text)
    return wheel


class Call:
    """One call of an instance, as a gateway makes it. Started once the object exists; `result` waits for the body."""

    def __init__(self, record: InstanceRecord, body: bytes, timeout_ms: float = 10_000) -> None:
        kind, _, where = record.address.partition(":")
        host, _, port = where.rpartition(":")
        self._socket = socket.socket(socket.AF_UNIX if kind == "unix" else socket.AF_INET, socket.SOCK_STREAM)
        self._socket.settimeout(15)
        self._socket.connect(where if kind == "unix" else (host, int(port)))
        self._decoder = wire.caller_side()
        self._socket.sendall(wire.encode(wire.Hello(wire.PROTOCOL_VERSION, record.token, "gateway")))
        self._socket.sendall(wire.encode(wire.Invoke(1, body, timeout_ms, notify_start=True)))
        self._received: list[wire.FromInstance] = []
        self._next(wire.Started)

    def __enter__(self) -> Call:
        return self

    def __exit__(self, *error: object) -> None:
        self._socket.close()

    def result(self) -> bytes:
        """Return the answer's body."""
        message = self._next(wire.Result)
        assert isinstance(message, wire.Result)
        return message.body

    def _next(self, kind: type[wire.Message]) -> wire.FromInstance:
        while True:
            for message in self._received:
                assert not isinstance(message, wire.Failure | wire.Busy), message
                if isinstance(message, kind):
                    return message
            data = self._socket.recv(65536)
            assert data, f"the instance hung up before {kind.__name__}"
            self._received += self._decoder.feed(data)


def call(record: InstanceRecord, body: bytes) -> bytes:
    """Call an instance; return the answer's body."""
    with Call(record, body) as running:
        return running.result()
