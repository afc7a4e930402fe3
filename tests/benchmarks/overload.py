"""Overload: open-loop arrivals at 0.5 to 10 × the capacity of a function that holds its slot for 20 ms, on 2 instances.

Every call says that it has DEADLINE_S. Goodput: answers 200 within it, by when they came. Late: admitted calls that
were not answered within it (a 504, or a 200 too late). A refusal is a 503. Recovery: right after the heaviest load,
half the capacity again; seconds until the last call that was refused, or took longer than half its deadline.
Beside it a plain Litestar app, the same 20 ms two at a time, whose clients leave at the deadline. The most by which the
load generator itself lagged is allowed for, and shown: it must be small beside the deadline.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from pathlib import Path

from harness.child import Child
from harness.load import Target
from harness.open_loop import GONE, Volley, fire
from harness.processes import tree, tree_cpu_s
from harness.report import Measured, Options, Table, interleave, median_of, percentile, run
from harness.running import ROOT, Platform

APP = ROOT / "tests" / "functions" / "naps" / "app.py"
BODY = b'{"values": [1.0, 2.0]}'
TARGETS = {"goodput_over_peak_min": (">=", 0.95), "late_share": ("==", 0.0), "refusal_p99_ms": ("<=", 20.0)}
LOADS = (0.5, 1.0, 2.0, 5.0, 10.0)
NAP_S = 0.02
NUM_SLOTS = 2
DEADLINE_S = 0.4
WARM_S = 1.0
OK, REFUSED, TOO_LATE = 200, 503, 504


@dataclass(frozen=True)
class Seen:
    """One load on one side. cpu_s: of the gateway's process, 0 where it was not asked for."""

    load: float
    volley: Volley
    cpu_s: float = 0.0

    def times_s(self, status: int) -> list[float]:
        """Return how long the answers with this status took."""
        return [shot.took_s for shot in self.volley.shots if shot.status == status]

    @property
    def goodput(self) -> float:
        """Answers in time, a second, once the load has settled."""
        in_time = (s for s in self.volley.shots if s.status == OK and s.took_s <= DEADLINE_S + self.volley.lag_s)
        good = (s.at_s + s.took_s for s in in_time)
        return sum(WARM_S <= at_s < self.volley.duration_s for at_s in good) / (self.volley.duration_s - WARM_S)

    @property
    def num_late(self) -> int:
        """Calls that were admitted and not answered in time."""
        late = [took_s for took_s in self.times_s(OK) if took_s > DEADLINE_S + self.volley.lag_s]
        return len(late) + len(self.times_s(TOO_LATE)) + len(self.times_s(GONE))


def capacity(target: Target, options: Options) -> float:
    """Return how many calls a second both instances answer when none waits long: a mild overload, counted."""
    seen = Seen(1.2, fire(target, 1.2 * NUM_SLOTS / NAP_S, options.pick(5.0, 3.0), 10.0, _timeout()))
    return seen.goodput


def _timeout() -> str:
    return f"Samovar-Timeout-Ms: {DEADLINE_S * 1000:g}\r\n"


def shot_at(target: Target, load: float, rate: float, seconds: float, gateway: int) -> Seen:
    """Return one load on the gateway."""
    before_s = tree_cpu_s(gateway)
    volley = fire(target, load * rate, seconds, DEADLINE_S + 2.0, _timeout())
    return Seen(load, volley, tree_cpu_s(gateway) - before_s)


def plain(load: float, rate: float, seconds: float) -> Seen:
    """Return one load on the Litestar app, which starts afresh: else it would still be at the load before."""
    with Child("litestar_server.py") as server:
        target = Target(f"http://127.0.0.1:{server.greeting.strip()}/nap", [BODY])
        return Seen(load, fire(target, load * rate, seconds, DEADLINE_S))


def recovery_s(calm: Seen) -> float:
    """Return when the last call that was not answered at ease was sent, seconds after the overload; 0 if none was."""
    uneasy = [s.at_s for s in calm.volley.shots if s.status != OK or s.took_s > DEADLINE_S / 2]
    return max(uneasy, default=0.0)


