"""What RQ's tools see as the function of each of our jobs, and a stock RQ worker would call by mistake.

This module does not know jobs.
"""

from __future__ import annotations

from typing import Any


class NotForRqWorkers(RuntimeError):
    """A stock RQ worker took a job that only Samovar's job workers can run."""


def invoke(*_: Any, **__: Any) -> None:
    """Raise: functions run in instances, which a stock RQ worker does not have."""
    raise NotForRqWorkers(
        "this job runs in a Samovar instance: start `python -m samovar_jobs` (or `samovar up`), not a stock RQ worker; "
        "the job can be repeated with `samovar jobs retry`"
    )
