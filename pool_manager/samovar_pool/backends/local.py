"""Local processes: zygotes fork blanks, blanks are specialised, templates fork loaded instances.

The cold path (`specialise` of a version whose files are here) is one lookup and one write to a socket. Everything an
instance is given comes as paths and descriptors; it never sees a store. This module does not know demand or policy.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import secrets
import time
from collections import Counter
from collections.abc import Callable, Coroutine
from functools import partial
from typing import Any

from samovar import wire
from samovar.errors import DeployRefused, SamovarError
from samovar.lifecycle import Event, State
from samovar_pool import watchdog
from samovar_pool.backends import procfs
from samovar_pool.backends.base import BootError, Listener
from samovar_pool.backends.control import connect
from samovar_pool.backends.groups import Groups
from samovar_pool.backends.instance import CONNECTION_CLOSED, WHY_IT_LEFT, Instance, describe_end, out_of_memory
from samovar_pool.backends.rundir import RunDir
from samovar_pool.backends.sandbox import Sandboxing
from samovar_pool.backends.zygotes import Zygotes
from samovar_pool.logs import tails
from samovar_pool.model import BASE_ENVIRONMENT, CPU, InstanceView, Role
from samovar_pool.prepare import Prepared, Preparer, boot_error
from samovar_pool.topology import CpuPlan
from samovar_pool.versions import Version
from samovar_storage.ending import end_tasks

logger = logging.getLogger("samovar.pool")

EXIT_WAIT_S = 0.2  # the zygote's word on how a child ended comes a moment after its connection closed
DRAIN_ANSWER_S = 2.0
ASLEEP_S = 5.0  # without a tick for so long, this process was stopped or starved
FETCH_FAILED = "its files could not be fetched"

ForkCall = Callable[[wire.Fork, list[int], Callable[[wire.Forked], None]], None]


class LocalBackend:
    """All processes of this node. Orders return at once; what came of them is told to the listener.

    simulated: devices are fake, so processes run on the CPU whatever device they are placed on.
    sandboxing: how they are confined.
    cpu_plan: the cores for an instance, from its device, how many it wants, and the load of each node: topology.plan.
    """

    def __init__(
        self,
        run: RunDir,
        preparer: Preparer,
        listener: Listener,
        *,
        simulated: bool,
        preload: list[str],
        sandboxing: Sandboxing,
        cpu_plan: Callable[[str, int, dict[int, int]], CpuPlan],
    ) -> None:
        self.instances: dict[str, Instance] = {}
        self.run = run
        self.preparer = preparer
        self.simulated = simulated
        self.stopping = False
        self._listener = listener
        self._cpu_plan = cpu_plan
        self._uids = sandboxing.uids
        self._groups = Groups(sandboxing, self.instances, listener.instance_changed)
        self.zygotes = Zygotes(
            run,
            preload,
            preparer.layer_dirs_of_environment,
            sandboxing.options,
            spawn=self.spawn,
            on_exited=self.exited,
            on_changed=listener.backend_changed,
        )
        self._tasks: set[asyncio.Task[Any]] = set()
        self._by_pid: dict[tuple[str, int], Instance] = {}  # parent, pid as the parent knows it
        self._ticked_at_s = time.monotonic()

    # ---- what is ---------------------------------------------------------------------------------------------------

    def views(self) -> list[InstanceView]:
        """Return every live process as decisions see it."""
        return [i.view(self.zygotes.generation(i.environment)) for i in self.instances.values()]

    # ---- orders ----------------------------------------------------------------------------------------------------

    def adopt_instance(self, instance: Instance) -> None:
        """Own a process that an earlier manager had forked; it is not connected yet."""
        self.instances[instance.instance_id] = instance
        self._by_pid["", instance.pid] = instance
        self.spawn(self._groups.admit(instance))
        if instance.version is not None:
            self.preparer.pin(instance.version, instance.instance_id)

    def fork_blank(self, environment: str, device: str) -> None:
        """Fork one more blank; the listener hears when it is there."""
        zygote = self.zygotes.get(environment)
        if zygote is not None:
            instance = self._new_instance(environment, (device,))
            instance.uid = self._uids.take({i.uid for i in self.instances.values()})
            instance.generation = zygote.generation
            self._fork(instance, zygote.fork)

    def fork_template(self, template_id: str, version: Version, claim_ms: float) -> None:
        """Fork one more ready instance of `version` from its template."""
        template = self.instances.get(template_id)
        if template is None or template.connection is None:
            return
        instance = self._new_instance(template.environment, (CPU,))
        instance.ref, instance.version, instance.from_template = version.ref, version, True
        instance.uid, instance.parent_id = template.uid, template_id
        instance.boot_ms = {"claim": claim_ms, "fetch": 0.0, "import": 0.0, "load": 0.0, "warmup": 0.0}
        self.preparer.pin(version, instance.instance_id)
        self._fork(instance, partial(self._ask_template, template))

    def _ask_template(
        self, template: Instance, fork: wire.Fork, fds: list[int], _: Callable[[wire.Forked], None]
    ) -> None:
        if template.connection is None:
            raise BrokenPipeError("the template is gone")
        template.connection.send_with_fds(fork, fds)

    def _new_instance(self, environment: str, devices: tuple[str, ...]) -> Instance:
        instance_id = f"i-{secrets.token_hex(6)}"
        instance = Instance(instance_id, secrets.token_hex(16), "", environment=environment, devices=devices)
        self.instances[instance_id] = instance
        return instance

    def _fork(self, instance: Instance, ask: ForkCall) -> None:
        sock, instance.address = self.run.listen(instance.instance_id)
        log_fds = self.run.open_logs(instance.instance_id)
        self.run.make_scratch(instance.instance_id, instance.uid)
        version = instance.version
        threads = num_threads(version) if version else 1
        device = self._real_devices(instance.devices)
        fork = wire.Fork(instance.instance_id, instance.token, device=device, num_threads=threads, uid=instance.uid)
        try:
            ask(fork, [sock.fileno(), *log_fds], partial(self.forked, instance))
        except OSError as error:
            logger.error("cannot fork: %s", error)
            self._gone(instance)
            return
        finally:
            sock.close()
            for fd in log_fds:
                os.close(fd)
        self.spawn(self.connect(instance))

    def _real_devices(self, devices: tuple[str, ...]) -> str:
        return CPU if self.simulated else ",".join(devices)

    def specialise(
        self,
        instance_id: str,
        version: Version,
        devices: tuple[str, ...],
        role: Role,
        claim_ms: float,
        is_awaited: bool = False,
    ) -> None:
        """Turn a blank into an instance or template of `version`: at once if its files are here, else after a fetch.

        is_awaited: whether the first call can be the warm-up, see wire.Specialise.
        """
        instance = self.instances[instance_id]
        instance.move(Event.SPECIALISE)
        instance.ref, instance.version, instance.devices, instance.role = version.ref, version, devices, role
        instance.started_at_s = time.monotonic()
        instance.boot_ms = {"claim": claim_ms, "fetch": 0.0}
        if num_threads(version) > 1:
            self._pin(instance, num_threads(version))  # as a blank it was given the cores of one that needs one
        prepared = self.preparer.lookup(version)
        if prepared is not None:
            self._send_specialise(instance, version, prepared, is_awaited)
        else:
            instance.preparing = self.spawn(self._fetch_and_specialise(instance, version))

    async def _fetch_and_specialise(self, instance: Instance, version: Version) -> None:
        started_s = time.monotonic()
        try:
            prepared = await self.preparer.prepare(version, instance.instance_id)
        except SamovarError as error:
            instance.kill(FETCH_FAILED)
            self._listener.boot_failed(instance, boot_error(version, error, "fetch"))
            return
        finally:
            instance.preparing = None
        if instance.state is State.LOADING:
            instance.boot_ms["fetch"] = (time.monotonic() - started_s) * 1000
            self._send_specialise(instance, version, prepared)
        else:
            self.preparer.unpin(instance.instance_id)

    def _send_specialise(
        self, instance: Instance, version: Version, prepared: Prepared, is_awaited: bool = False
    ) -> None:
        message = wire.Specialise(
            version.manifest_json,
            prepared.code_dir,
            prepared.weights_dir,
            prepared.layer_dirs,
            self._real_devices(instance.devices),
            num_threads(version),
            instance.role,
            instance.instance_id,
            str(self.run.scratch_dir(instance.instance_id)),
            is_awaited,
        )
        if instance.connection is not None:
            instance.connection.send(message)
        instance.state_at_s = instance.heard_at_s = time.monotonic()
        self.preparer.pin(version, instance.instance_id)
        self.run.write_note(instance.note())
        self.spawn(self._groups.specialised(instance))

    def drain(self, instance_id: str, if_idle: bool) -> None:
        """Ask an instance to finish and leave; with `if_idle` only if it has no work in flight when asked.

        It takes as long as its calls may: their deadlines are the only truth about that, and the instance has them.
        """
        instance = self.instances.get(instance_id)
        if instance is None or instance.connection is None or instance.state not in (State.READY, State.DRAINING):
            return
        instance.connection.send(wire.Drain(None, if_idle))
        instance.drain_asked_at_s = time.monotonic()
        if not if_idle and instance.state is State.READY:
            instance.move(Event.DRAIN)
            self._listener.instance_changed(instance)

    def kill(self, instance_id: str, reason: str) -> None:
        """End a process at once."""
        instance = self.instances.get(instance_id)
        if instance is None:
            return
        if instance.state is not State.DRAINING:
            instance.move(Event.DRAIN)
        instance.kill(reason)

    # ---- what comes back -------------------------------------------------------------------------------------------

    async def connect(self, instance: Instance) -> None:
        """Open the control connection to a process that was just forked or is being adopted."""
        received, lost = partial(self._received, instance), partial(self._lost, instance)
        try:
            instance.connection = await connect(instance.address, instance.token, received, lost)
        except (OSError, TimeoutError) as error:
            logger.warning("cannot reach %s: %s", instance.instance_id, error)
            self._gone(instance)

    def forked(self, instance: Instance, forked: wire.Forked) -> None:
        """Take note of the pid of a child."""
        self._by_pid[instance.parent_id, forked.pid] = instance
        parent = self.instances.get(instance.parent_id)
        pid = forked.pid if parent is None else procfs.pid_of_child(parent.pid, forked.pid)
        instance.pid, instance.start_ticks = pid, procfs.start_ticks(pid)
        self.spawn(self._groups.admit(instance))
        if instance.kill_reason:
            instance.kill(instance.kill_reason)  # it was ordered before the pid was known
        self._pin(instance, num_threads(instance.version) if instance.version else 1)
        self.run.write_note(instance.note())
        if instance.state is State.READY:
            self._listener.instance_changed(instance)  # it was published without its pid

    def _pin(self, instance: Instance, num_cpus: int) -> None:
        """Have the process run on the cores of one node, where there are several: the least loaded that is enough."""
        load = Counter(i.cpu_node for i in self.instances.values() if i is not instance and i.cpu_node >= 0)
        plan = self._cpu_plan(instance.devices[0], num_cpus, load)
        if plan.node != instance.cpu_node and instance.start_ticks:
            with contextlib.suppress(ProcessLookupError):
                os.sched_setaffinity(instance.pid, plan.cpus or os.sched_getaffinity(0))
            instance.cpu_node = plan.node

    def exited(self, exited: wire.Exited, parent_id: str = "") -> None:
        """Take note of how a child ended. parent_id: the template that says so, "" for a zygote."""
        instance = self._by_pid.pop((parent_id, exited.pid), None)
        if instance is not None:
            instance.exit_code = exited.exit_code
            instance.explained.set()

    def _received(self, instance: Instance, message: wire.FromInstance) -> None:
        instance.heard_at_s = time.monotonic()
        instance.heard.set()
        match message:
            case wire.Welcome():
                self._welcomed(instance, message)
            case wire.Ready():
                self._loaded(instance, message)
            case wire.BootFailed():
                self._boot_failed(instance, message)
            case wire.Stats():
                self._reported(instance, message)
            case wire.Forked():
                child = self.instances.get(message.instance_id)
                if child is not None and child.parent_id == instance.instance_id:
                    self.forked(child, message)
            case wire.Exited():
                self.exited(message, instance.instance_id)
            case wire.Goodbye():
                self._said_goodbye(instance, message)
            case _:
                logger.warning("%s sent an unexpected %s", instance.instance_id, type(message).__name__)

    def _welcomed(self, instance: Instance, welcome: wire.Welcome) -> None:
        instance.sandbox = list(welcome.sandbox)
        # a template greets like the blank it was; it greets a new manager only once it has loaded
        is_loaded = welcome.state == State.READY or instance.role == "template"
        if is_loaded and instance.ref and instance.state in (State.STARTING, State.LOADING):
            instance.boot_ms = {**welcome.boot_ms, **instance.boot_ms}
            if instance.from_template:
                instance.boot_ms["load"] = (time.monotonic() - instance.started_at_s) * 1000
            self._become_ready(instance, None)
        elif welcome.state == State.BLANK and instance.state is State.STARTING:
            instance.move(Event.FORKED)
            self._listener.instance_changed(instance)

    def _loaded(self, instance: Instance, ready: wire.Ready) -> None:
        instance.boot_ms = {**instance.boot_ms, **ready.boot_ms}
        instance.sandbox = list(ready.sandbox) or instance.sandbox
        instance.memory_bytes = instance.memory_bytes or ready.memory_bytes
        instance.manner = ready.manner
        if instance.state is State.LOADING:
            self._become_ready(instance, ready)

    def _become_ready(self, instance: Instance, ready: wire.Ready | None) -> None:
        instance.move(Event.LOADED)
        instance.ready_at_s = instance.idle_since_s = time.monotonic()
        self._listener.instance_ready(instance, ready)

    def _boot_failed(self, instance: Instance, message: wire.BootFailed) -> None:
        instance.failed = message
        where = f" ({os.path.basename(message.file)}:{message.line})" if message.file else ""
        # a refusal of ours is a sentence for people already
        is_plain = message.type_name == DeployRefused.__name__ or message.detail.startswith(message.type_name)
        said = message.detail if is_plain else f"{message.type_name}: {message.detail}"
        detail = f"{message.phase} failed: {said}{where}"
        self._tell_boot_failed(instance, detail, message.phase)

    def _tell_boot_failed(self, instance: Instance, detail: str, phase: str) -> None:
        lines = tails(self.run.log_paths(instance.instance_id).values())
        self._listener.boot_failed(instance, BootError(instance.ref, "load_failed", 500, detail, phase, lines))

    def _reported(self, instance: Instance, stats: wire.Stats) -> None:
        instance.reported(stats.in_flight, stats.idle_s)
        instance.overrun_s = stats.overrun_s
        instance.completed = stats.completed + stats.failed
        instance.device_peak_bytes = max(instance.device_peak_bytes, stats.device_memory_bytes)
        if stats.in_flight and instance.state is State.READY:
            instance.drain_asked_at_s = None

    def _said_goodbye(self, instance: Instance, goodbye: wire.Goodbye) -> None:
        if goodbye.reason == "drain" and instance.state is State.READY:
            instance.move(Event.DRAIN)
            self._listener.instance_changed(instance)
        elif goodbye.reason != "drain":
            instance.kill_reason = instance.kill_reason or WHY_IT_LEFT.get(goodbye.reason, goodbye.detail)
            logger.error("%s said goodbye: %s %s", instance.instance_id, goodbye.reason, goodbye.detail)

    def _lost(self, instance: Instance) -> None:
        instance.connection = None
        self._gone(instance)

    def _gone(self, instance: Instance) -> None:
        """Its connection closed: it is gone at once, for everybody; how it ended is learned a moment later."""
        if self.instances.pop(instance.instance_id, None) is None:
            return
        was = instance.state
        instance.move(Event.EXIT)
        if self._groups.was_out_of_memory(instance):
            self.run.add_to_log(instance.instance_id, f"[samovar] {out_of_memory(instance)}")
        instance.kill(CONNECTION_CLOSED)
        self.run.forget(instance.instance_id)
        self.preparer.unpin(instance.instance_id)
        self._listener.instance_gone(instance, was)
        self.spawn(self._groups.remove(instance))
        if was is State.LOADING and instance.failed is None and not self.stopping:
            self.spawn(self._explain_end(instance))
        elif was is State.READY and not self.stopping:
            self.spawn(self._explain_loss(instance))

    async def _explain_end(self, instance: Instance) -> None:
        """Tell why a loading process ended without a word."""
        await self._last_word(instance)
        if instance.kill_reason == FETCH_FAILED:
            return
        self._tell_boot_failed(instance, describe_end(instance, "loading"), "load")

    async def _explain_loss(self, instance: Instance) -> None:
        """Tell how a process ended that was serving."""
        await self._last_word(instance)
        self._listener.instance_lost(instance, describe_end(instance, "serving"))

    @staticmethod
    async def _last_word(instance: Instance) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(EXIT_WAIT_S):
                await instance.explained.wait()

    # ---- time ------------------------------------------------------------------------------------------------------

    def tick(self, now_s: float) -> None:
        """Kill what hangs or overstays, and forget drain orders that were not answered."""
        self._excuse(now_s)
        for instance in list(self.instances.values()):
            limits = instance.version.manifest.limits if instance.version else None
            reason = (
                ""
                if instance.preparing
                else watchdog.verdict(instance.vitals(now_s), limits or watchdog.DEFAULT_LIMITS)
            )
            if reason:
                logger.error("killing %s (%s): %s", instance.instance_id, instance.ref or "blank", reason)
                instance.kill(reason)
            asked_s = instance.drain_asked_at_s
            if instance.state is State.READY and asked_s is not None and now_s - asked_s > DRAIN_ANSWER_S:
                instance.drain_asked_at_s = None

    def _excuse(self, now_s: float) -> None:
        """Hold nobody's silence against them for the time in which this process itself did not run."""
        asleep_s, self._ticked_at_s = now_s - self._ticked_at_s, now_s
        if asleep_s > ASLEEP_S:
            for instance in self.instances.values():
                instance.heard_at_s += asleep_s
                instance.state_at_s += asleep_s

    async def measure(self) -> None:
        """Read, in a thread, what those processes take whose size may have changed since it was read last."""
        instances = [instance for instance in self.instances.values() if instance.pid]
        known = [procfs.Known(i.pid, i.resident_bytes, i.measured_at_s, i.role == "template") for i in instances]
        found = await asyncio.to_thread(procfs.measure, known)
        for instance in instances:
            measured = found.get(instance.pid)
            if measured is not None:
                instance.memory_bytes = measured.memory.share or instance.memory_bytes
                instance.own_bytes = measured.memory.own
                instance.resident_bytes, instance.measured_at_s = measured.resident_bytes, time.monotonic()

    async def teach(self, modules: list[str]) -> wire.Preloaded:
        """Have the base zygote import `modules`; blanks forked before become stale."""
        zygote = self.zygotes.get(BASE_ENVIRONMENT)
        return await zygote.preload(modules) if zygote is not None else wire.Preloaded([], {})

    def spawn(self, coroutine: Coroutine[Any, Any, None]) -> asyncio.Task[None]:
        """Run a task that this backend owns; its failure is logged."""
        task = asyncio.get_running_loop().create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._task_done)
        return task

    def _task_done(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        if not task.cancelled() and task.exception() is not None:
            logger.error("a task of the backend failed", exc_info=task.exception())

    # ---- the end ---------------------------------------------------------------------------------------------------

    async def stop(self) -> None:
        """Drain every instance (bounded by the deadlines of its calls), end blanks, templates and zygotes."""
        self.stopping = True
        for instance in list(self.instances.values()):
            if instance.state is State.READY and instance.role == "instance" and instance.version:
                self.drain(instance.instance_id, False)
            else:
                instance.kill("the platform stops")
        while self.instances:
            self.tick(time.monotonic())
            await asyncio.sleep(0.02)
        await self.zygotes.stop()
        await self._cancel_tasks()
        await self._groups.close()

    async def leave(self) -> None:
        """Close every connection and leave all processes running, for the next manager to adopt."""
        self.stopping = True
        self.zygotes.leave()
        await self._cancel_tasks()

    async def _cancel_tasks(self) -> None:
        await end_tasks(self._tasks)


def num_threads(version: Version) -> int:
    """Return the torch threads of an instance: its CPUs, whole, at least one."""
    return max(1, int(version.manifest.resources.cpus))
