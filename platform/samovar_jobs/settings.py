"""Settings of a job worker. This module does not know what is done with them."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from samovar_storage.jobs.webhook_urls import WebhookAllow
from samovar_storage.settings import RequestLogSettings


class JobsSettings(RequestLogSettings, frozen=True, kw_only=True):
    """What one worker process holds, and how long it may take to leave."""

    worker_name: Annotated[
        str, Meta(description="Name of this job worker among others; default node and process id")
    ] = ""
    jobs_in_flight: Annotated[
        int, Meta(gt=0, le=10_000, description="Jobs that one worker process holds at a time")
    ] = 64
    job_drain_timeout_s: Annotated[
        float,
        Meta(ge=0, description="After SIGTERM, how long a job worker waits for what runs before it gives it back, s"),
    ] = 30.0
    job_result_bytes: Annotated[
        int, Meta(gt=0, le=256 << 20, description="Largest result of a job, in bytes; with a larger one it fails")
    ] = 64 << 20
    job_log_lines: Annotated[
        int, Meta(ge=0, description="Log lines, and items of output, of one attempt that are kept; more are counted")
    ] = 1000
    job_ended_bytes: Annotated[
        int,
        Meta(
            gt=0,
            description="What the ended jobs of one API key may take, inputs and results included; oldest go first",
        ),
    ] = 256 << 20
    webhook_allow: WebhookAllow = ""
    webhooks_in_flight: Annotated[
        int,
        Meta(gt=0, le=1000, description="Webhooks that one worker process sends at a time, 8 to one host for a key"),
    ] = 64
