"""Joins everything known now into one `Snapshot`, with the autoscaler's word on every version that is active.

Only versions with demand, instances, a floor or a recent past are looked at, so that thousands of sleeping ones cost
nothing. This module does not act.
"""

from __future__ import annotations

import math
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from samovar.lifecycle import State, holds_capacity
from samovar.spec import Route, version_ref
from samovar_pool import placement, succession
from samovar_pool.autoscaler import ScaleDecision
from samovar_pool.backends.local import LocalBackend
from samovar_pool.devices import DeviceFacts
from samovar_pool.job_backlog import JobBacklog
from samovar_pool.job_load import JobLoad, cap_of, load_of, num_eligible, spread
from samovar_pool.knowledge import Knowledge
from samovar_pool.model import BASE_ENVIRONMENT, CPU, DeviceView, InstanceView, Snapshot, VersionView
from samovar_pool.settings import PoolSettings, memory_budget_bytes
from samovar_pool.signals import Signals
from samovar_pool.versions import Catalogue, Version
from samovar_pool.warm_pool import blank_target

SETTLED_FOR_S = 5.0


@dataclass(frozen=True, slots=True)
class Observation:
    """A snapshot, the scaling decisions in it by ref, and the versions whose layer must be installed first.

    jobs: ref → what queued jobs ask of it, of those they ask anything of.
    """

    snapshot: Snapshot
    decisions: dict[str, ScaleDecision]
    need_layer: list[Version] = field(default_factory=list)
    jobs: dict[str, JobLoad] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Settled:
    """What was found of a version that rests at its floor; it holds for a while, so that hundreds cost little."""

    version: Version
    decision: ScaleDecision
    view: VersionView
    at_s: float