def gateway_of(platform: Platform) -> int:
    """Return the gateway's process id."""
    for pid in tree(platform.pid):
        if b"samovar_gateway" in Path(f"/proc/{pid}/cmdline").read_bytes():
            return pid
    raise LookupError("no gateway")


def refusal_cpu_ms(seen: list[Seen]) -> tuple[float, float]:
    """Return the gateway's CPU for one served and one refused call, by the lightest and the heaviest load, ms."""
    light, heavy = seen[0], seen[-1]
    served_s = light.cpu_s / len(light.volley.shots)
    num_served, num_refused = len(heavy.times_s(OK)), len(heavy.times_s(REFUSED))
    return 1000 * served_s, 1000 * max(0.0, heavy.cpu_s - num_served * served_s) / max(1, num_refused)


def goodput_over_peak_min(seen: list[Seen]) -> float:
    """Return the least median goodput at and beyond the capacity, over the best median."""
    medians = {load: median_of([one for one in seen if one.load == load], lambda one: one.goodput) for load in LOADS}
    return min(goodput for load, goodput in medians.items() if load >= 1) / max(medians.values())


def measure(options: Options) -> Measured:
    """Measure both sides: every load in turn, several times, there and back; the plain app's once."""
    seconds = options.pick(5.0, 3.0)
    with Platform() as platform:
        target = platform.target(platform.deploy(APP), BODY)
        platform.wait_ready("naps", NUM_SLOTS)
        gateway = gateway_of(platform)
        rate = capacity(target, options)
        theirs = [plain(load, rate, seconds) for load in LOADS]
        takes = {f"{load:g}": partial(shot_at, target, load, rate, seconds, gateway) for load in LOADS}
        ours = [one for taken in interleave(options.pick(3, 2), takes).values() for one in taken]
        shot_at(target, LOADS[-1], rate, seconds, gateway)
        calm = shot_at(target, 0.5, rate, 4.0, gateway)
    refused_s = [took_s for one in ours if one.load == 5.0 for took_s in one.times_s(REFUSED)]
    num_admitted = sum(len(one.times_s(OK)) + one.num_late for one in ours)
    served_ms, refused_ms = refusal_cpu_ms(ours)
    metrics = {
        "goodput_over_peak_min": goodput_over_peak_min(ours),
        "late_share": sum(one.num_late for one in ours) / num_admitted,
        "refusal_p99_ms": 1000 * percentile(refused_s or [0.0], 99),
        "recovery_s": recovery_s(calm),
        "capacity_per_s": rate,
        "refusal_cpu_share": refused_ms / (1000 * NAP_S + served_ms),
        "plain_goodput_over_peak_min": goodput_over_peak_min(theirs),
    }
    notes = [
        f"The gateway's CPU: {served_ms:.3f} ms for a call it serves, {refused_ms:.3f} ms for one it refuses "
        f"(`refusal_cpu_share`: of a call that computes for {1000 * NAP_S:g} ms).",
        f"The generator sent no call more than {1000 * max(s.volley.lag_s for s in ours):.0f} ms late.",
    ]
    return Measured(dict(metrics), [table("Samovar", ours), table("plain Litestar app", theirs)], notes)


def table(title: str, seen: list[Seen]) -> Table:
    """Return one side's rows."""
    columns = ("load", "sent/s", "goodput/s", "late", "refused", "p50 ms", "p99 ms", "refusal p99 ms")
    return Table(f"{title}, deadline {1000 * DEADLINE_S:g} ms", columns, [_row(one) for one in seen])


def _row(one: Seen) -> tuple[object, ...]:
    answered, refused = one.times_s(OK) or [float("nan")], one.times_s(REFUSED)
    return (
        f"{one.load:g} ×",
        one.volley.rate,
        one.goodput,
        one.num_late,
        len(refused),
        1000 * percentile(answered, 50),
        1000 * percentile(answered, 99),
        1000 * percentile(refused, 99) if refused else None,
    )


if __name__ == "__main__":
    run("overload", TARGETS, measure)
