"""What a version's counters are in the words of the statistics extension.

Times are of all calls that ended, failed ones included, as this gateway saw them; each row of a request is a call.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from samovar_dispatch.call import Version
from samovar_dispatch.functions import FunctionEntry


def document(found: Iterable[tuple[FunctionEntry, Version]]) -> dict[str, Any]:
    """Return the statistics of versions."""
    return {"model_stats": [_of(version) for _, version in found]}


def _of(version: Version) -> dict[str, Any]:
    stats = version.stats
    num_good = sum(outcomes.get("ok", 0) for outcomes in stats.outcomes.values())
    num_all = sum(sum(outcomes.values()) for outcomes in stats.outcomes.values())
    return {
        "name": version.manifest.name,
        "version": version.label.decode(),
        "inference_count": num_good,
        "execution_count": num_good,
        "inference_stats": {
            "success": _duration(num_good, stats.latency_sum_s),
            "fail": _duration(num_all - num_good, 0.0),
            "queue": _duration(num_all, stats.queue_sum_s),
            "compute_infer": _duration(num_all, stats.run_sum_s),
        },
        "batch_stats": [],
    }


def _duration(count: int, seconds: float) -> dict[str, int]:
    return {"count": count, "ns": int(seconds * 1e9)}
