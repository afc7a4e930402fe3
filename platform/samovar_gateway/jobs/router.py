"""The routes of jobs as one piece for the gateway's application. This module does not know what the routes do."""

from __future__ import annotations

from litestar.types import ControllerRouterHandler

from samovar_gateway.jobs.crons import CronRoutes
from samovar_gateway.jobs.events import job_events
from samovar_gateway.jobs.groups import GroupRoutes
from samovar_gateway.jobs.jobs import JobRoutes
from samovar_gateway.jobs.uploads import begin_upload, submit_jobs
from samovar_gateway.jobs.webhooks import WebhookRoutes

HANDLERS: tuple[ControllerRouterHandler, ...] = (
    submit_jobs,
    begin_upload,
    JobRoutes,
    job_events,
    GroupRoutes,
    CronRoutes,
    WebhookRoutes,
)