class Observer:
    """Reads signals, backlog, backend and knowledge. `facts` returns the devices as last read from the driver."""

    def __init__(
        self,
        settings: PoolSettings,
        signals: Signals,
        backlog: JobBacklog,
        catalogue: Catalogue,
        backend: LocalBackend,
        knowledge: Knowledge,
        facts: Callable[[], list[DeviceFacts]],
        gpu_nodes: dict[str, int],
    ) -> None:
        self._settings = settings
        self._signals = signals
        self._backlog = backlog
        self._catalogue = catalogue
        self._backend = backend
        self._knowledge = knowledge
        self._facts = facts
        self._gpu_nodes = gpu_nodes
        self._budget_bytes = memory_budget_bytes(settings)
        self._settled: dict[str, Settled] = {}
        self._jobs: dict[str, JobLoad] = {}

    def observe(self, now_s: float) -> Observation:
        """Return what is and what should be at `now_s` (monotonic)."""
        instances = self._backend.views()
        by_ref: defaultdict[str, list[InstanceView]] = defaultdict(list)
        for instance in instances:
            by_ref[instance.ref].append(instance)
        views: dict[str, VersionView] = {}
        decisions: dict[str, ScaleDecision] = {}
        need_layer: list[Version] = []
        followers = self._followers(by_ref)
        self._jobs = self._job_loads()
        for ref in self._active(by_ref) | followers.keys():
            version = self._catalogue.versions.get(ref)
            if version is None:
                continue
            settled = self._settled.get(ref) if ref not in followers else None
            if settled is not None and self._still_holds(settled, version, by_ref[ref], now_s):
                decisions[ref], views[ref] = settled.decision, settled.view
                continue
            floor = max(self._signals.warm.get(ref, 0), followers.get(ref, 0))
            decisions[ref] = self._scale(version, by_ref[ref], followers.get(ref, 0), now_s)
            views[ref] = view = self._view(version, by_ref[ref], decisions[ref], floor, now_s)
            self._settle(version, decisions[ref], view, now_s)
            if view.retry_at_s == math.inf:
                need_layer.append(version)
            else:
                self._catalogue.layer_found(ref)
        for ref in self._settled.keys() - views.keys():
            del self._settled[ref]
        snapshot = Snapshot(
            now_s=now_s,
            versions=views,
            instances=instances,
            devices=self.device_views(by_ref),
            blank_targets=self.blank_targets(now_s),
            environments_ready=self._backend.zygotes.ready(),
            memory_budget_bytes=self._budget_bytes,
            min_residency_s=self._settings.min_residency_s,
        )
        return Observation(snapshot, decisions, need_layer, self._jobs)

    def _job_loads(self) -> dict[str, JobLoad]:
        """Return ref → what queued jobs ask of it: its share of those that wait, and those that run."""
        running, waiting = self._signals.jobs, dict.fromkeys(self._signals.jobs, 0)
        for name, queues in self._backlog.functions.items():
            route = self._catalogue.route(name)
            for number, share in spread(route).items() if route is not None else ():
                version = self._catalogue.versions.get(version_ref(name, number))
                if version is not None:
                    waiting[version.ref] = math.ceil(share * num_eligible(queues, version.manifest.jobs) - 1e-9)
        return {
            ref: load_of(num_jobs, running.get(ref, 0.0), version.manifest.jobs, version.scaling)
            for ref, num_jobs in waiting.items()
            if (num_jobs or running.get(ref)) and (version := self._catalogue.versions.get(ref)) is not None
        }

    def _followers(self, by_ref: dict[str, list[InstanceView]]) -> dict[str, int]:
        """Return ref → instances it is to have because others of its function have some: canaries, mirrors, successors.

        A function whose successor has come up is settled here.
        """
        found: dict[str, int] = {}
        catalogue, wall_s = self._catalogue, time.time()
        for name in {ref.rpartition("@")[0] for ref in by_ref} & catalogue.rolling.keys():
            route = catalogue.rolling[name]
            company = self._company(route, by_ref)
            if not catalogue.is_settled(route) and succession.has_come_up(route, company, wall_s):
                catalogue.settle(name)
            floors = succession.floors(route, company, catalogue.is_settled(route))
            found |= {version_ref(name, version): floor for version, floor in floors.items()}
        return found

    def _company(self, route: Route, by_ref: dict[str, list[InstanceView]]) -> succession.Company:
        """Return the versions that a route names, with what they have and may have."""
        refs = {version: version_ref(route.name, version) for version in route.receiving()}
        known = {v: self._catalogue.versions[ref] for v, ref in refs.items() if ref in self._catalogue.versions}
        scaling = {v: route.scaling or version.manifest.scaling for v, version in known.items()}
        return succession.Company(
            ready={v: _num_ready(by_ref.get(ref, ())) for v, ref in refs.items()},
            least={v: one.min_instances for v, one in scaling.items()},
            most={v: one.max_instances for v, one in scaling.items()},
        )

    def _active(self, by_ref: dict[str, list[InstanceView]]) -> set[str]:
        active = {
            *self._signals.demand,
            *self._jobs,
            *self._signals.warm,
            *by_ref,
            *self._catalogue.floors,
            *self._knowledge.scalers,
            *self._knowledge.to_prepare,
        }
        active |= self._catalogue.with_requirements
        active.discard("")
        return active

    def _settle(self, version: Version, decision: ScaleDecision, view: VersionView, now_s: float) -> None:
        at_floor = view.floor == decision.target == decision.inputs["ready"]
        if at_floor and not decision.inputs["demand"] and not view.make_template:
            self._settled[version.ref] = Settled(version, decision, view, now_s)
        else:
            self._settled.pop(version.ref, None)

    def _still_holds(self, settled: Settled, version: Version, instances: list[InstanceView], now_s: float) -> bool:
        """Return whether a version that rested at its floor does so still: unwanted, with all it should have."""
        return (
            settled.version is version
            and now_s - settled.at_s < SETTLED_FOR_S
            and not self._signals.demand.get(version.ref)
            and version.ref not in self._jobs
            and version.ref not in self._signals.warm
            and len(instances) == settled.decision.target
            and all(i.state is State.READY and i.role == "instance" for i in instances)
        )

    def _scale(self, version: Version, instances: list[InstanceView], following: int, now_s: float) -> ScaleDecision:
        demand = self._signals.demand.get(version.ref, 0.0) if self._signals.known(now_s) else None
        if version.ref in self._signals.woken_at_s and demand is None:
            demand = self._signals.demand.get(version.ref)
        load = self._jobs.get(version.ref, JobLoad(cap=cap_of(version.manifest.jobs, version.scaling)))
        jobs = load.demand(version.target_concurrency)
        if demand is not None:
            demand = max(0.0, demand - load.running) + jobs
        scaler = self._knowledge.scaler(version.ref, now_s)
        scaler.observe(now_s, demand, jobs)
        holding = [i for i in instances if i.role == "instance" and holds_capacity(i.state)]
        ready = sum(i.state is State.READY for i in holding)
        warm = self._signals.warm.get(version.ref, 0)
        starting = len(holding) - ready
        decision = scaler.decide(
            now_s, version.scaling, version.target_concurrency, ready, starting, warm, following, load.cap
        )
        self._note_missing(version.ref, decision.target > len(holding), now_s)
        return decision

    def is_awaited(self, ref: str) -> bool:
        """Return whether calls wait for the first instance of a version that has been ready here before: the first of
        them can be its warm-up."""
        is_served = any(i.ref == ref and i.state is State.READY for i in self._backend.instances.values())
        return self._signals.demand.get(ref, 0.0) > 0 and self._knowledge.has_booted(ref) and not is_served

    def _note_missing(self, ref: str, is_missing: bool, now_s: float) -> None:
        if not is_missing:
            self._knowledge.missing_since_s.pop(ref, None)
        else:
            woken_s = self._signals.woken_at_s.get(ref, 0.0)
            self._knowledge.missing_since_s.setdefault(ref, woken_s if now_s - woken_s < 1.0 else now_s)

    def _view(
        self, version: Version, instances: list[InstanceView], decision: ScaleDecision, floor: int, now_s: float
    ) -> VersionView:
        knowledge, ref, resources = self._knowledge, version.ref, version.manifest.resources
        environment = self._backend.preparer.environment(version)
        scaling = version.scaling
        has_template = any(i.role == "template" for i in instances)
        only_templates = all(i.role == "template" for i in instances)
        can_grow = scaling.min_instances < scaling.max_instances  # else a template would only wait for a crash
        may_template = can_grow and (ref in knowledge.may_template or ref in knowledge.to_prepare)
        is_over = not version.routed and decision.target == 0 and only_templates
        return VersionView(
            ref=ref,
            desired=decision.target,
            floor=min(max(scaling.min_instances, floor), scaling.max_instances),
            resources=resources,
            environment=environment or BASE_ENVIRONMENT,
            need_bytes=version.host_need_bytes(knowledge.ledger.expected(ref, "cpu", 0), is_first=not instances),
            device_need_bytes=knowledge.ledger.expected(ref, "gpu", version.declared_device_bytes),
            reload_cost_s=knowledge.boot_s(ref),
            recent_use=knowledge.scaler(ref, now_s).mean_demand(now_s),
            retry_at_s=math.inf if environment is None else knowledge.backoff.retry_at_s(ref),
            deleted=self._catalogue.is_deleted(ref) or is_over,
            make_template=may_template and not has_template and self._signals.num_queued == 0,
            for_jobs=decision.for_jobs,
        )

    def device_views(self, by_ref: dict[str, list[InstanceView]]) -> list[DeviceView]:
        """Return the devices with what is really free on them, and who is there."""
        holders: defaultdict[str, int] = defaultdict(int)
        exclusive: set[str] = set()
        for ref, instances in by_ref.items():
            version = self._catalogue.versions.get(ref)
            whole = version is not None and placement.takes_whole_devices(version.manifest.resources)
            for device in (device for i in instances if ref for device in i.devices):
                holders[device] += 1
                exclusive |= {device} if whole else set()
        ledger = self._knowledge.ledger
        return [
            DeviceView(
                device=fact.device,
                total_bytes=fact.total_bytes,
                free_bytes=ledger.free_bytes(fact.device, fact.total_bytes, fact.free_bytes),
                numa_node=self._gpu_nodes.get(fact.pci, -1),
                holders=holders[fact.device],
                exclusive=fact.device in exclusive,
                simulated=fact.simulated,
            )
            for fact in self._facts()
        ]

    def blank_targets(self, now_s: float) -> dict[tuple[str, str], int]:
        """Return how many blanks to keep on the CPU and, when any function uses devices, on each device."""
        names = [CPU, *(fact.device for fact in self._facts())] if self._catalogue.uses_devices else [CPU]
        low, high = self._settings.min_blanks, self._settings.max_blanks
        claims = self._knowledge.claims
        return {(BASE_ENVIRONMENT, n): blank_target(claims[n], now_s, low, high) if n in claims else low for n in names}


def _num_ready(instances: Sequence[InstanceView]) -> int:
    return sum(i.state is State.READY and i.role == "instance" for i in instances)
