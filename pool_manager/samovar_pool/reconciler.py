"""From what is and what should be to a list of actions. One pass, no memory: the next snapshot shows what came of it.

Order of a pass: versions that are gone, surplus instances, missing instances (those with none first), those missing for
queued jobs alone (only if calls found room for theirs), memory over budget, templates, blanks. This module does not
know how an action is carried out.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import replace

from samovar.lifecycle import State, holds_capacity
from samovar_pool import eviction, placement
from samovar_pool.model import (
    CPU,
    Action,
    DeviceView,
    DrainInstance,
    ForkBlank,
    ForkTemplate,
    InstanceView,
    KillInstance,
    Reject,
    Snapshot,
    Specialise,
    StartEnvironment,
    VersionView,
)

REFILL_DEFER_S = 2.0  # a refill waits this long for a load in progress: forking competes with it for the same cores

MAX_STARTING_BLANKS = 16  # a zygote forks one by one: more at once would only wait, and compete with those that load

BlankKey = tuple[str, str]  # environment, device


def reconcile(snapshot: Snapshot) -> list[Action]:
    """Return the actions that bring the instances towards what their versions should have.

    An instance with work in flight is never stopped, unless its version was deleted, or it is there for queued jobs
    alone and has to give way: then it drains.
    """
    work = _Pass(snapshot)
    versions = list(snapshot.versions.values())
    for version in versions:
        work.remove_surplus(version)
    versions_with_none_first = sorted(versions, key=lambda v: work.num_have(v.ref) > 0)
    for version in versions_with_none_first:
        work.add_missing(version)
    for version in versions_with_none_first:
        work.add_missing_for_jobs(version)
    work.shed_overuse()
    for version in versions:
        work.make_template(version)
    work.fill_blanks()
    return work.actions


class _Pass:
    """The working state of one pass: what is left of blanks, devices and memory after the actions decided so far."""

    def __init__(self, snapshot: Snapshot) -> None:
        self.snapshot = snapshot
        self.actions: list[Action] = []
        self._by_ref: defaultdict[str, list[InstanceView]] = defaultdict(list)
        self._held: defaultdict[str, list[InstanceView]] = defaultdict(list)
        self._blanks: defaultdict[BlankKey, list[InstanceView]] = defaultdict(list)
        self._starting_blanks: Counter[BlankKey] = Counter()
        self._wanted_blanks: Counter[BlankKey] = Counter()
        self._devices = {device.device: device for device in snapshot.devices}
        self._stopping: set[str] = set()
        self._calls_lack: set[str] = set()  # memory, device: what instances for calls found no room in
        for instance in snapshot.instances:
            self._sort_in(instance)
        self._used_bytes = sum(self._expected_bytes(i) for i in snapshot.instances)
        self._is_loading = any(i.state is State.LOADING for i in snapshot.instances)

    def _sort_in(self, instance: InstanceView) -> None:
        if instance.ref:
            self._by_ref[instance.ref].append(instance)
            if instance.role == "instance" and holds_capacity(instance.state):
                self._held[instance.ref].append(instance)
        elif instance.state is State.BLANK:
            self._blanks[_blank_key(instance)].append(instance)
        elif instance.state is State.STARTING:
            self._starting_blanks[_blank_key(instance)] += 1

    def _expected_bytes(self, instance: InstanceView) -> int:
        """Return what an instance uses, or will once it is up."""
        version = self.snapshot.versions.get(instance.ref)
        if version is not None and instance.state in (State.STARTING, State.LOADING):
            return max(instance.memory_bytes, version.need_bytes)
        return instance.memory_bytes

    def num_have(self, ref: str) -> int:
        """Return how many instances of `ref` hold capacity."""
        return len(self._holding(ref))

    def _holding(self, ref: str) -> list[InstanceView]:
        held = self._held.get(ref, [])
        return [i for i in held if i.instance_id not in self._stopping] if self._stopping else held

    # ---- fewer -----------------------------------------------------------------------------------------------------

    def remove_surplus(self, version: VersionView) -> None:
        """Stop what a deleted version still has, or the instances beyond `desired`."""
        if version.deleted:
            for instance in self._by_ref.get(version.ref, ()):
                self._remove_deleted(instance)
            return
        surplus = self.num_have(version.ref) - version.desired
        if surplus > 0:
            holding = self._holding(version.ref)
            for victim in (surplus_victims(holding) + working_victims(holding, version))[:surplus]:
                self._stop(victim, "surplus")

    def _remove_deleted(self, instance: InstanceView) -> None:
        if instance.role == "instance" and instance.state is State.READY:
            self._stopping.add(instance.instance_id)
            self.actions.append(DrainInstance(instance.instance_id, instance.ref, "deleted", if_idle=False))
        elif instance.state not in (State.DRAINING, State.GONE):
            self._stop(instance, "deleted")

    def _stop(self, instance: InstanceView, rule: str) -> None:
        self._stopping.add(instance.instance_id)
        if instance.role == "instance" and instance.state is State.READY:
            self.actions.append(DrainInstance(instance.instance_id, instance.ref, rule, if_idle=not instance.in_flight))
        else:
            self.actions.append(KillInstance(instance.instance_id, instance.ref, rule))

    # ---- more ------------------------------------------------------------------------------------------------------

    def add_missing(self, version: VersionView) -> None:
        """Start the instances that calls and floors need, as far as back-off, devices and memory allow."""
        for _ in range(version.desired - version.for_jobs - self.num_have(version.ref)):
            if not self._may_start(version) or not self._add_one(version, for_jobs=False):
                return

    def add_missing_for_jobs(self, version: VersionView) -> None:
        """Start the rest of `desired`, unless that takes the room that calls of any version wait for."""
        needed = max(self.num_have(version.ref), version.desired - version.for_jobs)
        for _ in range(version.desired - needed):
            if not self._may_start(version):
                return
            if self._must_yield(version):
                self.actions.append(Reject(version.ref, "jobs", "queued jobs wait: calls need the room first"))
                return
            if not self._add_one(version, for_jobs=True):
                return

    def _may_start(self, version: VersionView) -> bool:
        return not version.deleted and self.snapshot.now_s >= version.retry_at_s

    def _must_yield(self, version: VersionView) -> bool:
        wants_device = placement.wants_device(version.resources)
        return "memory" in self._calls_lack or (wants_device and "device" in self._calls_lack)

    def _add_one(self, version: VersionView, *, for_jobs: bool) -> bool:
        devices = self._find_devices(version, for_jobs=for_jobs)
        if devices is None:
            return False
        may_evict = not for_jobs or not self._by_ref.get(version.ref)
        if not self._make_room(version.need_bytes, version.ref, may_evict=may_evict):
            if not for_jobs:
                self._calls_lack.add("memory")
            return False
        template = self._template_of(version.ref)
        if template is not None and template.state is State.READY and devices == (CPU,):
            self.actions.append(ForkTemplate(template.instance_id, version.ref, "missing"))
        else:
            self._claim(version, devices)
        self._used_bytes += version.need_bytes
        self._occupy(version, devices)
        return True

    def _find_devices(self, version: VersionView, *, for_jobs: bool) -> tuple[str, ...] | None:
        """Return where one more instance goes; None if nowhere now, which is told unless somebody makes room."""
        devices = list(self._devices.values())
        fits = self._could_ever_fit(version)
        found = placement.place(
            version.resources, version.device_need_bytes, devices, self._devices_with_blanks(version)
        )
        if fits and found is not None:
            return found
        if fits and not for_jobs:
            self._calls_lack.add("device")
        if not fits or for_jobs or not self._make_device_room(version):
            self._reject(version)
        return None

    def _claim(self, version: VersionView, devices: tuple[str, ...]) -> None:
        key = (version.environment, devices[0])
        if self._blanks[key]:
            blank = self._blanks[key].pop(0)
            self.actions.append(Specialise(blank.instance_id, version.ref, devices, "missing"))
        else:
            self._wanted_blanks[key] += 1

    def _devices_with_blanks(self, version: VersionView) -> set[str]:
        return {
            device
            for (environment, device), blanks in self._blanks.items()
            if environment == version.environment and blanks
        }

    def _occupy(self, version: VersionView, devices: tuple[str, ...]) -> None:
        exclusive = placement.takes_whole_devices(version.resources)
        for name in devices:
            if name in self._devices:
                device = self._devices[name]
                free = device.free_bytes - version.device_need_bytes
                self._devices[name] = replace(
                    device, free_bytes=free, holders=device.holders + 1, exclusive=device.exclusive or exclusive
                )

    def _could_ever_fit(self, version: VersionView) -> bool:
        return placement.could_ever_fit(
            version.resources,
            version.device_need_bytes,
            self.snapshot.devices,
            self.snapshot.memory_budget_bytes,
            version.need_bytes,
        )

    def _reject(self, version: VersionView) -> None:
        if self._could_ever_fit(version):
            self.actions.append(Reject(version.ref, "device", "every device it could use is taken"))
            return
        detail = _why_never(version, self.snapshot.devices, self.snapshot.memory_budget_bytes)
        self.actions.append(Reject(version.ref, "never", detail, permanent=True))

    def _make_device_room(self, version: VersionView) -> bool:
        """Return whether a device comes free for calls of `version`: those there for queued jobs alone give way."""
        leaving = [i for i in self.snapshot.instances if i.state is State.DRAINING or i.instance_id in self._stopping]
        gone = {i.instance_id for i in leaving}
        staying = [i for i in self.snapshot.instances if i.instance_id not in gone]
        devices = list(self._devices.values())
        chosen = eviction.device_victims(version, devices, leaving, staying, self.snapshot.versions)
        for victim in chosen or ():
            self._stop(victim, "evict")
        return chosen is not None

    # ---- memory ----------------------------------------------------------------------------------------------------

    def _make_room(self, need_bytes: int, for_ref: str, *, may_evict: bool) -> bool:
        """Return whether `need_bytes` fit now; if not, stop those who should leave, and let a later pass start it."""
        over = self._used_bytes + need_bytes - self.snapshot.memory_budget_bytes
        if over <= 0:
            return True
        if not may_evict or self._evict(over, for_ref) == 0:
            used, budget = self._used_bytes >> 20, self.snapshot.memory_budget_bytes >> 20
            detail = f"{need_bytes >> 20} MiB do not fit: {used} of {budget} MiB are in use and nobody idle can leave"
            self.actions.append(Reject(for_ref, "memory", detail))
        return False

    def _evict(self, over_bytes: int, for_ref: str) -> int:
        """Stop whom the eviction policy names; return how many leave, counting those on their way out."""
        leaving = [i for i in self.snapshot.instances if i.state is State.DRAINING or i.instance_id in self._stopping]
        over_bytes -= sum(i.memory_bytes for i in leaving)
        if over_bytes <= 0:
            return len(leaving)
        gone = {i.instance_id for i in leaving}
        chosen = eviction.victims(
            [i for i in self.snapshot.instances if i.instance_id not in gone],
            self.snapshot.versions,
            over_bytes,
            for_ref,
            self.snapshot.now_s,
            self.snapshot.min_residency_s,
        )
        for victim in chosen:
            self._stop(victim, "evict")
        return len(chosen)

    def shed_overuse(self) -> None:
        """Evict when what runs has grown beyond the budget by itself."""
        measured = sum(i.memory_bytes for i in self.snapshot.instances)
        if measured > self.snapshot.memory_budget_bytes:
            self._evict(measured - self.snapshot.memory_budget_bytes, "")

    # ---- templates and blanks --------------------------------------------------------------------------------------

    def _template_of(self, ref: str) -> InstanceView | None:
        live = (State.LOADING, State.READY)
        return next((i for i in self._by_ref.get(ref, ()) if i.role == "template" and i.state in live), None)

    def make_template(self, version: VersionView) -> None:
        """Turn a spare blank into a template of `version`, if nothing else wants blanks, cores or memory now; the last
        one is left to those who call."""
        key = (version.environment, CPU)
        if not version.make_template or version.deleted or self._wanted_blanks or self._is_loading:
            return
        is_last = len(self._blanks[key]) <= min(1, self.snapshot.blank_targets.get(key, 0) - 1)
        fits = self._used_bytes + version.need_bytes <= self.snapshot.memory_budget_bytes
        if is_last or not self._blanks[key] or not fits or self.snapshot.now_s < version.retry_at_s:
            return
        if self._template_of(version.ref) is None:
            blank = self._blanks[key].pop(0)
            self.actions.append(Specialise(blank.instance_id, version.ref, (CPU,), "template", role="template"))
            self._used_bytes += version.need_bytes

    def fill_blanks(self) -> None:
        """Fork the blanks that are waited for, top up to the target when nothing loads, recycle and thin out."""
        now_s, starting = self.snapshot.now_s, (State.LOADING, State.STARTING)
        quiet = not any(
            i.ref and i.state in starting and now_s - i.started_at_s < REFILL_DEFER_S for i in self.snapshot.instances
        ) and not any(isinstance(action, Specialise | ForkTemplate) for action in self.actions)
        for key in sorted({*self.snapshot.blank_targets, *self._wanted_blanks, *self._blanks}):
            self._fill(key, quiet)

    def _fill(self, key: BlankKey, quiet: bool) -> None:
        environment, device = key
        wanted, starting = min(self._wanted_blanks[key], MAX_STARTING_BLANKS), self._starting_blanks[key]
        free = self._blanks[key]
        target = self.snapshot.blank_targets.get(key, 0)
        if environment not in self.snapshot.environments_ready:
            if wanted or target:
                self.actions.append(StartEnvironment(environment, "wanted"))
            return
        urgent = max(0, wanted - starting)
        spare = len(free) + starting + urgent - wanted
        self.actions += [ForkBlank(environment, device, "wanted")] * urgent
        if quiet and spare < target:
            self.actions += [ForkBlank(environment, device, "warm pool")] * (target - spare)
        elif quiet and free and spare > target:
            self._stop(free[0], "blank surplus")
        elif quiet and len(free) >= target and starting == 0:
            self._recycle(free)

    def _recycle(self, free: list[InstanceView]) -> None:
        """End one blank of an older zygote generation; its replacement is forked in the next pass."""
        stale = next((blank for blank in free if blank.stale), None)
        if stale is not None:
            self._stop(stale, "recycle")


def surplus_victims(instances: list[InstanceView]) -> list[InstanceView]:
    """Return who may be stopped, starting ones first, then idle longest; one with work in flight never."""
    starting = [i for i in instances if i.state is not State.READY]
    idle = [i for i in instances if i.state is State.READY and i.in_flight == 0]
    starting.sort(key=lambda i: (-i.started_at_s, i.instance_id))
    idle.sort(key=lambda i: (i.idle_since_s if i.idle_since_s is not None else float("inf"), i.instance_id))
    return starting + idle


def working_victims(instances: list[InstanceView], version: VersionView) -> list[InstanceView]:
    """Return who may be stopped although it works, the least busy first: jobs would keep a surplus busy for ever, as
    there is always a next one; it finishes what it has."""
    working = [i for i in instances if version.for_jobs and i.state is State.READY and i.in_flight]
    return sorted(working, key=lambda i: (i.in_flight, i.instance_id))


def _blank_key(instance: InstanceView) -> BlankKey:
    return (instance.environment, instance.devices[0])


def _why_never(version: VersionView, devices: list[DeviceView], budget_bytes: int) -> str:
    if version.need_bytes > budget_bytes:
        budget = f"the memory budget of this node is {budget_bytes >> 20} MiB"
        return f"an instance needs {version.need_bytes >> 20} MiB; {budget}"
    memory = f" with {version.device_need_bytes >> 20} MiB" if version.device_need_bytes else ""
    need = f"{_gpus(max(1, version.resources.gpus))}{memory}"
    return f"an instance needs {need}; this node has {_gpus(len(devices))}"


def _gpus(count: int) -> str:
    return "no GPU" if count == 0 else "1 GPU" if count == 1 else f"{count} GPUs"
