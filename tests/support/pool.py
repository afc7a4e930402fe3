"""A real pool manager for tests: started on a test's stores, with helpers to deploy, demand and look."""

from __future__ import annotations

import contextlib
import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import redis as redis_sync

from samovar import bundle
from samovar.inspection import inspect_file
from samovar.spec import BlobRef, FileRef, Manifest, Scaling
from samovar_storage import keys
from samovar_storage.blobs import blob_key
from samovar_storage.objects import ObjectStore
from samovar_storage.records import (
    BootFailure,
    Decision,
    Demand,
    InstanceRecord,
    NodeStatus,
    VersionStatus,
    dumps,
    loads,
)
from samovar_storage.registry import Registry
from support.waiting import wait_until

FUNCTIONS = Path(__file__).parents[1] / "functions"


class Pool:
    """One pool manager process (and its successors) on one data folder."""

    def __init__(self, settings_file: Path, data_dir: Path, redis: redis_sync.Redis, store: ObjectStore) -> None:
        self.data_dir = data_dir
        self.redis = redis
        self.registry = Registry(store, redis)
        self._store = store
        self._settings_file = settings_file
        self._log = (data_dir.parent / "pool.log").open("ab")
        self.process: subprocess.Popen[bytes] | None = None
        self._demand: dict[str, Demand] = {}
        self.registry.ensure_built()

    # ---- the process -----------------------------------------------------------------------------------------------

    def start(self, wait_ready: bool = True) -> None:
        """Start a manager; with `wait_ready`, return once it has a blank."""
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
        self.process.wait(10)

    def stop(self, number: signal.Signals = signal.SIGTERM, timeout_s: float = 30) -> int:
        """Send a signal; return the exit code."""
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(timeout_s)

    def close(self) -> None:
        """Nothing of this pool is left running afterwards."""
        if self.process is not None and self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
            with contextlib.suppress(subprocess.TimeoutExpired):
                self.process.wait(20)
            self.process.kill()
            self.process.wait(10)
        for process in self.processes():
            with contextlib.suppress(psutil.Error):
                process.kill()
        self._log.close()

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
        draft = inspect_file(str(path / "app.py"))
        archive = bundle.pack(bundle.code_files(path))
        code = BlobRef(sha256=hashlib.sha256(archive).hexdigest(), size_bytes=len(archive))
        self._store.put(blob_key(code.sha256), archive)
        files = []
        for name, data in (weights or {}).items():
            sha256 = hashlib.sha256(data).hexdigest()
            self._store.put(blob_key(sha256), data)
            files.append(FileRef(path=name, sha256=sha256, size_bytes=len(data)))
        manifest = msgspec.structs.replace(draft.manifest, code=code, weights=files, **changes)
        return self.registry.publish_version(manifest)

    def write(self, name: str, source: str, **changes: Any) -> Manifest:
        """Deploy a function written in the test."""
        folder = self.data_dir.parent / "src" / name
        folder.mkdir(parents=True, exist_ok=True)
        (folder / "app.py").write_text(source)
        return self.deploy(folder, **changes)

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

    def until(self, predicate: Callable[[], Any], timeout_s: float = 20, what: str = "") -> Any:
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
        records = [loads(data, InstanceRecord) for data in rows.values()]
        return [record for record in records if ref is None or record.ref == ref]

    def in_state(self, state: str, ref: str | None = None) -> list[InstanceRecord]:
        """Return the published instances in a state."""
        return [record for record in self.instances(ref) if record.state == state]

    def ready(self, ref: str, count: int = 1, timeout_s: float = 20) -> list[InstanceRecord]:
        """Wait until at least `count` instances of `ref` are ready, and return them."""
        found = self.until(lambda: len(r := self.in_state("ready", ref)) >= count and r, timeout_s, f"{count} of {ref}")
        assert isinstance(found, list)
        return found

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


def alive(pid: int) -> bool:
    """Return whether a process runs (a zombie does not)."""
    try:
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


@contextlib.contextmanager
def running_pool(
    settings_file: Callable[..., Path], tmp_path: Path, redis: redis_sync.Redis, store: ObjectStore, **settings: Any
) -> Iterator[Pool]:
    """Yield a pool that is not started yet; nothing of it is left afterwards."""
    data_dir = tmp_path / "data"
    pool = Pool(settings_file(data_dir=data_dir, **settings), data_dir, redis, store)
    try:
        yield pool
    finally:
        pool.close()


def quick_scaling(**more: Any) -> Scaling:
    """Return a scaling that goes to zero after a second without demand."""
    return Scaling(**{"scale_down_window_s": 1.0, **more})
