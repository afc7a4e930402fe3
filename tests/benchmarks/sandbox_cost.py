"""What the sandbox adds: two platforms side by side, one with it and one with `sandbox = off`, called in turn.

Cold calls find the function at zero and a blank instance (or a template) ready; running cost is a call to a ready
instance. The function only adds up a few numbers, so nothing hides what the sandbox takes.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable
from contextlib import ExitStack

from harness.report import Measured, Options, Table, interleave, percentile, run
from harness.running import EXAMPLES, Answer, Platform

TARGETS = {"added_ms": ("<=", 2.0)}
BODY = b'{"x": [1, 2, 3]}'
APP = EXAMPLES / "echo_sum" / "app.py"
_SETTLE_S = 0.3
_MODES = {"on": "best-effort", "off": "off"}
_NUM_CALLS = 50  # of a take of warm calls, whose median counts


def cold_call(platform: Platform, name: str) -> Answer:
    """Return the answer to one call of a function that is at zero."""
    platform.wait_zero(name)
    time.sleep(_SETTLE_S)  # what the last scale-down and the refill of the warm pool left to do
    answer = platform.invoke(name, BODY)
    assert answer.status == 200, answer
    return answer


def warm_ms(platform: Platform, name: str) -> float:
    """Return the median of a few calls to an instance that is ready."""
    return statistics.median(platform.invoke(name, BODY).elapsed_ms for _ in range(_NUM_CALLS))


def takes(options: Options, templates: bool) -> tuple[dict[str, list[Answer]], dict[str, list[float]], list[str]]:
    """Return cold calls and warm medians of both sides, and the layers that were on."""
    with ExitStack() as stack:
        platforms = {
            side: stack.enter_context(Platform(settings=settings(mode, templates))) for side, mode in _MODES.items()
        }
        names = {side: platform.deploy(APP) for side, platform in platforms.items()}
        for side, platform in platforms.items():
            platform.scale(names[side], scale_down_window_s=0.5)
            if templates:
                platform.wait_template(names[side])

        def cold(side: str) -> Callable[[], Answer]:
            return lambda: cold_call(platforms[side], names[side])

        def warm(side: str) -> Callable[[], float]:
            return lambda: warm_ms(platforms[side], names[side])

        interleave(2, {side: cold(side) for side in _MODES})
        answers = interleave(options.pick(40, 5), {side: cold(side) for side in _MODES})
        for side, platform in platforms.items():
            platform.scale(names[side], min_instances=1)
            platform.wait_ready(names[side], 1)
        warm_takes = interleave(options.pick(20, 3), {side: warm(side) for side in _MODES})
        layers = platforms["on"].instances(names["on"], "ready")[0]["sandbox"]
    return answers, warm_takes, layers


def settings(mode: str, templates: bool) -> dict[str, str]:
    """Return what a platform is told."""
    return {"SAMOVAR_SANDBOX": mode, "SAMOVAR_TEMPLATES": str(templates).lower()}


def added_ms(answers: dict[str, list[Answer]]) -> float:
    """Return how much longer the median cold call is with the sandbox."""
    medians = {side: statistics.median(answer.elapsed_ms for answer in of_side) for side, of_side in answers.items()}
    return medians["on"] - medians["off"]


def table(title: str, answers: dict[str, list[Answer]]) -> Table:
    """Return each side's cold calls, and what its phases took."""
    rows = []
    for side, of_side in answers.items():
        ms = [answer.elapsed_ms for answer in of_side]
        load_ms = statistics.median(answer.phases.get("load", 0.0) for answer in of_side)
        rows.append((side, statistics.median(ms), percentile(ms, 90), max(ms), load_ms))
    return Table(title, ("sandbox", "median ms", "p90 ms", "worst ms", "load ms"), rows)


def measure(options: Options) -> Measured:
    """Measure plain cold starts, then those from a template."""
    plain, warm, layers = takes(options, templates=False)
    template, _, _ = takes(options, templates=True)
    warm_medians = {side: statistics.median(values) for side, values in warm.items()}
    return Measured(
        {
            "added_ms": added_ms(plain),
            "template_added_ms": added_ms(template),
            "call_ratio": warm_medians["on"] / warm_medians["off"],
            "call_ms": warm_medians["on"],
        },
        [table("Cold start, plain", plain), table("Cold start, from a template", template)],
        [f"Layers that were on: {', '.join(layers)}."],
    )


if __name__ == "__main__":
    run("sandbox_cost", TARGETS, measure)
