"""The loop: wait for a wake-up or the tick → observe → decide → act → record.

It hands the reconciler's actions to the backend, and what the backend reports to knowledge and records. This module
does not know how demand is transported, how a process is made, nor why an action was chosen.
"""

from __future__ import annotations

import asyncio
import logging
import time

from samovar import wire
from samovar.lifecycle import State
from samovar_pool import reconciler
from samovar_pool.backends.base import BootError
from samovar_pool.backends.instance import Instance
from samovar_pool.backends.local import LocalBackend
from samovar_pool.deploys import Deploys
from samovar_pool.knowledge import Knowledge
from samovar_pool.logs import LogShipper
from samovar_pool.model import (
    CPU,
    Action,
    DrainInstance,
    ForkBlank,
    ForkTemplate,
    KillInstance,
    Reject,
    Specialise,
    StartEnvironment,
)
from samovar_pool.observer import Observation, Observer
from samovar_pool.preload import Learner
from samovar_pool.reporter import Reporter
from samovar_pool.versions import Catalogue, Version
from samovar_storage.breakers import Unwell

logger = logging.getLogger("samovar.pool")

MAX_UNUSED_TEMPLATES = 8
MAX_PASS_SHARE = 3.0  # a pass that took t is followed by at least 2 t for everything else: news come in crowds


