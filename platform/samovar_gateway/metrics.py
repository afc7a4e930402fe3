"""`/metrics`: the dispatcher's plain counters as Prometheus metrics, made only when somebody asks."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Iterator
from itertools import accumulate

from litestar import Response, get
from litestar.datastructures import State
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from samovar_dispatch.answers.cabinet import Cabinet
from samovar_dispatch.ask import PRIORITY_NAMES
from samovar_dispatch.call import Version
from samovar_dispatch.stats import LATENCY_BOUNDS_S
from samovar_gateway.events.streams import Streams
from samovar_gateway.jobs.metrics import JobsCollector
from samovar_gateway.requests_log import RequestsCollector
from samovar_gateway.state import GatewayState

LABELS = ["function", "version"]
BOUNDS = [*map(str, LATENCY_BOUNDS_S), "+Inf"]


class DispatchCollector(Collector):
    """Reads a dispatcher's counters, and the instances it heard of. Versions that were never called are left out."""

    def __init__(self, state: GatewayState) -> None:
        self._dispatcher = state.dispatcher
        self._membership = state.membership
        self._problems = state.problems
        self._cabinet = state.cabinet
        self._gateway_id = state.gateway_id
        self._streams = state.streams

    def collect(self) -> Iterator[Metric]:
        """Yield every metric family."""
        who = GaugeMetricFamily("samovar_gateway", "Always 1: which gateway this is", labels=["gateway_id"])
        who.add_metric([self._gateway_id], 1)
        yield who
        versions = [
            v
            for v in self._dispatcher.versions.values()
            if v.stats.submitted or v.members or v.stats.cache or v.stats.sheds
        ]
        yield _calls(versions)
        yield _latency(versions)
        for name, text, attribute in (
            ("samovar_cold_starts", "Calls that waited for an instance to come up", "cold_starts"),
            ("samovar_redispatched", "Calls sent to another instance because they never started", "redispatched"),
            ("samovar_retries_refused", "Calls not run again after a crash, for want of budget", "retries_refused"),
            ("samovar_ejections", "Instances left alone because they did worse than their peers", "ejections"),
            ("samovar_retried", "Calls run again after their instance was lost", "retried"),
            ("samovar_queue_seconds", "Seconds calls waited for a slot", "queue_sum_s"),
            ("samovar_run_seconds", "Seconds calls spent in handlers", "run_sum_s"),
        ):
            yield _counter(name, text, versions, attribute)
        yield _by_kind("samovar_cache", "Asks of versions with a cache, by result", "result", versions, "cache")
        yield _by_kind(
            "samovar_fallbacks", "Asks whose call came to nothing, by who answered", "by", versions, "fallbacks"
        )
        yield from _kept(self._cabinet)
        yield from _resumable(self._streams)
        yield _gauge("samovar_queued", "Calls waiting for a slot now", [(v, v.num_queued) for v in versions])
        yield _gauge("samovar_running", "Calls instances hold now", [(v, v.num_running) for v in versions])
        yield from self._admission(versions)
        yield _gauge("samovar_ready_instances", "Instances connected now", [(v, len(v.members)) for v in versions])
        ejected = [(v, sum(member.is_ejected for member in v.members.values())) for v in versions]
        yield _gauge("samovar_ejected_instances", "Instances that get no calls until a check went well", ejected)
        yield from _breakers(versions)
        yield _mirrored(versions)
        yield _instances(self._membership.states.values())
        late = CounterMetricFamily("samovar_late_replies", "Answers nobody waited for any more, dropped")
        late.add_metric([], self._dispatcher.late_replies)
        yield late
        problems = CounterMetricFamily("samovar_problems", "Problem documents answered, by code", labels=["code"])
        for code, count in sorted(self._problems.items()):
            problems.add_metric([code], count)
        yield problems

    def _admission(self, versions: list[Version]) -> Iterator[Metric]:
        """How full the queues are, what a newcomer would have to expect, and who was refused."""
        now_s, room = time.monotonic(), self._dispatcher.room
        ages = [(v, max((now_s - call.submitted_s for call in v.queue), default=0.0)) for v in versions]
        yield _gauge("samovar_queue_age_seconds", "How long the oldest call has waited", ages)
        waits = [(v, room.outlook(v, now_s).predicted_wait_s(len(v.queue)) or 0.0) for v in versions]
        yield _gauge("samovar_predicted_wait_seconds", "What one more call would wait behind all that wait now", waits)
        text = "Calls refused before they ran, so that others are served"
        sheds = CounterMetricFamily("samovar_sheds", text, labels=[*LABELS, "code", "priority"])
        for version in versions:
            for (code, priority), count in version.stats.sheds.items():
                sheds.add_metric([*_labels(version), code, PRIORITY_NAMES[priority]], count)
        yield sheds
        backlog = GaugeMetricFamily("samovar_waiting_bytes", "Bodies that wait, being read or for a slot")
        backlog.add_metric([], room.backlog.num_bytes)
        yield backlog


def _labels(version: Version) -> list[str]:
    return [version.manifest.name, str(version.manifest.version)]


