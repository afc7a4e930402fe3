"""What the decisions see and what they answer: frozen values, no behaviour.

All times are monotonic seconds of the manager that took the snapshot. This module does not know Redis or processes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Literal

from samovar.lifecycle import State
from samovar.spec import Resources

CPU = "cpu"
BASE_ENVIRONMENT = ""

Role = Literal["instance", "template"]


@dataclass(frozen=True, slots=True)
class InstanceView:
    """One process as the decisions see it. environment: "" for the base zygote, else the layer that has its own.

    devices: the devices it holds, ("cpu",) without any. in_flight: calls there now, as last reported.
    idle_since_s: since when it has had none, None while busy or not ready. memory_bytes: its own share (PSS).
    stale: a blank forked before the zygote learned new modules.
    """

    instance_id: str
    state: State
    ref: str = ""
    role: Role = "instance"
    environment: str = BASE_ENVIRONMENT
    devices: tuple[str, ...] = (CPU,)
    in_flight: int = 0
    started_at_s: float = 0.0
    ready_at_s: float | None = None
    idle_since_s: float | None = None
    memory_bytes: int = 0
    stale: bool = False


@dataclass(frozen=True, slots=True)
class VersionView:
    """What one version should have, and what an instance of it costs.

    desired: instances, from the autoscaler. floor: of them, how many an operator asked for. for_jobs: of them, how many
    are there for queued jobs alone: they give way to calls of any version. need_bytes: host memory one more instance is
    expected to take. device_need_bytes: the same on its device. reload_cost_s: learned boot time.
    recent_use: invocations a second, lately. retry_at_s: no boot before then (back-off). deleted: drain all, now.
    make_template: it has none, and a load showed that it may be one, or it was just deployed.
    """

    ref: str
    desired: int
    floor: int = 0
    resources: Resources = field(default_factory=Resources)
    environment: str = BASE_ENVIRONMENT
    need_bytes: int = 0
    device_need_bytes: int = 0
    reload_cost_s: float = 0.0
    recent_use: float = 0.0
    retry_at_s: float = 0.0
    deleted: bool = False
    make_template: bool = False
    for_jobs: int = 0


@dataclass(frozen=True, slots=True)
class DeviceView:
    """One accelerator. free_bytes: the smaller of what the driver measures and what the ledger leaves.

    holders: instances placed there (blanks not counted). exclusive: one of them took the whole device.
    """

    device: str
    total_bytes: int
    free_bytes: int
    numa_node: int = -1
    holders: int = 0
    exclusive: bool = False
    simulated: bool = False


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Everything the reconciler may look at. blank_target: blanks to keep per environment and device."""

    now_s: float
    versions: dict[str, VersionView]
    instances: list[InstanceView]
    devices: list[DeviceView] = field(default_factory=list)
    blank_targets: dict[tuple[str, str], int] = field(default_factory=dict)
    environments_ready: frozenset[str] = frozenset({BASE_ENVIRONMENT})
    memory_budget_bytes: int = 1 << 62
    blank_bytes: int = 0
    min_residency_s: float = 10.0


@dataclass(frozen=True, slots=True)
class ForkBlank:
    """Fork one more blank of `environment` on `device`."""

    environment: str
    device: str
    rule: str


@dataclass(frozen=True, slots=True)
class StartEnvironment:
    """Start the zygote of an environment that has none running."""

    environment: str
    rule: str


@dataclass(frozen=True, slots=True)
class Specialise:
    """Turn a blank into an instance (or template) of `ref` on `devices`."""

    instance_id: str
    ref: str
    devices: tuple[str, ...]
    rule: str
    role: Role = "instance"


@dataclass(frozen=True, slots=True)
class ForkTemplate:
    """Fork one more instance of `ref` from its template."""

    template_id: str
    ref: str
    rule: str


@dataclass(frozen=True, slots=True)
class DrainInstance:
    """Close its admission, let it finish. if_idle: only if it has no work in flight when the order arrives."""

    instance_id: str
    ref: str
    rule: str
    if_idle: bool = True


@dataclass(frozen=True, slots=True)
class KillInstance:
    """End a process that serves nobody: a blank, a template, one that is still loading, or one that hangs."""

    instance_id: str
    ref: str
    rule: str


@dataclass(frozen=True, slots=True)
class Reject:
    """Nothing can be started for `ref` now. permanent: it never could be on this node, so its callers must be told."""

    ref: str
    rule: str
    detail: str
    permanent: bool = False


Action = ForkBlank | StartEnvironment | Specialise | ForkTemplate | DrainInstance | KillInstance | Reject