class Manager:
    """One node's pool. `wake` makes a pass happen now; `run` ends after `stop_loop`.

    It is the backend's listener: what happened is taken in at once, and leads to a pass at once.
    """

    def __init__(self, catalogue: Catalogue, knowledge: Knowledge, tick_s: float, use_templates: bool) -> None:
        self.backend: LocalBackend
        self.observer: Observer
        self.reporter: Reporter
        self.logs: LogShipper
        self.learner: Learner
        self.deploys: Deploys | None = None
        self._catalogue = catalogue
        self._knowledge = knowledge
        self._tick_s = tick_s
        self._use_templates = use_templates
        self._wake = asyncio.Event()
        self._stopping = False
        self._installing: set[str] = set()
        self._no_template: set[str] = set()
        self._ticked_at_s = self._not_before_s = float("-inf")

    # ---- the loop --------------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Observe, decide, act, record, until stopped."""
        while not self._stopping:
            await self._wait()
            now_s = time.monotonic()
            observation = self.observer.observe(now_s)
            actions = reconciler.reconcile(observation.snapshot)
            self._act(actions, now_s)
            self._install_layers(observation.need_layer)
            self.reporter.record(observation, actions, now_s)
            self._tick(observation, now_s)
            self._not_before_s = now_s + MAX_PASS_SHARE * (time.monotonic() - now_s)

    async def _wait(self) -> None:
        try:
            async with asyncio.timeout(self._tick_s):
                await self._wake.wait()
        except TimeoutError:
            pass
        await asyncio.sleep(self._not_before_s - time.monotonic())
        self._wake.clear()

    def wake(self) -> None:
        """Make a pass happen at once."""
        self._wake.set()

    def deployed(self, version: Version) -> None:
        """Make a version that has just become routed ready for its first call."""
        if self.deploys is not None:
            self.deploys.deployed(version)

    def stop_loop(self) -> None:
        """End the loop after the pass in progress."""
        self._stopping = True
        self._wake.set()

    def _tick(self, observation: Observation, now_s: float) -> None:
        """Do, once a tick, what needs no wake-up: watchdogs, statuses, learning, forgetting."""
        if now_s - self._ticked_at_s < self._tick_s * 0.9:
            return
        self._ticked_at_s = now_s
        self.backend.tick(now_s)
        self.reporter.statuses(observation, now_s)
        self.reporter.idle(now_s)
        self.learner.tick(observation.snapshot)
        running = {instance.ref for instance in observation.snapshot.instances}
        self._knowledge.prune(now_s, running)
        self._end_unused_templates()
        self._forget_versions(observation, running)

    def _end_unused_templates(self) -> None:
        """Of the templates made at a deploy, keep the newest few that nobody has called for."""
        prepared = self._knowledge.prepared
        for ref in list(prepared)[: max(0, len(prepared) - MAX_UNUSED_TEMPLATES)]:
            del prepared[ref]
            self._knowledge.may_template.discard(ref)
            for instance in list(self.backend.instances.values()):
                if instance.ref == ref and instance.role == "template":
                    self.backend.kill(instance.instance_id, "nobody called for it")

    def _forget_versions(self, observation: Observation, running: set[str]) -> None:
        for ref, decision in observation.decisions.items():
            version = self._catalogue.versions.get(ref)
            if version is not None and not version.routed and ref not in running and decision.target == 0:
                self._catalogue.forget(ref)
                self._knowledge.forget(ref)
                self._no_template.discard(ref)
                self.reporter.forget(ref)

    # ---- act -------------------------------------------------------------------------------------------------------

    def _act(self, actions: list[Action], now_s: float) -> None:
        for action in actions:
            self._carry_out(action, now_s)

    def _carry_out(self, action: Action, now_s: float) -> None:
        match action:
            case ForkBlank():
                self.backend.fork_blank(action.environment, action.device)
            case StartEnvironment():
                self.backend.zygotes.start(action.environment)
            case Specialise():
                self._specialise(action, self._catalogue.versions[action.ref], now_s)
            case ForkTemplate():
                version = self._catalogue.versions[action.ref]
                self.backend.fork_template(action.template_id, version, self._knowledge.claim_ms(action.ref, now_s))
            case DrainInstance():
                self._drain(action, now_s)
            case KillInstance():
                self.backend.kill(action.instance_id, action.rule)
            case Reject() if action.permanent:
                self._fail(BootError(action.ref, "no_capacity", 503, action.detail, "claim"), now_s)

    def _specialise(self, action: Specialise, version: Version, now_s: float) -> None:
        if action.role == "instance":
            self._knowledge.claimed(action.devices[0], now_s)
            if self._knowledge.thrash.loaded(action.ref, now_s):
                logger.warning("evicted versions keep coming back: the memory budget is too small for what is used")
        if action.devices != (CPU,):
            self._knowledge.ledger.hold(action.instance_id, action.ref, action.devices, version.declared_device_bytes)
        claim_ms = self._knowledge.claim_ms(action.ref, now_s)
        is_awaited = action.role == "instance" and self.observer.is_awaited(action.ref)
        self.backend.specialise(action.instance_id, version, action.devices, action.role, claim_ms, is_awaited)
        instance = self.backend.instances.get(action.instance_id)
        if instance is not None:
            if instance.role == "template":
                self.reporter.gone(instance)  # it was published as a blank; no gateway calls a template
            self.logs.follow(instance.instance_id, action.ref, self.backend.run.log_paths(instance.instance_id), True)

    def _drain(self, action: DrainInstance, now_s: float) -> None:
        if action.rule == "evict":
            self._knowledge.thrash.evicted(action.ref, now_s)
        self.backend.drain(action.instance_id, action.if_idle)

    def _install_layers(self, versions: list[Version]) -> None:
        for version in versions:
            if version.ref not in self._installing and time.monotonic() >= self._knowledge.backoff.retry_at_s(
                version.ref
            ):
                self._installing.add(version.ref)
                self.backend.spawn(self._install_layer(version))

    async def _install_layer(self, version: Version) -> None:
        failure = await self.backend.preparer.install_layer(version)
        self._installing.discard(version.ref)
        if failure is not None:
            self._fail(failure, time.monotonic())
        self.wake()

    # ---- what the backend reports ----------------------------------------------------------------------------------

    def instance_changed(self, instance: Instance) -> None:
        """Publish it if it is one that gateways know, and look again."""
        if instance.role == "instance":
            self.reporter.instance(instance)
        self.wake()

    def instance_ready(self, instance: Instance, ready: wire.Ready | None) -> None:
        """Publish it first, then learn from it."""
        if instance.role == "instance":
            self.reporter.instance(instance)
        if instance.role == "instance":
            self._knowledge.prepared.pop(instance.ref, None)
        elif instance.ref in self._knowledge.to_prepare:
            del self._knowledge.to_prepare[instance.ref]
            self._knowledge.prepared[instance.ref] = None
        if instance.from_template or ready is None:
            self.logs.follow(
                instance.instance_id, instance.ref, self.backend.run.log_paths(instance.instance_id), False
            )
        if ready is not None:
            self._learn(instance, ready)
        self._knowledge.backoff.succeed(instance.ref)
        self.wake()

    def _learn(self, instance: Instance, ready: wire.Ready) -> None:
        ref = instance.ref
        self._knowledge.learn_boot(ref, instance.boot_ms)
        self.learner.loaded(ready.modules)
        may = ready.templatable and instance.devices == (CPU,) and self._use_templates
        if may and ref not in self._no_template:
            self._knowledge.may_template.add(ref)
        self.reporter.boot_succeeded(ref)

    def instance_gone(self, instance: Instance, was: State) -> None:
        """Publish it at once; its device is checked against the driver."""
        if instance.role == "instance":
            self.reporter.gone(instance)
        self.logs.end(instance.instance_id)
        if was is State.LOADING and instance.role == "instance":
            self._knowledge.backoff.fail(instance.ref, time.monotonic())  # the reason follows; no new try until then
        released = self._knowledge.ledger.release(instance.instance_id)
        if released:
            self.backend.spawn(self.reporter.check_devices(released))
        self.wake()

    def instance_lost(self, instance: Instance, how: str) -> None:
        """Keep how it ended with the decisions of its function: who asks why finds it there."""
        logger.warning("%s of %s was lost: %s", instance.instance_id, instance.ref, how)
        self.reporter.lost(instance, how)

    def boot_failed(self, instance: Instance, error: BootError) -> None:
        """Back off, and tell those who wait. A template that fails only means that there will be none."""
        if instance.role == "template":
            self._no_template_of(error)
        else:
            self._fail(error, time.monotonic())
        self.wake()

    def _no_template_of(self, error: BootError) -> None:
        was_deployed = error.ref in self._knowledge.to_prepare
        self._knowledge.to_prepare.pop(error.ref, None)
        self._knowledge.may_template.discard(error.ref)
        if was_deployed and error.phase != "template":
            self.does_not_load(error)
        else:
            logger.info("no template of %s: %s", error.ref, error.detail)
            self._no_template.add(error.ref)

    def does_not_load(self, error: BootError) -> None:
        """Tell who deployed the version; calls of it are tried as ever."""
        version = self._catalogue.versions.get(error.ref)
        if version is not None and version.routed:
            logger.warning("%s does not load: %s", error.ref, error.detail)
            self.reporter.does_not_load(error)

    def unwell(self, news: Unwell) -> None:
        """Let an instance leave whose own checks keep failing: what it runs ends, and the next pass replaces it."""
        instance = self.backend.instances.get(news.instance_id)
        if instance is not None and instance.ref == news.ref and instance.state is State.READY:
            logger.warning("%s of %s is unwell and is replaced: %s", news.instance_id, news.ref, news.fault)
            self.reporter.unwell(news)
            self.backend.drain(news.instance_id, if_idle=False)
            self.wake()

    def backend_changed(self) -> None:
        """Look again."""
        self.wake()

    def _fail(self, error: BootError, now_s: float) -> None:
        num_failures, retry_at_s = self._knowledge.backoff.fail(error.ref, now_s)
        logger.warning("boot of %s failed (%d in a row): %s", error.ref, num_failures, error.detail)
        self.reporter.boot_failure(error, num_failures, retry_at_s - now_s)