def _calls(versions: Iterable[Version]) -> Metric:
    family = CounterMetricFamily(
        "samovar_calls", "Calls that ended, by protocol and outcome", labels=[*LABELS, "protocol", "code"]
    )
    for version in versions:
        for protocol, outcomes in version.stats.outcomes.items():
            for code, count in outcomes.items():
                family.add_metric([*_labels(version), protocol, code], count)
    return family


def _latency(versions: Iterable[Version]) -> Metric:
    family = HistogramMetricFamily("samovar_call_seconds", "From admission to outcome", labels=LABELS)
    for version in versions:
        buckets = [*zip(BOUNDS, map(float, accumulate(version.stats.latency_counts)), strict=True)]
        family.add_metric(_labels(version), buckets, version.stats.latency_sum_s)
    return family


def _counter(name: str, text: str, versions: Iterable[Version], attribute: str) -> Metric:
    family = CounterMetricFamily(name, text, labels=LABELS)
    for version in versions:
        family.add_metric(_labels(version), getattr(version.stats, attribute))
    return family


def _by_kind(name: str, text: str, label: str, versions: Iterable[Version], attribute: str) -> Metric:
    family = CounterMetricFamily(name, text, labels=[*LABELS, label])
    for version in versions:
        for kind, count in getattr(version.stats, attribute).items():
            family.add_metric([*_labels(version), kind], count)
    return family


def _resumable(streams: Streams) -> Iterator[Metric]:
    number = GaugeMetricFamily("samovar_resumable_streams", "Streams one can come back to, ended ones included")
    number.add_metric([], len(streams))
    yield number
    kept = GaugeMetricFamily("samovar_resumable_bytes", "What is kept of them")
    kept.add_metric([], streams.num_bytes)
    yield kept


def _kept(cabinet: Cabinet) -> Iterator[Metric]:
    answers = CounterMetricFamily("samovar_answers", "Answers kept in Redis, or dropped", labels=["what"])
    answers.add_metric(["kept"], cabinet.num_kept)
    answers.add_metric(["dropped"], cabinet.num_dropped)
    yield answers
    held = GaugeMetricFamily("samovar_answers_local_bytes", "What answers take in this process")
    held.add_metric([], cabinet.shelf.num_bytes)
    yield held


def _mirrored(versions: Iterable[Version]) -> Metric:
    text = "Copies of other versions' calls, by how the answers compare"
    family = CounterMetricFamily("samovar_mirrored", text, labels=[*LABELS, "outcome"])
    for version in versions:
        for outcome, count in version.stats.mirrored.items():
            family.add_metric([*_labels(version), outcome], count)
    return family


def _breakers(versions: Iterable[Version]) -> Iterator[Metric]:
    text = "Circuit breaker: 0 closed, 1 open, 2 half-open"
    yield _gauge("samovar_breaker_state", text, [(v, int(v.breaker.state)) for v in versions])
    text = "Times a circuit breaker entered a state"
    moves = CounterMetricFamily("samovar_breaker_transitions", text, labels=[*LABELS, "to"])
    for version in versions:
        for state, count in version.breaker.transitions.items():
            moves.add_metric([*_labels(version), state.label], count)
    yield moves
    sent = CounterMetricFamily("samovar_hedges", "Second copies of slow calls", labels=LABELS)
    won = CounterMetricFamily("samovar_hedges_won", "Copies that answered before the first call", labels=LABELS)
    for version in versions:
        if version.hedging is not None:
            sent.add_metric(_labels(version), version.hedging.num_sent)
            won.add_metric(_labels(version), version.hedging.num_won)
    yield from (sent, won)


def _gauge(name: str, text: str, values: Iterable[tuple[Version, float]]) -> Metric:
    family = GaugeMetricFamily(name, text, labels=LABELS)
    for version, value in values:
        family.add_metric(_labels(version), value)
    return family


def _instances(known: Iterable[tuple[str, str]]) -> Metric:
    """Every gateway counts all instances of the platform: take the maximum over gateways, not the sum."""
    text = "Instances by state as the pool manager last said; blank ones have no function"
    family = GaugeMetricFamily("samovar_instances", text, labels=[*LABELS, "state"])
    for (ref, state), count in sorted(Counter(known).items()):
        name, _, version = ref.rpartition("@")
        family.add_metric([name, version, str(state)], count)
    return family


class Metrics:
    """The metrics of this process: the dispatcher's, its own memory, CPU and files; and those of all jobs."""

    def __init__(self, state: GatewayState) -> None:
        self._state = state
        self._jobs = JobsCollector()
        self._registry = CollectorRegistry()
        ProcessCollector(registry=self._registry)
        for collector in (DispatchCollector(state), RequestsCollector(state.requests), self._jobs):
            self._registry.register(collector)

    async def text(self) -> bytes:
        """Return them in Prometheus text format."""
        await self._jobs.refresh(self._state)
        return generate_latest(self._registry)


@get("/metrics")
async def metrics_route(state: State) -> Response[bytes]:
    """All metrics in Prometheus text format."""
    metrics: Metrics = state.metrics
    return Response(await metrics.text(), media_type=CONTENT_TYPE_LATEST)
