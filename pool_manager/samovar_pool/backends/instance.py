"""One process of the local backend: its state, what it reported, and how it looks to decisions and to Redis."""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass, field

from samovar import wire
from samovar.lifecycle import Event, State, move
from samovar_pool.backends import procfs
from samovar_pool.backends.control import ControlConnection
from samovar_pool.backends.rundir import Note
from samovar_pool.model import BASE_ENVIRONMENT, CPU, InstanceView, Role
from samovar_pool.versions import Version
from samovar_pool.watchdog import Vitals
from samovar_storage.records import InstanceRecord

IDLE_SETTLES_S = 1.0  # shorter turns between idle and busy are not published
IDLE_MAY_LAG_S = 30.0
CONNECTION_CLOSED = "its connection closed"
WHY_IT_LEFT = {  # the last word of an instance that ends of its own accord
    "overrun": "a call did not stop when its deadline was over",
    "abandoned": "a call did not stop when its caller had left",
    "device_lost": "its device failed",
}


@dataclass(slots=True, eq=False)
class Instance:
    """Mutable, owned by the backend. Times ending in `_at_s` are monotonic, `born_at_s` is unix time.

    uid: 0 = this process's own. parent_id: the template it was forked from. sandbox: layers as the process reported
    them; groups: those that cgroups add. manner: how its engine runs the model, as it said when it had loaded.
    """

    instance_id: str
    token: str
    address: str
    environment: str = BASE_ENVIRONMENT
    devices: tuple[str, ...] = (CPU,)
    role: Role = "instance"
    state: State = State.STARTING
    ref: str = ""
    version: Version | None = None
    pid: int = 0
    start_ticks: int = 0
    uid: int = 0
    generation: int = 0
    cpu_node: int = -1
    from_template: bool = False
    connection: ControlConnection | None = None
    preparing: asyncio.Task[None] | None = None
    born_at_s: float = field(default_factory=time.time)
    state_at_s: float = field(default_factory=time.monotonic)
    started_at_s: float = field(default_factory=time.monotonic)
    heard_at_s: float = field(default_factory=time.monotonic)
    ready_at_s: float | None = None
    idle_since_s: float | None = None
    busy_since_s: float = 0.0
    told_idle_since_s: float | None = None
    drain_asked_at_s: float | None = None
    in_flight: int = 0
    completed: int = 0
    overrun_s: float = 0.0
    memory_bytes: int = 0
    own_bytes: int = 0
    resident_bytes: int = 0
    measured_at_s: float = float("-inf")
    device_peak_bytes: int = 0
    boot_ms: dict[str, float] = field(default_factory=dict)
    sandbox: list[str] = field(default_factory=list)
    groups: list[str] = field(default_factory=list)
    manner: str = ""
    parent_id: str = ""
    exit_code: int | None = None
    was_out_of_memory: bool = False
    heard: asyncio.Event = field(default_factory=asyncio.Event)
    explained: asyncio.Event = field(default_factory=asyncio.Event)
    kill_reason: str = ""
    failed: wire.BootFailed | None = None

    def move(self, event: Event) -> None:
        """Go where `event` leads. Raises IllegalMove if it may not happen now."""
        self.state = move(self.state, event)
        self.state_at_s = time.monotonic()

    def view(self, generation: int) -> InstanceView:
        """Return what decisions see. One that was asked to drain counts as draining until it says that it is busy."""
        asked = self.drain_asked_at_s is not None and self.state is State.READY
        return InstanceView(
            instance_id=self.instance_id,
            state=State.DRAINING if asked else self.state,
            ref=self.ref,
            role=self.role,
            environment=self.environment,
            devices=self.devices,
            in_flight=self.in_flight,
            started_at_s=self.started_at_s,
            ready_at_s=self.ready_at_s,
            idle_since_s=self.idle_since_s,
            memory_bytes=self.memory_bytes,
            stale=self.state is State.BLANK and self.generation < generation,
        )

    def reported(self, in_flight: int, idle_s: float) -> None:
        """Take over how many calls it has now and, without any, since when."""
        now_s = time.monotonic()
        if in_flight and not self.in_flight:
            self.busy_since_s = now_s
        self.in_flight = in_flight
        self.idle_since_s = None if in_flight else now_s - idle_s

    def has_idle_news(self, now_s: float) -> bool:
        """Return whether what is published of its being idle has been untrue for a while: never once per call."""
        told, true = self.told_idle_since_s, self.idle_since_s
        if self.state is not State.READY:
            return False
        if true is None:
            return told is not None and now_s - self.busy_since_s > IDLE_SETTLES_S
        return now_s - true > IDLE_SETTLES_S if told is None else true - told > IDLE_MAY_LAG_S

    def vitals(self, now_s: float) -> Vitals:
        """Return what the watchdog judges."""
        # a template has nothing to report: it speaks when it is told to fork
        silent_s = 0.0 if self.role == "template" else now_s - self.heard_at_s
        return Vitals(
            self.state,
            now_s - self.state_at_s,
            silent_s,
            self.overrun_s,
            self.in_flight,
        )

    def record(self, node: str, simulated: bool) -> InstanceRecord:
        """Return the published form. Its token is what gateways must present."""
        return InstanceRecord(
            instance_id=self.instance_id,
            state=self.state,
            ref=self.ref,
            node=node,
            pid=self.pid,
            address=self.address,
            token=self.token,
            concurrency=self.version.concurrency if self.version else 1,
            device=",".join(self.devices),
            from_template=self.from_template,
            started_at_s=self.born_at_s,
            ready_at_s=time.time() - (time.monotonic() - self.ready_at_s) if self.ready_at_s is not None else 0.0,
            boot_ms=self.boot_ms,
            memory_bytes=self.memory_bytes,
            sandbox=[*self.sandbox, *self.groups],
            simulated=simulated and self.devices != (CPU,),
            idle_since_s=time.time() - (time.monotonic() - self.idle_since_s) if self.idle_since_s is not None else 0.0,
            ended=out_of_memory(self) if self.was_out_of_memory else "",
        )

    def note(self) -> Note:
        """Return what the next manager needs to adopt this process."""
        return Note(
            instance_id=self.instance_id,
            kind=self.role,
            pid=self.pid,
            start_ticks=self.start_ticks,
            address=self.address,
            token=self.token,
            ref=self.ref,
            environment=self.environment,
            devices=self.devices,
            generation=self.generation,
            started_at_s=self.born_at_s,
            uid=self.uid,
        )

    def kill(self, reason: str) -> None:
        """End the process at once; its end is seen by the connection that closes."""
        self.kill_reason = self.kill_reason or reason
        procfs.kill(self.pid, self.start_ticks)


def out_of_memory(instance: Instance) -> str:
    """Return one sentence on an instance that the kernel killed for want of memory."""
    declared_gib = instance.version.manifest.resources.memory_gib if instance.version is not None else None
    limit = f"memory_gib is {declared_gib:g}" if declared_gib else "Resources.memory_gib, or else the node's budget"
    return f"the instance was killed because it used more memory than it may ({limit})"


def describe_end(instance: Instance, doing: str) -> str:
    """Return one sentence on how a process ended that was not asked to. doing: "loading", "serving"."""
    if instance.kill_reason and instance.kill_reason != CONNECTION_CLOSED:
        return f"the instance was stopped while {doing}: {instance.kill_reason}"
    if instance.was_out_of_memory:
        return f"{out_of_memory(instance)}, while {doing}"
    code = instance.exit_code
    if code is None:
        return f"the instance ended while {doing}"
    if code < 0:
        hint = " (out of memory?)" if code == -9 else ""
        return f"the instance was killed by signal {-code} while {doing}{hint}"
    return f"the instance ended with exit code {code} while {doing}"
