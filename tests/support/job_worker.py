"""Real job workers over the session's stores, with stand-in instances, and a store to submit by."""

from __future__ import annotations

import itertools
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Iterator, Sequence
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import msgspec
import redis as redis_sync
import redis.asyncio as redis_async

from samovar.jobs import TERMINAL
from samovar.spec import Limits, Manifest, Scaling
from samovar_storage import keys
from samovar_storage.jobs.layout import QueueName, new_job_id, registry_key
from samovar_storage.jobs.records import JobRecord, JobSpec, NewJob
from samovar_storage.jobs.redis_jobs import RedisJobs
from samovar_storage.objects import ObjectStore
from samovar_storage.registry import Registry
from support.gateway import FakeInstance, environment, manifest
from support.processes import running
from support.stores import Stores
from support.waiting import PATIENCE_S, wait_until, wait_until_async

KEY = "k1"


class JobWorker:
    """One worker process."""

    def __init__(self, process: subprocess.Popen[bytes], log: Path) -> None:
        self.process = process
        self._log = log

    @property
    def log(self) -> str:
        """What it has logged."""
        return self._log.read_text(errors="replace")

    def send(self, number: signal.Signals) -> None:
        """Send it a signal."""
        self.process.send_signal(number)


class Bench:
    """What a test needs around workers. store: submits and looks."""

    def __init__(self, stores: Stores, objects: ObjectStore, redis: redis_sync.Redis, store: RedisJobs, run: Path):
        self.store = store
        self.redis = redis
        self.registry = Registry(objects, redis)
        self.registry.ensure_built()
        self._stores = stores
        self._run = run
        self._stack = ExitStack()
        self._numbers = itertools.count(1)

    def deploy(self, name: str = "echo", limits: Limits | None = None, **more: Any) -> Manifest:
        """Publish a version that stand-ins serve."""
        return self.registry.publish_version(
            manifest(name, limits=limits or Limits(timeout_s=10.0), scaling=Scaling(), **more)
        )

    def start_instance(self, ref: str, concurrency: int = 1) -> FakeInstance:
        """Start a stand-in of `ref` and announce it."""
        instance = FakeInstance(f"i{next(self._numbers)}", ref, concurrency, self._run, self.redis)
        self._stack.enter_context(instance.process())
        instance.announce()
        return instance

    def start_worker(self, **settings: Any) -> JobWorker:
        """Start a worker, and return once it beats."""
        before = {*self.redis.hkeys(keys.JOBS_WORKERS)}
        number = next(self._numbers)
        folder = self._run / f"w{number}"
        folder.mkdir(mode=0o700)
        values = {"request_log": False} | settings
        config = self._stores.write_settings_file(self._run / f"w{number}.json", folder, **values)
        log = self._run / f"w{number}.log"
        command = [sys.executable, "-P", "-m", "samovar_jobs", "--config", str(config)]
        process = self._stack.enter_context(running(command, log, environment()))
        worker = JobWorker(process, log)

        def beats() -> bool:
            assert process.poll() is None, worker.log
            return bool({*self.redis.hkeys(keys.JOBS_WORKERS)} - before)

        wait_until(beats, what="the worker beats")
        return worker

    async def submit(self, name: str = "echo", bodies: Sequence[Any] = ({},), **spec: Any) -> list[str]:
        """Submit one job per body."""
        now_s = time.time()
        fields: dict[str, Any] = {"function": name, "key_id": KEY, "created_at_s": now_s} | spec
        jobs = [
            NewJob(id=new_job_id(int(now_s * 1000)), spec=JobSpec(**fields), input=msgspec.json.encode(body))
            for body in bodies
        ]
        return await self.store.submit(jobs)

    async def ended(self, job_ids: Sequence[str], timeout_s: float = PATIENCE_S) -> list[JobRecord]:
        """Return the jobs once all of them have ended."""

        async def all_ended() -> list[JobRecord]:
            records = await self.store.get_many(job_ids)
            found = [record for record in records if record is not None and record.state in TERMINAL]
            return found if len(found) == len(job_ids) else []

        found: list[JobRecord] = await wait_until_async(all_ended, timeout_s, f"{len(job_ids)} jobs have ended")
        return found

    async def in_state(self, job_id: str, state: str, timeout_s: float = PATIENCE_S) -> JobRecord:
        """Return a job once it is in a state."""

        async def reached() -> JobRecord | None:
            record = await self.store.get(job_id)
            return record if record.state == state else None

        record: JobRecord = await wait_until_async(reached, timeout_s, f"{job_id} is {state}")
        return record

    def counted(self, what: str) -> int:
        """Return how many jobs the store counts under a word."""
        number: Any = self.redis.hget(keys.JOBS_COUNTS, what)
        return int(number or 0)

    def num_started(self, function: str, key_id: str) -> int:
        """Return how many jobs of a function and key run now."""
        number: Any = self.redis.zcard(registry_key("started", QueueName(function, key_id)))
        return int(number)

    def close(self) -> None:
        """End workers and stand-ins."""
        self._stack.close()


@contextmanager
def _closing(bench: Bench) -> Iterator[Bench]:
    try:
        yield bench
    finally:
        bench.close()


@asynccontextmanager
async def job_bench(
    stores: Stores, objects: ObjectStore, redis: redis_sync.Redis, aredis: redis_async.Redis, run: Path
) -> AsyncIterator[Bench]:
    """A bench for the body of an `async with`."""
    with _closing(Bench(stores, objects, redis, RedisJobs(aredis, objects), run)) as bench:
        yield bench
