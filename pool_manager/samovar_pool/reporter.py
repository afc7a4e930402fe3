"""Turns passes and events into records: instances, decisions with reasons, statuses, boot failures.

This module does not know when or whether a record is written; `recorder` does.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter, defaultdict

import msgspec

from samovar.lifecycle import State
from samovar.spec import parse_ref
from samovar_pool.autoscaler import ScaleDecision
from samovar_pool.backends.base import BootError
from samovar_pool.backends.instance import Instance
from samovar_pool.backends.local import LocalBackend
from samovar_pool.devices import DeviceFacts, Devices
from samovar_pool.job_load import JobLoad, in_words
from samovar_pool.knowledge import Knowledge
from samovar_pool.model import Action, ForkBlank, InstanceView, Reject, StartEnvironment
from samovar_pool.observer import Observation
from samovar_pool.recorder import Recorder
from samovar_storage.breakers import Unwell
from samovar_storage.records import BootFailure, Decision, DeviceStatus, InstanceRecord, NodeStatus, VersionStatus

logger = logging.getLogger("samovar.pool")

STATUS_EVERY_S = 3.0
RELEASE_CHECK_S = (0.05, 0.5, 2.0)  # the driver needs a moment to count a dead process's memory as free


class Reporter:
    """Remembers what was recorded last, so that only news is."""

    def __init__(
        self, node: str, backend: LocalBackend, devices: Devices, knowledge: Knowledge, recorder: Recorder
    ) -> None:
        self.facts: list[DeviceFacts] = devices.read()
        self._node = node
        self._backend = backend
        self._devices = devices
        self._knowledge = knowledge
        self._recorder = recorder
        self._last: dict[str, tuple[int, str]] = {}
        self._rejected: dict[str, str] = {}
        self._reported: dict[str, tuple[int, ...]] = {}
        self._status_at_s = float("-inf")
        self._failed: set[str] = set()
        for fact in self.facts:
            knowledge.ledger.foreign(fact.device, fact.used_bytes)

    def published(self) -> list[InstanceRecord]:
        """Return every instance that Redis should hold now: not templates."""
        return [self._record(i) for i in self._backend.instances.values() if i.role == "instance"]

    def instance(self, instance: Instance) -> None:
        """Store and publish it."""
        instance.told_idle_since_s = instance.idle_since_s
        self._recorder.instance(self._record(instance))

    def idle(self, now_s: float) -> None:
        """Publish those whose being idle or busy has changed for good."""
        for instance in self._backend.instances.values():
            if instance.role == "instance" and instance.has_idle_news(now_s):
                self.instance(instance)

    def gone(self, instance: Instance) -> None:
        """Remove it and publish that."""
        self._recorder.gone(self._record(instance))

    def _record(self, instance: Instance) -> InstanceRecord:
        return instance.record(self._node, self._devices.simulated)

    def boot_failure(self, error: BootError, num_failures: int, retry_in_s: float) -> None:
        """Record a failed boot and tell those who wait for it."""
        now_s = time.time()
        failure = BootFailure(
            ref=error.ref,
            code=error.code,
            status=error.status,
            detail=error.detail,
            phase=error.phase,
            log_tail=error.log_tail,
            num_failures=num_failures,
            failed_at_s=now_s,
            retry_at_s=now_s + max(0.0, retry_in_s),
        )
        self._failed.add(error.ref)
        self._recorder.boot_failure(failure)
        self._decide(error.ref, "boot_failed", error.code, 0, 0, {"num_failures": num_failures})

    def does_not_load(self, error: BootError) -> None:
        """Record that a version that was just deployed does not load, though nobody waits for it."""
        self._decide(error.ref, "prepare", f"does not load: {error.detail}", 0, 0, {})

    def unwell(self, news: Unwell) -> None:
        """Record that an instance is replaced because its own checks keep failing."""
        self._decide(news.ref, "replace", f"unwell: {news.fault}", 0, 0, {})

    def lost(self, instance: Instance, how: str) -> None:
        """Record how an instance or a template ended that was serving, and tell those who still wait for the reason."""
        if instance.role == "instance":
            self._recorder.gone(msgspec.structs.replace(self._record(instance), ended=how))
        self._decide(instance.ref, "lost", f"{instance.instance_id}: {how}", 0, 0, {})

    def boot_succeeded(self, ref: str) -> None:
        """Forget its last failure."""
        if ref in self._failed:
            self._failed.discard(ref)
            self._recorder.boot_success(ref)

    def forget(self, ref: str) -> None:
        """Drop what was recorded of a version that is unrouted and has nothing left."""
        self._last.pop(ref, None)
        self._reported.pop(ref, None)
        self._failed.discard(ref)

    # ---- decisions -------------------------------------------------------------------------------------------------

    def record(self, observation: Observation, actions: list[Action], now_s: float) -> None:
        """Record new scaling decisions and every action with its reason."""
        for ref, decision in observation.decisions.items():
            if self._last.get(ref, (0, "idle")) != (decision.target, decision.rule):
                self._last[ref] = (decision.target, decision.rule)
                self._decide(
                    ref,
                    "scale",
                    decision.rule,
                    decision.target,
                    int(decision.inputs["ready"]),
                    decision.inputs,
                    _why_jobs(decision, observation.jobs.get(ref)),
                )
        rejected = {action.ref: action.detail for action in actions if isinstance(action, Reject)}
        for action in actions:
            if not isinstance(action, ForkBlank | StartEnvironment) and action.ref:
                self._record_action(action, observation.decisions.get(action.ref))
        self._rejected = rejected

    def _record_action(self, action: Action, decision: ScaleDecision | None) -> None:
        if isinstance(action, ForkBlank | StartEnvironment):
            return
        if isinstance(action, Reject):
            if self._rejected.get(action.ref) == action.detail:
                return
            logger.warning("cannot start %s: %s", action.ref, action.detail)
        desired = decision.target if decision is not None else 0
        ready = int(decision.inputs["ready"]) if decision is not None else 0
        self._decide(action.ref, type(action).__name__, action.rule, desired, ready, {})

    def _decide(
        self, ref: str, action: str, rule: str, desired: int, ready: int, inputs: dict[str, float], detail: str = ""
    ) -> None:
        record = Decision(
            at_s=time.time(),
            ref=ref,
            action=action,
            rule=rule,
            desired=desired,
            ready=ready,
            inputs=inputs,
            detail=detail,
        )
        self._recorder.decisions(parse_ref(ref)[0], [record])

    # ---- statuses --------------------------------------------------------------------------------------------------

    def statuses(self, observation: Observation, now_s: float) -> None:
        """Record every active version's status when it changed, and every few seconds those of versions that have or
        want something, and the node's."""
        is_due = now_s - self._status_at_s >= STATUS_EVERY_S
        by_ref: defaultdict[str, list[InstanceView]] = defaultdict(list)
        for instance in observation.snapshot.instances:
            by_ref[instance.ref].append(instance)
        for ref, decision in observation.decisions.items():
            detail = _why_jobs(decision, observation.jobs.get(ref))
            self._status(ref, decision, detail, by_ref.get(ref, []), is_due)
        if is_due:
            self._status_at_s = now_s
            self._backend.spawn(self._measure(observation))

    def _status(
        self, ref: str, decision: ScaleDecision, detail: str, instances: list[InstanceView], is_due: bool
    ) -> None:
        count = Counter("template" if i.role == "template" else i.state for i in instances)
        starting = count[State.STARTING] + count[State.LOADING]
        facts = (decision.target, count[State.READY], starting, count[State.DRAINING], count["template"])
        if self._reported.get(ref) == facts and not (is_due and any(facts)):
            return
        self._reported[ref] = facts
        status = VersionStatus(
            ref=ref,
            desired=decision.target,
            ready=count[State.READY],
            starting=starting,
            draining=count[State.DRAINING],
            reason=self._rejected.get(ref) or detail or decision.rule,
            at_s=time.time(),
            templates=count["template"],
            memory_bytes=sum(i.memory_bytes for i in instances),
            manner=next((i.manner for i in self._backend.instances.values() if i.ref == ref and i.manner), ""),
        )
        self._recorder.status(status)

    async def _measure(self, observation: Observation) -> None:
        """Measure processes and devices in threads, learn from that, and record the node's status."""
        await self._backend.measure()
        self.facts = await asyncio.to_thread(self._devices.read)
        ledger = self._knowledge.ledger
        for instance in list(self._backend.instances.values()):
            if instance.ref and instance.state in (State.READY, State.DRAINING):
                ledger.learn(instance.ref, "cpu", instance.own_bytes)
                if instance.device_peak_bytes:
                    ledger.measured(instance.instance_id, instance.ref, instance.device_peak_bytes)
        self._recorder.node(self._node_status(observation))

    def _node_status(self, observation: Observation) -> NodeStatus:
        snapshot, instances = observation.snapshot, list(self._backend.instances.values())
        zygote = self._backend.zygotes.get("")
        return NodeStatus(
            node=self._node,
            blanks=sum(i.state is State.BLANK for i in instances),
            blank_target=sum(snapshot.blank_targets.values()),
            instances=sum(bool(i.ref) and i.role == "instance" for i in instances),
            memory_budget_bytes=snapshot.memory_budget_bytes,
            memory_used_bytes=sum(i.memory_bytes for i in instances),
            devices=[
                DeviceStatus(
                    device=view.device,
                    name=fact.name,
                    memory_bytes=view.total_bytes,
                    free_bytes=view.free_bytes,
                    simulated=view.simulated,
                )
                for view, fact in zip(snapshot.devices, self.facts, strict=False)
            ],
            at_s=time.time(),
            zygote_ready=zygote is not None and zygote.ready,
            sandbox=zygote.sandbox if zygote is not None else [],
        )

    async def check_devices(self, names: tuple[str, ...]) -> None:
        """After a release: ask the driver, a few times, until it agrees with the ledger; what remains is logged."""
        discrepancies = []
        for pause_s in RELEASE_CHECK_S:
            await asyncio.sleep(pause_s)
            self.facts = await asyncio.to_thread(self._devices.read)
            there = Counter(device for i in self._backend.instances.values() for device in i.devices)
            ledger = self._knowledge.ledger
            found = [ledger.check(f.device, f.used_bytes, there[f.device]) for f in self.facts if f.device in names]
            discrepancies = [discrepancy for discrepancy in found if discrepancy is not None]
            if not discrepancies:
                return
        for d in discrepancies:
            logger.warning("%s: %d MiB are in use that no instance explains", d.device, d.missing_bytes >> 20)


def _why_jobs(decision: ScaleDecision, load: JobLoad | None) -> str:
    return in_words(decision.target, load) if decision.for_jobs and load is not None else ""
