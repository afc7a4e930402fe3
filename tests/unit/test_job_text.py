"""Jobs and their events in words."""

from __future__ import annotations

from typing import Any

import pytest

from samovar.cli.job_text import event_text, waits
from samovar.job_requests import WAIT_WORDS
from samovar.jobs import JobEvent, JobState, JobView


def test_what_waits_says_for_what_behind_whom_and_for_how_long() -> None:
    view = JobView(id="a", function="f", state=JobState.QUEUED, wait_reason="busy", position=4, estimated_start_s=90.0)
    assert [*waits(view, 1.8e9)] == [WAIT_WORDS["busy"], "4 in front of it", "starts in about 1m30s"]


@pytest.mark.parametrize(
    ("kind", "data", "text"),
    [
        (
            "queued",
            {"position": 2, "wait_reason": "busy", "estimated_start_s": 3.0},
            "to start in about 3.0s position=2",
        ),
        ("queued", {"due_at_s": 160.0, "wait_reason": "delayed", "estimated_start_s": 60.0}, "in 1m00s"),
        ("retry", {"attempt": 1, "due_at_s": 100.04, "started_at_s": 99.5}, "in 40ms attempt=1"),
        ("progress", {"fraction": 0.4, "message": "row 4"}, "40% row 4"),
        ("log", {"line": "tea"}, "tea"),
    ],
)
def test_events_are_one_line_each(kind: str, data: dict[str, Any], text: str) -> None:
    found = event_text(JobEvent(id="1-1", kind=kind, at_s=100.0, data=data))
    assert text in found
    assert "\n" not in found and "_at_s" not in found
