"""Rate limits: what three of them cost a call, and how far four gateways together are from the limit over 10 s.

Cost: the gateway's processor time for a call that passes a limit of its key, of its function and of both, minus that
for the same call without any; short takes alternate, wrk is on the other core; the median of the differences.
Error: a fresh key with RATE a second and a burst as large is called twice as often as it may, open loop. Ideal is the
burst and what comes in the time; the worst of: the load spread evenly; all of it at one gateway, then at another;
evenly with Redis hanging (SIGSTOP) all the while.
"""

from __future__ import annotations

import contextlib
import http.client
import os
import signal
import statistics
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from urllib.parse import urlsplit

from harness.gateways import further_gateways, process_of
from harness.load import Load, Target, run_wrk
from harness.open_loop import Volley, fire
from harness.processes import tree_cpu_s
from harness.report import Measured, Options, Table, interleave, median_of, run
from harness.running import ROOT, Platform, wait_until
from overhead import BODY

TARGETS = {"cost_us_per_call": ("<=", 15.0), "global_error": ("<=", 0.05)}
FUNCTIONS = ROOT / "tests" / "functions"
NUM_GATEWAYS = 4
RATE = 100
OVERLOAD = 2.0
GIVE_UP_S = 10.0
SECONDS = 10.0
REFUSED = 429


@dataclass(frozen=True)
class Round:
    """One kind of load. admitted, ideal: calls. lag_s: of the generator."""

    name: str
    admitted: int
    ideal: float
    lag_s: float
    by_gateway: Sequence[int]

    @property
    def error(self) -> float:
        """The distance from the ideal, as a share of it."""
        return abs(self.admitted / self.ideal - 1)


def prepare(platform: Platform, folder: str) -> str:
    """Deploy a function with one instance that stays; return its name."""
    name = platform.deploy(FUNCTIONS / folder / "app.py")
    platform.scale(name, min_instances=1, max_instances=1)
    platform.wait_ready(name, 1)
    return name


def new_key(platform: Platform, rate: int, burst: int) -> str:
    """Return a fresh key with this limit."""
    made = platform.cli("keys", "create", "bench", "--rate", f"{rate}/s", "--burst", str(burst))
    return str(made["key"])


# what it costs ----------------------------------------------------------------------------------------------------


def cost(platform: Platform, plain: str, rated: str, options: Options) -> dict[str, list[Load]]:
    """Return alternating takes of both functions, with a key that has no limit and with one that has."""
    gateway = process_of(platform, "-m samovar_gateway")
    unlimited = platform.cli("keys", "create", "bench")["key"]
    limited = new_key(platform, 1_000_000, 1_000_000)
    sides = {"without": (plain, unlimited), "with three limits": (rated, limited)}
    for pid in (gateway, process_of(platform, "samovar_pool")):
        os.sched_setaffinity(pid, {0})
    return interleave(
        options.pick(15, 7),
        {
            name: partial(
                run_wrk,
                Target(platform.target(function, BODY).url, [BODY], f"Bearer {key}"),
                16,
                options.pick(3, 1),
                cores="1",
                server_cpu_s=partial(tree_cpu_s, gateway),
            )
            for name, (function, key) in sides.items()
        },
    )


# how exact it is --------------------------------------------------------------------------------------------------


def fire_at(addresses: Sequence[str], name: str, key: str, rates: Sequence[float], seconds: float) -> list[Volley]:
    """Call every gateway at its rate, all at once; rates of 0 are left out."""

    def one(number: int) -> Volley:
        target = Target(f"{addresses[number]}/v1/functions/{name}/invoke", [BODY], f"Bearer {key}")
        return fire(target, rates[number], seconds, GIVE_UP_S, seed=number)

    with ThreadPoolExecutor(len(rates)) as pool:
        return list(pool.map(one, [number for number, rate in enumerate(rates) if rate]))


def count(name: str, phases: Sequence[list[Volley]], seconds: float) -> Round:
    """Return how many calls were let through, against the burst and what comes in `seconds`."""
    volleys = [volley for phase in phases for volley in phase]
    by_gateway = [sum(shot.status != REFUSED for shot in volley.shots) for volley in volleys]
    return Round(name, sum(by_gateway), RATE + RATE * seconds, max(v.lag_s for v in volleys), by_gateway)


def known_key(platform: Platform, addresses: Sequence[str]) -> str:
    """Return a fresh key that every gateway knows."""
    key = new_key(platform, RATE, RATE)

    def is_known(address: str) -> bool:
        connection = http.client.HTTPConnection(urlsplit(address).netloc, timeout=10)
        with contextlib.closing(connection):
            connection.request("GET", "/v1/functions", headers={"Authorization": f"Bearer {key}"})
            return connection.getresponse().status == 200

    for address in addresses:
        wait_until(partial(is_known, address), 10, "the key is known")
    return key


@contextmanager
def stopped(pid: int) -> Iterator[None]:
    """Stop a process for the body of a `with`."""
    os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        os.kill(pid, signal.SIGCONT)


def rounds(platform: Platform, name: str) -> list[Round]:
    """Return the three kinds of load on four gateways."""
    even = [OVERLOAD * RATE / NUM_GATEWAYS] * NUM_GATEWAYS
    first, then = [OVERLOAD * RATE, 0.0, 0.0, 0.0], [0.0, OVERLOAD * RATE, 0.0, 0.0]
    valkey = process_of(platform, "valkey")
    with further_gateways(platform, NUM_GATEWAYS - 1) as addresses:
        at = partial(fire_at, addresses, name)
        key = known_key(platform, addresses)
        found = [count("even", [at(key, even, SECONDS)], SECONDS)]
        key = known_key(platform, addresses)
        found.append(count("one, then another", [at(key, rates, SECONDS / 2) for rates in (first, then)], SECONDS))
        key = known_key(platform, addresses)
        with stopped(valkey):
            found.append(count("even, Redis hangs", [at(key, even, SECONDS)], SECONDS))
    return found


def measure(options: Options) -> Measured:
    """Measure the cost on one gateway, then the error on four."""
    with Platform() as platform:
        plain, rated = prepare(platform, "echo_sum"), prepare(platform, "rated_sum")
        exact = [one for _ in range(options.pick(3, 1)) for one in rounds(platform, plain)]
        takes = cost(platform, plain, rated, options)

    def us(load: Load) -> float:
        return 1000 * load.cpu_ms_per_call

    pairs = zip(takes["with three limits"], takes["without"], strict=True)
    worst = max(exact, key=lambda one: one.error)
    metrics = {
        "cost_us_per_call": statistics.median(us(one) - us(other) for one, other in pairs),
        "global_error": worst.error,
        "call_us_without": median_of(takes["without"], us),
        "generator_lag_ms": 1000 * max(one.lag_s for one in exact),
    }
    errors = [(o.name, o.admitted, o.ideal, f"{o.admitted / o.ideal - 1:+.1%}", str(o.by_gateway)) for o in exact]
    costs = [(name, median_of(side, us), median_of(side, lambda load: load.rps)) for name, side in takes.items()]
    return Measured(
        dict(metrics),
        [
            Table(f"{RATE}/s over {SECONDS:g} s", ("load", "admitted", "ideal", "error", "by gateway"), errors),
            Table("Gateway CPU", ("calls", "µs a call", "calls/s"), costs),
        ],
    )


if __name__ == "__main__":
    run("rate_limit", TARGETS, measure)
