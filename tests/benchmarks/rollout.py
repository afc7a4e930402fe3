"""A rollout under load, and what the verdict on canaries does: planted regressions and clean ones.

Part one, `errors` and `split_within_bounds`: RATE calls/s for a minute, open loop, while a canary at 10 % comes, is
promoted, is followed by another version, which is rolled back. Every call must be answered 200. The split is within
bounds if the canary's share of the calls sent while it had its weight is within three standard deviations of 10 %, and
if each version answered everything once it had all traffic.

Part two, `rolled_back_s`: two functions at RATE calls/s with automatic canaries at 20 %, one failing 5 % of its calls,
one 30 % slower; the time from the start of the trial to the rollback, the larger of both. `false_rollbacks`: 20
functions with clean canaries at 50 %, ten at a time, each at CLEAN_RATE calls/s, baked until they are promoted or
rolled back. Nothing is replayed: every verdict is the pool manager's on the traffic that the gateway wrote.
"""

from __future__ import annotations

import math
import tempfile
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import msgspec
from harness.open_loop import Shot, Volley, fire
from harness.report import Measured, Options, Table, percentile, run
from harness.running import Platform, wait_until

from samovar import deploying
from samovar.client import Client

TARGETS = {
    "errors": ("==", 0.0),
    "split_within_bounds": ("==", 1.0),
    "rolled_back_s": ("<=", 60.0),
    "false_rollbacks": ("<=", 1.0),
}
BODY = b'{"n": 1}'
APP = """import asyncio
import random
import samovar as sv

@sv.function(name="rolls", example={{"n": 1}}, scaling=sv.Scaling(max_instances=2, target_concurrency=16))
async def f(n: int) -> int:
    await asyncio.sleep({nap_s} * random.lognormvariate(0, 0.1))
    if random.random() < {error_rate}:
        raise ValueError("planted")
    return n
"""
RATE, CLEAN_RATE = 100.0, 20.0
PERCENT, VERDICT_PERCENT, CLEAN_PERCENT = 10, 20, 50
NAP_S, SLOWER, ERROR_RATE = 0.02, 1.3, 0.05
BAKE_S = 40.0
SETTLE_S = 1.0  # a route's change is in force within a second
GIVE_UP_S = 10.0
LIMIT_S = 60.0


class Author:
    """Deploys versions of one source, changed in what matters, as the CLI does."""

    def __init__(self, platform: Platform, folder: Path) -> None:
        self._client = Client(platform.url, platform.key)
        self._folder = folder
        self._packages: dict[tuple[float, float], deploying.Package] = {}

    def deploy(self, name: str, nap_s: float = NAP_S, error_rate: float = 0.0, **rollout: float) -> int:
        """Deploy the next version of `name` and return its number. rollout: the query of the deploy."""
        package = self.package(nap_s, error_rate)
        manifest = msgspec.structs.replace(package.manifest, name=name)
        return deploying.create(self._client, deploying.Package(manifest, package.sources, 1), rollout).version

    def package(self, nap_s: float, error_rate: float) -> deploying.Package:
        """Return what such a version consists of, uploaded. Not for several threads at once the first time."""
        found = self._packages.get((nap_s, error_rate))
        if found is None:
            (self._folder / "app.py").write_text(APP.format(nap_s=nap_s, error_rate=error_rate))
            found = deploying.prepare(deploying.inspect(str(self._folder / "app.py")))
            deploying.upload(self._client, found, deploying.plan(self._client, found))
            self._packages[nap_s, error_rate] = found
        return found


@dataclass
class Load:
    """A steady load in a thread of its own. started_s: of the clock that `now_s` reads from."""

    platform: Platform
    name: str
    rate: float
    seconds: float
    volley: list[Volley] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.started_s = time.perf_counter()
        self._thread = threading.Thread(target=self._run)
        self._thread.start()

    def now_s(self) -> float:
        """Return the seconds since the first call."""
        return time.perf_counter() - self.started_s

    def until(self, at_s: float) -> None:
        """Return at this second of the load."""
        time.sleep(max(0.0, at_s - self.now_s()))

    def shots(self) -> list[Shot]:
        """Return every call, once the load is over."""
        self._thread.join()
        return self.volley[0].shots

    def _run(self) -> None:
        self.volley.append(fire(self.platform.target(self.name, BODY), self.rate, self.seconds, GIVE_UP_S))


def warm(platform: Platform, *names: str) -> None:
    """Return once each function has answered."""
    client = Client(platform.url, platform.key)
    for name in names:
        client.request("POST", f"/v1/functions/{name}/invoke", BODY)


def rollout(platform: Platform, author: Author, seconds: float) -> tuple[list[Shot], list[tuple[str, float, float]]]:
    """Return every call of part one, and what was in force from when to when."""
    author.deploy("steps")
    warm(platform, "steps")
    load = Load(platform, "steps", RATE, seconds)
    stages: list[tuple[str, float, float]] = []

    def stage(what: str, share: float, change: Callable[[], object], version: int) -> None:
        change()
        wait_until(lambda: bool(_ready(platform, "steps", version)), 30, f"version {version} is ready")
        began_s = load.now_s() + SETTLE_S
        load.until(seconds * share)
        stages.append((what, began_s, load.now_s()))

    load.until(seconds * 0.1)
    stage("canary", 0.45, lambda: author.deploy("steps", canary=PERCENT), 2)
    stage("promoted", 0.6, lambda: platform.cli("promote", "steps"), 2)
    stage("new version", 0.8, lambda: author.deploy("steps"), 3)
    stage("rolled back", 0.98, lambda: platform.cli("rollback", "steps"), 2)
    return load.shots(), stages


