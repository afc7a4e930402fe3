"""What a job will be, from what its submitter asks and what its function says. Routes and cron submit by these rules.

This module does not know Redis or HTTP.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from samovar.errors import InvalidInput
from samovar.jobs import MAX_UNIQUE_BYTES, JobOptions, Webhook
from samovar.policies import Jobs
from samovar_storage.jobs.layout import LOW
from samovar_storage.jobs.records import JobSpec
from samovar_storage.jobs.webhook_urls import Allowed, check_url

MAX_DURATION_S = 366 * 86_400.0
MAX_RETRIES = 1000
MAX_NAMES, MAX_DEPENDENCIES, MAX_TAGS, MAX_TEXT = 50, 100, 20, 200
WEBHOOK_EVENTS = ("finished", "failed", "canceled", "started")
PUBLIC = Allowed()
_JOB_ID = re.compile(r"^[0-9a-f]{24}\Z")


def is_job_id(text: str) -> bool:
    """Return whether `text` can be the id of a job, a group or an upload."""
    return _JOB_ID.match(text) is not None


def spec_of(
    options: JobOptions,
    jobs: Jobs,
    function: str,
    key_id: str,
    now_s: float,
    *,
    low_only: bool = False,
    allowed: Allowed = PUBLIC,
) -> JobSpec:
    """Return what never changes about a job of `function` that is accepted at `now_s` (unix seconds).

    Args:
        options: of its submitter; what is None there is taken from `jobs`, the function's own.
        low_only: the key's jobs run after all others, whatever is asked.
        allowed: where webhooks may be sent beside the public internet.
    Raises: InvalidInput with the path of the option that is out of range; WebhookRefused.
    """
    check_options(options, allowed)
    deadline_s = options.deadline_s if options.deadline_s is not None else jobs.deadline_s
    is_low = low_only or options.priority == "low"
    return JobSpec(
        function=function,
        key_id=key_id,
        created_at_s=now_s,
        retries=jobs.retries if options.retries is None else options.retries,
        backoff_s=jobs.backoff_s,
        max_backoff_s=jobs.max_backoff_s,
        retry_on=jobs.retry_on if options.retry_on is None else options.retry_on,
        give_up_on=jobs.give_up_on if options.give_up_on is None else options.give_up_on,
        timeout_s=jobs.timeout_s if options.timeout_s is None else options.timeout_s,
        deadline_at_s=0.0 if deadline_s is None else now_s + deadline_s,
        max_crashes=jobs.max_crashes,
        result_ttl_s=jobs.result_ttl_s if options.result_ttl_s is None else options.result_ttl_s,
        unique=options.unique,
        lane=LOW if is_low else "",
        depends_on=options.depends_on,
        allow_failed=options.allow_failed,
        webhook=Webhook(url=options.webhook) if isinstance(options.webhook, str) else options.webhook,
        tags=options.tags,
    )


def check_options(options: JobOptions, allowed: Allowed = PUBLIC) -> None:
    """Return if every option is within its range. Raises: InvalidInput with the path of the first that is not;
    WebhookRefused."""
    _within(options.retries, 0, MAX_RETRIES, "retries")
    _within(options.delay_s, 0, MAX_DURATION_S, "delay_s")
    for name in ("timeout_s", "deadline_s", "result_ttl_s"):
        _within(getattr(options, name), 0, MAX_DURATION_S, name, is_open=True)
    _texts(options.retry_on or (), MAX_NAMES, "retry_on")
    _texts(options.give_up_on or (), MAX_NAMES, "give_up_on")
    _require(len(options.unique.encode()) <= MAX_UNIQUE_BYTES, "unique", f"has at most {MAX_UNIQUE_BYTES} bytes")
    _require(len(options.depends_on) <= MAX_DEPENDENCIES, "depends_on", f"has at most {MAX_DEPENDENCIES} jobs")
    for index, job_id in enumerate(options.depends_on):
        _require(is_job_id(job_id), f"depends_on[{index}]", "is no job id")
    _require(len(options.tags) <= MAX_TAGS, "tags", f"has at most {MAX_TAGS} entries")
    _texts([*options.tags, *options.tags.values()], 2 * MAX_TAGS, "tags")
    if options.webhook is not None:
        _check_webhook(options.webhook, allowed)


def _check_webhook(webhook: Webhook | str, allowed: Allowed) -> None:
    check_url(webhook if isinstance(webhook, str) else webhook.url, allowed)
    if isinstance(webhook, Webhook):
        is_known = 0 < len(webhook.events) <= len(WEBHOOK_EVENTS) and set(webhook.events) <= set(WEBHOOK_EVENTS)
        _require(is_known, "webhook.events", f"are some of {', '.join(WEBHOOK_EVENTS)}")


def _within(value: float | None, low: float, most: float, name: str, *, is_open: bool = False) -> None:
    if value is None:
        return
    is_high_enough = value > low if is_open else value >= low
    words = "above" if is_open else "at least"
    _require(is_high_enough and value <= most, name, f"is {words} {low:g} and at most {most:.15g}")


def _texts(texts: Sequence[str], most: int, name: str) -> None:
    is_short = len(texts) <= most and all(len(text) <= MAX_TEXT for text in texts)
    _require(is_short, name, f"has at most {most} texts of {MAX_TEXT} characters")


def _require(condition: bool, name: str, rule: str) -> None:
    if not condition:
        raise InvalidInput(f"{name} {rule}", path=f"$.{name}")
