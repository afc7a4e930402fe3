"""Cold starts of text generation: SmolLM2-135M, deployed without code, scaled to zero; a call for one token.

With templates off an instance loads the model, reads the vocabulary and computes the token; with them on it is a fork.
Floor: the same call to an instance that is ready.
"""

from __future__ import annotations

import json
import statistics

from cold_start import Takes, cold_calls, phase_table
from harness.generation import smol
from harness.report import Measured, Options, run
from harness.running import Platform

TARGETS = {"template_over_plain": ("<=", 0.25)}
BODY = json.dumps({"prompt": "Tea is", "max_tokens": 1, "temperature": 0}).encode()
_NO_TEMPLATES = {"SAMOVAR_TEMPLATES": "false"}


def measure_platform(options: Options, templates: bool) -> tuple[Takes, float]:
    """Return cold calls of a platform of their own, and the median ms of warm ones."""
    with Platform(settings=None if templates else _NO_TEMPLATES) as platform:
        name = platform.cli("deploy", "--model", str(smol()), "--task", "text-generation", "--name", "smol")["name"]
        platform.scale(name, scale_down_window_s=0.5)
        if templates:
            platform.wait_template(name)

        def warm_ms() -> float:
            return platform.invoke(name, BODY).elapsed_ms

        warm_ms()
        warm = statistics.median(warm_ms() for _ in range(options.pick(10, 3)))
        cold_calls(platform, name, 1, lambda: 0.0, body=BODY)
        return cold_calls(platform, name, options.pick(10, 3), lambda: 0.0, body=BODY), warm


def measure(options: Options) -> Measured:
    """Measure both ways, one after the other."""
    plain, _ = measure_platform(options, templates=False)
    template, warm_ms = measure_platform(options, templates=True)
    plain_ms, template_ms = statistics.median(plain.ms), statistics.median(template.ms)
    return Measured(
        {
            "template_over_plain": template_ms / plain_ms,
            "plain_ms": plain_ms,
            "template_ms": template_ms,
            "template_worst_ms": max(template.ms),
            "warm_ms": warm_ms,
        },
        [phase_table("Cold start, plain", plain), phase_table("Cold start, from a template", template)],
    )


if __name__ == "__main__":
    run("generation_cold_start", TARGETS, measure)