def _ready(platform: Platform, name: str, version: int) -> int:
    ready: dict[str, int] = platform.get(f"/v1/functions/{name}/why")["ready"]
    return ready.get(str(version), 0)


def shares(shots: list[Shot], stages: list[tuple[str, float, float]]) -> list[tuple[str, str, int, float, float]]:
    """Return per stage: version that counts, calls, its share, and by how many standard deviations that is off."""
    rows = []
    for (what, began_s, ended_s), version in zip(stages, ("2", "2", "3", "2"), strict=True):
        within = [shot for shot in shots if began_s <= shot.at_s < ended_s]
        share = sum(shot.version == version for shot in within) / max(1, len(within))
        expected = PERCENT / 100 if what == "canary" else 1.0
        deviation = math.sqrt(expected * (1 - expected) / max(1, len(within)))
        off = abs(share - expected) / deviation if deviation else (0.0 if share == expected else math.inf)
        rows.append((what, version, len(within), share, off))
    return rows


def rolled_back_s(author: Author, platform: Platform, name: str, nap_s: float, error_rate: float) -> float | None:
    """Return the seconds from the start of a trial under load to its rollback, None if there was none in time."""
    author.deploy(name)
    warm(platform, name)
    load = Load(platform, name, RATE, LIMIT_S + 5.0)
    load.until(2.0)
    author.deploy(name, nap_s, error_rate, canary=VERDICT_PERCENT, auto=1, bake_s=600)
    began_s, client = time.perf_counter(), Client(platform.url, platform.key)
    found_s = None
    while found_s is None and time.perf_counter() - began_s < LIMIT_S:
        time.sleep(0.1)
        found_s = time.perf_counter() - began_s if _route(client, name).get("rejected") else None
    load.shots()
    return found_s


def _route(client: Client, name: str) -> dict[str, object]:
    found: dict[str, object] = msgspec.json.decode(client.request("GET", f"/v1/functions/{name}").content)["route"]
    return found


def clean(platform: Platform, author: Author, names: list[str], bake_s: float) -> dict[str, str]:
    """Return name → promoted, rolled back, or undecided, of canaries that are as good."""
    for name in names:
        author.deploy(name)
    warm(platform, *names)
    loads = [Load(platform, name, CLEAN_RATE, bake_s + 30.0) for name in names]
    for name in names:
        author.deploy(name, canary=CLEAN_PERCENT, auto=1, bake_s=bake_s)
    for load in loads:
        load.shots()
    client = Client(platform.url, platform.key)
    return {name: _verdict(_route(client, name)) for name in names}


def _verdict(route: dict[str, object]) -> str:
    return "rolled back" if route.get("rejected") else "undecided" if route.get("canary") else "promoted"


def measure(options: Options) -> Measured:
    """Measure both parts on one platform."""
    num_clean, batch = options.pick((20, 10), (4, 4))
    with Platform() as platform, tempfile.TemporaryDirectory(prefix="samovar-bench-") as folder:
        author = Author(platform, Path(folder))
        for sort in ((NAP_S, 0.0), (NAP_S, ERROR_RATE), (NAP_S * SLOWER, 0.0)):
            author.package(*sort)
        shots, stages = rollout(platform, author, options.pick(60.0, 30.0))
        planted = {"5 % errors": (NAP_S, ERROR_RATE), "30 % slower": (NAP_S * SLOWER, 0.0)}
        with ThreadPoolExecutor() as pool:
            found = pool.map(lambda n: rolled_back_s(author, platform, f"worse-{n}", *[*planted.values()][n]), range(2))
            times_s = dict(zip(planted, found, strict=True))
        verdicts: dict[str, str] = {}
        for start in range(0, num_clean, batch):
            names = [f"clean-{number}" for number in range(start, min(num_clean, start + batch))]
            verdicts |= clean(platform, author, names, options.pick(BAKE_S, 15.0))
        reasons = {f"worse-{n}": _last_reason(platform, f"worse-{n}") for n in range(2)}
        reasons |= {name: _last_reason(platform, name) for name, found in verdicts.items() if found != "promoted"}
    return _measured(shots, shares(shots, stages), times_s, verdicts, reasons)


def _last_reason(platform: Platform, name: str) -> str:
    why = platform.get(f"/v1/functions/{name}/why")
    return str(why["route"]["history"][0]["reason"])


def _measured(
    shots: list[Shot],
    split: list[tuple[str, str, int, float, float]],
    times_s: dict[str, float | None],
    verdicts: dict[str, str],
    reasons: dict[str, str],
) -> Measured:
    counts = [(what, sum(found == what for found in verdicts.values())) for what in ("promoted", "undecided")]
    false = sum(found == "rolled back" for found in verdicts.values())
    found_s = [time_s for time_s in times_s.values() if time_s is not None]
    return Measured(
        {
            "errors": sum(shot.status != 200 for shot in shots),
            "split_within_bounds": float(all(off <= 3.0 for *_, off in split)),
            "rolled_back_s": max(found_s) if len(found_s) == len(times_s) else None,
            "false_rollbacks": false,
            "calls": len(shots),
            "p99_ms": 1000 * percentile([shot.took_s for shot in shots], 99),
            "canary_share": split[0][3],
        },
        [
            Table(f"A rollout at {RATE:g} calls/s", ("stage", "version", "calls", "share", "σ off"), split),
            Table("Planted regressions, seconds until rolled back", ("planted", "s"), [*times_s.items()]),
            Table("Clean canaries", ("verdict", "functions"), [*counts, ("rolled back", false)]),
        ],
        [f"{name}: {reason}" for name, reason in reasons.items()],
    )


if __name__ == "__main__":
    run("rollout", TARGETS, measure)
