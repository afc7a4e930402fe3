"""What a job becomes of its submitter's options and its function's."""

from __future__ import annotations

from typing import Any

import pytest

from samovar.errors import InvalidInput, WebhookRefused
from samovar.jobs import JobOptions, Webhook
from samovar.policies import Jobs
from samovar_storage.jobs.specs import MAX_DURATION_S, MAX_RETRIES, spec_of
from samovar_storage.jobs.webhook_urls import parse_allow

NOW_S = 1000.0
DECLARED = Jobs(retries=2, backoff_s=3.0, retry_on=["OSError"], timeout_s=7.0, deadline_s=50.0, result_ttl_s=90.0)


def test_what_is_not_asked_for_is_as_the_function_says() -> None:
    spec = spec_of(JobOptions(), DECLARED, "f", "k", NOW_S)
    assert (spec.function, spec.key_id, spec.created_at_s, spec.lane) == ("f", "k", NOW_S, "")
    assert (spec.retries, spec.backoff_s, spec.retry_on, spec.timeout_s) == (2, 3.0, ["OSError"], 7.0)
    assert (spec.deadline_at_s, spec.result_ttl_s, spec.max_crashes) == (NOW_S + 50.0, 90.0, 3)


def test_what_is_asked_for_wins_also_when_it_is_nothing() -> None:
    options = JobOptions(
        retries=0, retry_on=[], give_up_on=["KeyError"], timeout_s=1.0, deadline_s=2.0, result_ttl_s=3.0
    )
    spec = spec_of(options, DECLARED, "f", "k", NOW_S)
    assert (spec.retries, spec.retry_on, spec.give_up_on, spec.timeout_s) == (0, [], ["KeyError"], 1.0)
    assert (spec.deadline_at_s, spec.result_ttl_s) == (NOW_S + 2.0, 3.0)


def test_no_deadline_is_zero() -> None:
    assert spec_of(JobOptions(), Jobs(), "f", "k", NOW_S).deadline_at_s == 0.0


@pytest.mark.parametrize(
    ("priority", "low_only", "lane"), [("normal", False, ""), ("low", False, "low"), ("normal", True, "low")]
)
def test_a_key_for_low_calls_submits_low_jobs(priority: Any, low_only: bool, lane: str) -> None:
    assert spec_of(JobOptions(priority=priority), Jobs(), "f", "k", NOW_S, low_only=low_only).lane == lane


def test_a_webhook_may_be_an_address_alone() -> None:
    assert spec_of(JobOptions(webhook="https://a/b"), Jobs(), "f", "k", NOW_S).webhook == Webhook(url="https://a/b")


@pytest.mark.parametrize(
    ("options", "path"),
    [
        ({"retries": -1}, "$.retries"),
        ({"retries": MAX_RETRIES + 1}, "$.retries"),
        ({"delay_s": -0.1}, "$.delay_s"),
        ({"timeout_s": 0.0}, "$.timeout_s"),
        ({"deadline_s": -1.0}, "$.deadline_s"),
        ({"result_ttl_s": MAX_DURATION_S * 2}, "$.result_ttl_s"),
        ({"retry_on": ["x" * 201]}, "$.retry_on"),
        ({"give_up_on": ["X"] * 51}, "$.give_up_on"),
        ({"unique": "é" * 101}, "$.unique"),
        ({"depends_on": ["0" * 24, "no id"]}, "$.depends_on[1]"),
        ({"depends_on": ["0" * 24] * 101}, "$.depends_on"),
        ({"tags": {str(n): "" for n in range(21)}}, "$.tags"),
        ({"tags": {"a": "x" * 201}}, "$.tags"),
        ({"webhook": Webhook(url="http://a", events=["ended"])}, "$.webhook.events"),
        ({"webhook": Webhook(url="http://a", events=[])}, "$.webhook.events"),
    ],
)
def test_what_is_out_of_range_is_named(options: dict[str, Any], path: str) -> None:
    with pytest.raises(InvalidInput) as caught:
        spec_of(JobOptions(**options), DECLARED, "f", "k", NOW_S)
    assert caught.value.extra["path"] == path


@pytest.mark.parametrize("webhook", ["ftp://a", "http://localhost/x", Webhook(url="http://10.0.0.1/")])
def test_a_webhook_goes_where_it_may(webhook: Any) -> None:
    with pytest.raises(WebhookRefused):
        spec_of(JobOptions(webhook=webhook), Jobs(), "f", "k", NOW_S)
    url = webhook if isinstance(webhook, str) else webhook.url
    if url.startswith("http"):
        allowed = parse_allow("localhost, 10.0.0.0/8")
        spec = spec_of(JobOptions(webhook=webhook), Jobs(), "f", "k", NOW_S, allowed=allowed)
        assert spec.webhook is not None and spec.webhook.url == url
