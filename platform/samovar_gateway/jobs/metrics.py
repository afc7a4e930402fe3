"""Jobs in `/metrics`: what waits, what runs, what became of those that were accepted. Read from Redis when asked for.

Every gateway tells the same numbers, for all of them and all workers. While Redis is away the last ones are left out.
This module does not know how jobs are kept.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from samovar.errors import SamovarError
from samovar.jobs import TERMINAL
from samovar_storage import keys
from samovar_storage.failures import translating
from samovar_storage.jobs import facts
from samovar_storage.jobs.records import Backlog, WorkerStatus

if TYPE_CHECKING:
    from samovar_gateway.state import GatewayState

log = logging.getLogger(__name__)

TIMEOUT_S = 1.0
QUARANTINED = "quarantined"
WEBHOOK_OUTCOMES = ("delivered", "failed", "dead", "disabled")


@dataclass(frozen=True, slots=True)
class JobNumbers:
    """What was read at one time. counts: since Redis was empty, by what happened."""

    backlog: Mapping[str, Backlog] = field(default_factory=dict)
    workers: tuple[WorkerStatus, ...] = ()
    counts: Mapping[str, int] = field(default_factory=dict)


class JobsCollector(Collector):
    """Tells the numbers last read."""

    def __init__(self) -> None:
        self.numbers: JobNumbers | None = None

    async def refresh(self, state: GatewayState) -> None:
        """The numbers are those of now, or there are none."""
        try:
            async with asyncio.timeout(TIMEOUT_S):
                self.numbers = await _read(state)
        except (TimeoutError, SamovarError) as error:
            log.info("no metrics of jobs: %s", error)
            self.numbers = None

    def collect(self) -> Iterator[Metric]:
        """Yield every metric family, none while nothing is known."""
        if self.numbers is None:
            return
        yield _waiting(self.numbers.backlog)
        yield from _workers(self.numbers.workers)
        counts = self.numbers.counts
        ended = CounterMetricFamily("samovar_jobs_ended", "Jobs that ended, by state", labels=["state"])
        for state in sorted(map(str, TERMINAL)):
            ended.add_metric([state], counts.get(state, 0))
        yield ended
        for name, text in (
            ("accepted", "Jobs that were accepted"),
            (QUARANTINED, "Jobs that failed because they took down too many instances"),
            ("late", "Results dropped because their worker had lost the job"),
            ("reaped", "Jobs taken back from workers that fell silent"),
        ):
            family = CounterMetricFamily(f"samovar_jobs_{name}", text)
            family.add_metric([], counts.get(name, 0))
            yield family
        told = CounterMetricFamily("samovar_webhooks", "Attempts at webhooks, by what came of them", labels=["outcome"])
        for outcome in WEBHOOK_OUTCOMES:
            told.add_metric([outcome], counts.get(f"webhooks_{outcome}", 0))
        yield told


async def _read(state: GatewayState) -> JobNumbers:
    with translating("the counts of jobs"):
        rows: dict[bytes, bytes] = await state.redis.hgetall(keys.JOBS_COUNTS)  # type: ignore[assignment]
    return JobNumbers(
        backlog=await state.jobs.backlog(),
        workers=tuple(await facts.workers(state.redis)),
        counts={name.decode(): int(number) for name, number in rows.items()},
    )


def _waiting(backlog: Mapping[str, Backlog]) -> Metric:
    family = GaugeMetricFamily("samovar_jobs_waiting", "Jobs that wait for a slot", labels=["function", "lane"])
    for function, waits in sorted(backlog.items()):
        family.add_metric([function, "normal"], waits.normal)
        family.add_metric([function, "low"], waits.low)
    return family


def _workers(workers: tuple[WorkerStatus, ...]) -> Iterator[Metric]:
    alive = GaugeMetricFamily("samovar_job_workers", "Job workers that are alive")
    alive.add_metric([], len(workers))
    yield alive
    running: dict[str, int] = {}
    for worker in workers:
        for function, number in worker.running.items():
            running[function] = running.get(function, 0) + number
    family = GaugeMetricFamily("samovar_jobs_running", "Jobs that workers hold", labels=["function"])
    for function, number in sorted(running.items()):
        family.add_metric([function], number)
    yield family
