"""One node's pool manager put together: every part made, started in order, ended in order.

This module does not decide anything.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket
from collections.abc import Coroutine, Iterable
from functools import partial
from pathlib import Path
from typing import Any

from samovar.errors import Conflict
from samovar.layers import Layers
from samovar_pool import topology
from samovar_pool.adopt import adopt, adopt_zygotes
from samovar_pool.backends.local import LocalBackend
from samovar_pool.backends.rundir import RunDir
from samovar_pool.backends.sandbox import Sandboxing
from samovar_pool.backends.zygote import clean_environment
from samovar_pool.deploys import Deploys
from samovar_pool.devices import find_devices
from samovar_pool.index import keep_index
from samovar_pool.job_backlog import JobBacklog
from samovar_pool.knowledge import Knowledge
from samovar_pool.leader import Lease, NodeLock
from samovar_pool.logs import LogShipper
from samovar_pool.manager import Manager
from samovar_pool.observer import Observer
from samovar_pool.preload import Learner, read_learned
from samovar_pool.prepare import Preparer
from samovar_pool.recorder import Recorder
from samovar_pool.reporter import Reporter
from samovar_pool.rollouts import Rollouts
from samovar_pool.settings import PoolSettings, memory_budget_bytes, simulated_gpus
from samovar_pool.signals import Signals
from samovar_pool.versions import Catalogue
from samovar_storage import live
from samovar_storage.cache import NodeCache
from samovar_storage.ending import end_tasks
from samovar_storage.jobs.redis_jobs import RedisJobs
from samovar_storage.objects import ObjectStore
from samovar_storage.registry import Registry

logger = logging.getLogger("samovar.pool")

LAST_WRITES_S = 3.0


class Node:
    """All parts of the manager. `run` returns after `request_stop`; raises Conflict if another manager took over.

    secret_files: what else on this machine functions must not see.
    """

    def __init__(self, settings: PoolSettings, secret_files: Iterable[Path] = ()) -> None:
        name = settings.node or socket.gethostname()
        run = RunDir(settings.data_dir, settings.transport)
        self._lock = NodeLock(run.run)
        self._stop: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._deposed = False
        self._tasks: list[asyncio.Task[None]] = []
        self._redis = live.connect_async(settings.redis_url.reveal())
        self._redis_sync = live.connect_sync(settings.redis_url.reveal())
        self._store = ObjectStore.from_settings(settings)
        cache_dir = settings.data_dir / "cache"
        cache = NodeCache(cache_dir, settings.cache_bytes, self._store)
        layers = Layers(settings.data_dir / "layers", settings.layer_timeout_s)
        self._sandboxing = Sandboxing.of(
            settings.sandbox, settings.data_dir, secret_files, memory_budget_bytes(settings)
        )
        devices = find_devices(*simulated_gpus(settings))
        nodes = topology.read_topology()
        learned = settings.data_dir / "learned-modules.json"
        preload = [module.strip() for module in settings.preload.split(",") if module.strip()] + read_learned(learned)
        self.catalogue = Catalogue()
        knowledge = Knowledge()
        self.manager = Manager(self.catalogue, knowledge, settings.tick_s, settings.templates)
        self.backend = LocalBackend(
            run,
            Preparer(cache, layers, network_apart=settings.sandbox != "off"),
            self.manager,
            simulated=devices.simulated,
            preload=preload,
            sandboxing=self._sandboxing,
            cpu_plan=partial(self._cpu_plan, nodes),
        )
        self.signals = Signals(self._redis, self.catalogue, settings.tick_s, self.manager.wake, self.manager.deployed)
        self.signals.on_unwell = self.manager.unwell
        self.backlog = JobBacklog(RedisJobs(self._redis, self._store).waiting, self.manager.wake)
        self._lease = Lease(live.connect_async(settings.redis_url.reveal()), self._lock, self._lost_lead)
        self._recorder = Recorder(
            self._redis, lambda: self.manager.reporter.published(), self._lost_lead, lambda: self._lease.token
        )
        manager = self.manager
        manager.backend = self.backend
        manager.reporter = Reporter(name, self.backend, devices, knowledge, self._recorder)
        manager.logs = LogShipper(lambda fn, lines: live.add_logs(self._redis, fn, lines), run.remove_instance)
        if settings.prepare_on_deploy:
            manager.deploys = Deploys(self.backend, knowledge, settings.templates, manager.does_not_load, manager.wake)
        manager.learner = Learner(learned, self.backend, manager.wake)
        manager.observer = Observer(
            settings,
            self.signals,
            self.backlog,
            self.catalogue,
            self.backend,
            knowledge,
            lambda: manager.reporter.facts,
            nodes.gpu_nodes,
        )

    def _cpu_plan(self, nodes: topology.Topology, device: str, num_cpus: int, load: dict[int, int]) -> topology.CpuPlan:
        pci = next((fact.pci for fact in self.manager.reporter.facts if fact.device == device), "")
        return topology.plan(nodes, nodes.gpu_nodes.get(pci, -1), num_cpus, load)

    def request_stop(self, drain: bool) -> None:
        """End `run`: with `drain` after ending every process, else leaving them to the next manager."""
        if not self._stop.done():
            self._stop.set_result(drain)
            self.manager.stop_loop()

    def _lost_lead(self) -> None:
        if not self._deposed:
            self._deposed = True
            logger.error("another pool manager leads now; leaving the instances to it")
            self.request_stop(False)

    async def run(self) -> None:
        """Lead, adopt, manage until told to stop, end in order. Raises ConfigError if the sandbox has a gap that is not
        allowed."""
        await self._sandboxing.check(clean_environment(os.environ, []))
        starting = asyncio.get_running_loop().create_task(self._start())
        starting.add_done_callback(lambda _: self.manager.wake())
        self._stop.add_done_callback(lambda _: starting.cancel())
        try:
            await starting
        except asyncio.CancelledError:
            logger.info("told to stop while starting")
        else:
            await self.manager.run()
        await self._end(await self._stop)
        if self._deposed:
            raise Conflict("another pool manager leads now")

    async def _start(self) -> None:
        await self._lease.acquire()
        self._own("lease", self._lease.keep())
        self._own("messages", self.signals.follow())
        registry = Registry(self._store, self._redis_sync)
        self._own("index", keep_index(self._redis, registry, self.signals))
        await adopt_zygotes(self.backend)
        await self.signals.wait_for_functions()
        await adopt(self.backend, self.catalogue)
        self._own("demand", self.signals.poll())
        self._own("jobs heard of", self.backlog.follow(self._redis))
        self._own("jobs that wait", self.backlog.poll())
        self._own("records", self._recorder.run())
        self._own("check of records", self._recorder.verify())
        self._own("logs", self.manager.logs.run())
        rollouts = Rollouts(self._redis, registry, self.catalogue, self.backend, self._recorder.decisions)
        self._own("rollouts", rollouts.run())
        await self._recorder.verify_once()

    def _own(self, what: str, coroutine: Coroutine[Any, Any, None]) -> None:
        task = asyncio.get_running_loop().create_task(coroutine, name=what)
        task.add_done_callback(self._owned_ended)
        self._tasks.append(task)

    def _owned_ended(self, task: asyncio.Task[None]) -> None:
        if not task.cancelled() and not self._stop.done():
            logger.error("the task for %s ended", task.get_name(), exc_info=task.exception())
            self.request_stop(False)

    async def _end(self, drain: bool) -> None:
        await (self.backend.stop() if drain else self.backend.leave())
        if drain:
            await self.manager.logs.round()
        await self._recorder.drain(LAST_WRITES_S)
        await self._lease.release()
        await end_tasks(self._tasks)
        await self._redis.aclose()
        self._redis_sync.close()
        self._store.close()
        self.backend.preparer.close()
        self._lock.close()
