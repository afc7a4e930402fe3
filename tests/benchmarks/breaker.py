"""The circuit breaker: one instance of a function that takes no time, called 200 times a second, broken for 30 s.

Open loop: healthy, broken, healthy again. Answered: calls of the broken time that got a 200, from the function's
fallback: its last good answer. Added: the 99th percentile of the answers given while the breaker was open, less that of
the healthy answers before and after, as clients see them; the function takes no time, so that is the platform's.
Calls to broken: noted inside the function. With a full window of good calls behind it, half of the window must fail to
open it; then each half-open round may let `probes` through. The figure is the calls of the opening and of the largest
round; those of all rounds are shown beside it.
"""

from __future__ import annotations

import json
import math

from harness.open_loop import Shot, Volley, fire
from harness.report import Measured, Options, Table, percentile, run
from harness.running import ROOT, Platform

from samovar.policies import Breaker

APP = ROOT / "tests" / "functions" / "breakable" / "app.py"
RATE = 200.0
POLICY = Breaker()
MIN_TO_OPEN = math.ceil(POLICY.error_rate * POLICY.window_calls)
TARGETS = {
    "answered_share": (">=", 0.99),
    "added_p99_ms": ("<=", 2.0),
    "calls_to_broken": ("<=", float(MIN_TO_OPEN + POLICY.probes)),
}
GIVE_UP_S = 5.0
APART_S = 1.0  # failures further apart belong to different rounds
SETTLED_S = 1.0  # of each healthy time: connections and caches are there


def body(**more: object) -> bytes:
    """Return an input that the fallback takes for the same whatever `more` says."""
    return json.dumps({"x": 1} | more).encode()


def p99_ms(shots: list[Shot]) -> float:
    """Return the 99th percentile of how long answers took."""
    return percentile([shot.took_s * 1000 for shot in shots], 99)


def settled(volley: Volley) -> list[Shot]:
    """Return the healthy answers once the load has settled."""
    return [shot for shot in volley.shots if shot.status == 200 and not shot.fallback and shot.at_s > SETTLED_S]


def rounds(failed_s: list[float]) -> list[int]:
    """Return how many calls reached the broken function when the breaker opened, and in each round of probes."""
    sizes = [0]
    for before_s, at_s in zip([*failed_s[:1], *failed_s], failed_s, strict=False):
        if at_s - before_s > APART_S:
            sizes.append(0)
        sizes[-1] += 1
    return sizes


def measure(options: Options) -> Measured:
    """Break the function while it is called."""
    healthy_s, broken_s = options.pick(10.0, 4.0), options.pick(30.0, 12.0)
    with Platform() as platform:
        name = platform.deploy(APP)
        platform.wait_ready(name, 1)
        before = fire(platform.target(name, body()), RATE, healthy_s, GIVE_UP_S)
        broken = fire(platform.target(name, body(broken=True)), RATE, broken_s, GIVE_UP_S, seed=2)
        after = fire(platform.target(name, body()), RATE, healthy_s, GIVE_UP_S, seed=3)
        sizes = rounds(json.loads(platform.invoke(name, body(x=2, report=True)).body))
    answered = [shot for shot in broken.shots if shot.status == 200]
    failing = sorted(answered, key=lambda shot: shot.at_s)[: sizes[0]]
    stood_in = [shot for shot in answered if shot.at_s > failing[-1].at_s] if failing else answered
    healthy = settled(before) + settled(after)
    recovered_s = max((shot.at_s for shot in after.shots if shot.fallback), default=0.0)
    rows = [
        (label, len(shots), percentile([s.took_s * 1000 for s in shots], 50), p99_ms(shots))
        for label, shots in (("healthy", healthy), ("broken, all", answered), ("breaker open", stood_in))
    ]
    return Measured(
        {
            "answered_share": len(answered) / len(broken.shots),
            "added_p99_ms": p99_ms(stood_in) - p99_ms(healthy),
            "calls_to_broken": sizes[0] + max(sizes[1:], default=0),
            "calls_to_broken_in_all": sum(sizes),
            "min_to_open": MIN_TO_OPEN,
            "rounds_of_probes": len(sizes) - 1,
            "recovered_s": recovered_s,
            "generator_lag_ms": max(v.lag_s for v in (before, broken, after)) * 1000,
        },
        [Table(f"{RATE:.0f} calls/s, answers by milliseconds", ("while", "answers", "p50", "p99"), rows)],
        [f"Calls that reached the broken function: {sizes[0]} until it opened, then {sizes[1:]} by round of probes."],
    )


if __name__ == "__main__":
    run("breaker", TARGETS, measure)
