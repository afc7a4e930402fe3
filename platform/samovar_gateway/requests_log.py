"""The request log of one gateway, its three parts together: rows taken down, written, shipped. No logic beside.

This module does not know routes.
"""

from __future__ import annotations

import asyncio
import secrets
from collections.abc import Iterator
from typing import Any

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector
from redis.asyncio import Redis

from samovar_dispatch.requestlog.log import RequestLog
from samovar_dispatch.requestlog.writer import RequestWriter
from samovar_dispatch.upkeep import keep_running
from samovar_gateway.log_keeper import LogKeeper
from samovar_gateway.settings import GatewaySettings
from samovar_storage.requestlog.layout import safe_name
from samovar_storage.requestlog.questions import Wanted


class Requests:
    """One per gateway. log: takes rows down (`Journey.notes`)."""

    def __init__(self, settings: GatewaySettings, gateway_id: str) -> None:
        self.log = RequestLog(f"{safe_name(gateway_id)}-{secrets.token_hex(4)}", settings.request_log)
        self.keeper = LogKeeper(settings)
        spool_bytes, live_bytes = settings.request_log_spool_bytes, settings.request_log_live_bytes
        self.writer = RequestWriter(self.log, gateway_id, self.keeper.folder, spool_bytes, live_bytes)

    async def run(self, redis: Redis) -> None:
        """Write and ship until cancelled; then what is left is written first and shipped after."""
        keeper = asyncio.ensure_future(keep_running("request log's keeper", self.keeper.run))
        try:
            await self.writer.run(redis)
        finally:
            keeper.cancel()
            await asyncio.gather(keeper, return_exceptions=True)

    async def find(self, redis: Redis, what: str, wanted: Wanted) -> dict[str, Any]:
        """Return the keeper's answer (`records`, `summary`, `files`), this gateway's own last calls included.

        Raises: StoreUnavailable.
        """
        if what == "files":  # there is nothing else to read them from
            await self.writer.ship_now(redis)
            return await self.keeper.ask(what, wanted, ship=True)
        await self.writer.flush(redis)
        return await self.keeper.ask(what, wanted)


class RequestsCollector(Collector):
    """The request log's metrics, read off its parts when somebody asks."""

    def __init__(self, requests: Requests) -> None:
        self._requests = requests

    def collect(self) -> Iterator[Metric]:
        """Yield every metric family."""
        log, writer, report = self._requests.log, self._requests.writer, self._requests.keeper.report
        for name, text, value in (
            ("samovar_request_log_written", "Records written to the spool", writer.num_written),
            ("samovar_request_log_unseen", "Records that Redis did not get: they show once shipped", writer.num_unseen),
            ("samovar_request_log_shipped", "Records shipped to object storage", report.shipped_records),
            ("samovar_request_log_upload_failures", "Rounds of shipping or tending that failed", report.failures),
        ):
            family = CounterMetricFamily(name, text)
            family.add_metric([], value)
            yield family
        dropped = CounterMetricFamily("samovar_request_log_dropped", "Invocations without a record", labels=["why"])
        dropped.add_metric(["memory"], log.num_dropped)
        dropped.add_metric(["spool"], writer.num_lost)
        yield dropped
        spooled = GaugeMetricFamily("samovar_request_log_spooled_bytes", "Bytes in this node's spool")
        spooled.add_metric([], writer.spooled_bytes)
        yield spooled
