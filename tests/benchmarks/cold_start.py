"""Cold starts of MiniLM: scaled to zero, a blank instance ready, one call.

Baseline: a fresh Python process to its first answer. Floor: the example's code in a forked child, without the platform,
taken in turn with the cold calls. Plain calls run with templates off, template calls with them on.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass, field

from harness import minilm
from harness.report import Measured, Options, Table, percentile, run
from harness.running import Answer, Platform

TARGETS = {
    "baseline_over_median": (">=", 70.0),
    "median_minus_1_5_floor_ms": ("<=", 15.0),
    "p99_over_median": ("<=", 2.0),
    "template_over_plain": ("<=", 0.6),
    "baseline_over_template": (">=", 140.0),
}
_SETTLE_S = 0.3
_NO_TEMPLATES = {"SAMOVAR_TEMPLATES": "false"}


@dataclass
class Takes:
    """Cold calls of one kind, and the floors taken between them (ms)."""

    answers: list[Answer] = field(default_factory=list)
    floors_ms: list[float] = field(default_factory=list)

    @property
    def ms(self) -> list[float]:
        """What each call took, as its client saw it."""
        return [answer.elapsed_ms for answer in self.answers]


def cold_calls(
    platform: Platform, name: str, num_calls: int, floor: Callable[[], float], body: bytes = minilm.BODY
) -> Takes:
    """Return `num_calls` calls, each to the function at zero with a blank instance ready, a floor before each."""
    takes = Takes()
    for _ in range(num_calls):
        platform.wait_zero(name)
        time.sleep(_SETTLE_S)  # what the last scale-down and the refill of the warm pool left to do
        takes.floors_ms.append(floor())
        takes.answers.append(platform.invoke(name, body))
    return takes


def measure_platform(options: Options, floor: Callable[[], float], templates: bool) -> Takes:
    """Return cold calls of a platform of their own; the first one, which fetches and preloads, is left out."""
    with Platform(settings=None if templates else _NO_TEMPLATES) as platform:
        name = platform.deploy(minilm.APP)
        platform.scale(name, scale_down_window_s=0.5)
        cold_calls(platform, name, 2, floor)
        if templates:
            platform.wait_template(name)
        return cold_calls(platform, name, options.pick(20, 4), floor)


def phase_table(title: str, takes: Takes) -> Table:
    """Return median and worst of each phase, and what the client saw beyond them."""
    names = list(dict.fromkeys(name for answer in takes.answers for name in answer.phases))
    rows = []
    for name in names:
        values = [answer.phases.get(name, 0.0) for answer in takes.answers]
        rows.append((name, statistics.median(values), max(values)))
    rows.append(("client saw", statistics.median(takes.ms), max(takes.ms)))
    return Table(title, ("phase", "median ms", "worst ms"), rows)


def measure(options: Options) -> Measured:
    """Measure everything in one run."""
    baselines_s = [minilm.fresh_process()[0] for _ in range(options.pick(2, 1))]
    with minilm.forked_floor() as floor:
        floor.ask()
        plain = measure_platform(options, floor.ask, templates=False)
        baselines_s += [minilm.fresh_process()[0] for _ in range(options.pick(1, 0))]
        template = measure_platform(options, floor.ask, templates=True)
    baselines_s += [minilm.fresh_process()[0] for _ in range(options.pick(2, 0))]
    baseline_ms = 1000 * statistics.median(baselines_s)
    floor_ms = statistics.median(plain.floors_ms)
    median_ms, template_ms = statistics.median(plain.ms), statistics.median(template.ms)
    return Measured(
        {
            "baseline_over_median": baseline_ms / median_ms,
            "median_minus_1_5_floor_ms": median_ms - 1.5 * floor_ms,
            "p99_over_median": percentile(plain.ms, 99) / median_ms,
            "template_over_plain": template_ms / median_ms,
            "baseline_over_template": baseline_ms / template_ms,
            "baseline_ms": baseline_ms,
            "floor_ms": floor_ms,
            "median_ms": median_ms,
            "p99_ms": percentile(plain.ms, 99),
            "template_ms": template_ms,
        },
        [phase_table("Cold start, plain", plain), phase_table("Cold start, from a template", template)],
    )


if __name__ == "__main__":
    run("cold_start", TARGETS, measure)
