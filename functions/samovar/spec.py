"""What a function is: the value objects users write and the manifest a version is stored as.

All are frozen msgspec structs: equal by value, JSON on the wire and in object storage.
This module does not know how a function is called, stored or scaled.
"""

from __future__ import annotations

from typing import Any, Literal

import msgspec

from samovar.acceleration.options import Acceleration, Built
from samovar.policies import MAX_BURST, Breaker, Cache, Fallback, Jobs, Log, parse_rate
from samovar.tensors import TensorSpec
from samovar.values import NAME_PATTERN, Struct, above, at_least, require

MANIFEST_FORMAT = 1
HandlerKind = Literal["sync", "async", "generator", "async_generator"]


class Scaling(Struct, frozen=True, kw_only=True):
    """How many instances a version may have.

    min_instances, max_instances: bounds, 0 <= min <= max, max >= 1.
    buffer_instances: idle instances kept beyond the demand while there is any demand, >= 0.
    target_concurrency: invocations per instance the autoscaler aims at, > 0; None means the instance's own concurrency.
    scale_down_window_s: seconds without demand before the version goes to its floor, >= 0.
    """

    min_instances: int = 0
    max_instances: int = 8
    buffer_instances: int = 0
    target_concurrency: float | None = None
    scale_down_window_s: float = 60.0

    def __post_init__(self) -> None:
        is_range = at_least(self.min_instances, 0) and at_least(self.max_instances, self.min_instances)
        require(is_range, "Scaling: two whole numbers, 0 <= min_instances <= max_instances")
        require(self.max_instances >= 1, "Scaling: max_instances >= 1")
        require(at_least(self.buffer_instances, 0), "Scaling: buffer_instances >= 0")
        is_target = self.target_concurrency is None or above(self.target_concurrency, 0)
        require(is_target, "Scaling: target_concurrency is a number > 0")
        require(at_least(self.scale_down_window_s, 0), "Scaling: scale_down_window_s is a number >= 0")


class BatchSpec(Struct, frozen=True, kw_only=True):
    """Dynamic batching as stored in the manifest (the `cost` callable stays in the user's code).

    max_size: items per batch, >= 1. max_wait_ms: longest wait of the first item while the model is busy or the batch
    is filling, >= 0. max_cost: largest sum of `cost(item)` in one batch, or None. max_tokens: of a padded batch, its
    longest item times its items; None if items have no lengths. max_padding: tokens an item is padded by at most.
    """

    max_size: int = 16
    max_wait_ms: float = 5.0
    max_cost: float | None = None
    max_tokens: int | None = None
    max_padding: int = 32


class Resources(Struct, frozen=True, kw_only=True):
    """What one instance needs.

    gpus: whole devices, >= 0. gpu_memory_gib: share of one device's memory, None = learned. cpus: torch threads and
    CPU share, > 0. memory_gib: hard limit of the process's own memory (cgroup, or RLIMIT_DATA), None = no limit.
    network: the function may open connections of its own. allow_subprocess: it may start processes (within a limit).
    """

    gpus: int = 0
    gpu_memory_gib: float | None = None
    cpus: float = 1.0
    memory_gib: float | None = None
    network: bool = False
    allow_subprocess: bool = False

    def __post_init__(self) -> None:
        require(at_least(self.gpus, 0), "Resources: gpus >= 0")
        require(above(self.cpus, 0), "Resources: cpus is a number > 0")
        for gib in (self.gpu_memory_gib, self.memory_gib):
            require(gib is None or above(gib, 0), "Resources: gpu_memory_gib and memory_gib are numbers > 0")


class Limits(Struct, frozen=True, kw_only=True):
    """What the platform enforces per version.

    timeout_s: default deadline of an invocation, > 0. max_queue: invocations that may wait per gateway, >= 0.
    load_timeout_s: longest boot (import + load + warm-up), > 0. overrun_grace_s: how long a call may run past its
    deadline before its process is killed, >= 0. rate: calls per time over all gateways, such as "20/s", None = no
    limit; burst: calls that may come at once after a pause, >= 1, None = one second's worth. rate_per_key,
    burst_per_key: the same for each API key alone.
    """

    timeout_s: float = 60.0
    max_queue: int = 1000
    load_timeout_s: float = 300.0
    overrun_grace_s: float = 2.0
    rate: str | None = None
    burst: int | None = None
    rate_per_key: str | None = None
    burst_per_key: int | None = None

    def __post_init__(self) -> None:
        require(above(self.timeout_s, 0), "Limits: timeout_s is a number of seconds > 0")
        require(at_least(self.max_queue, 0), "Limits: max_queue >= 0")
        require(above(self.load_timeout_s, 0), "Limits: load_timeout_s is a number of seconds > 0")
        require(at_least(self.overrun_grace_s, 0), "Limits: overrun_grace_s is a number of seconds >= 0")
        for rate, burst in ((self.rate, self.burst), (self.rate_per_key, self.burst_per_key)):
            is_burst = burst is None or (rate is not None and at_least(burst, 1) and burst <= MAX_BURST)
            require(is_burst, f"Limits: a burst is 1 to {MAX_BURST} and needs its rate")
            if rate is not None:
                parse_rate(rate)


class BlobRef(Struct, frozen=True, kw_only=True):
    """A content-addressed object: `blobs/<sha256>` in object storage."""

    sha256: str
    size_bytes: int


class FileRef(Struct, frozen=True, kw_only=True):
    """One weight file: its path relative to the weights directory, and the blob that holds it."""

    path: str
    sha256: str
    size_bytes: int


class Manifest(Struct, frozen=True, kw_only=True):
    """One immutable version: `functions/<name>/versions/<version>/manifest.json`.

    entry: `module:attribute` inside the code archive. code: deterministic tar of the project folder.
    weights: files laid out as a directory for `load(weights)`; empty if there are none.
    requirements: extra pip requirements, put in a layer. input_schema / output_schema: JSON Schema (2020-12).
    example: an input used for the warm-up inference, or None. hedge_after: send a second copy of a call that runs
    longer than this ("p95", "50ms"), None = never. jobs: how queued jobs are run.
    task: what it is for, as in `samovar.tasks`, "" if it does not say. inputs, outputs: its types as tensors, both
    empty if they are none; no_tensors: then why. acceleration: how its models are run; built: what was made for that at
    deploy, in the folder `acceleration.options.FOLDER` of the weights.
    """

    name: str
    version: int
    entry: str
    kind: Literal["class", "function"]
    handler: HandlerKind
    code: BlobRef
    weights: list[FileRef] = msgspec.field(default_factory=list)
    requirements: list[str] = msgspec.field(default_factory=list)
    scaling: Scaling = Scaling()
    batch: BatchSpec | None = None
    resources: Resources = Resources()
    limits: Limits = Limits()
    retry_on_crash: bool = True
    allow_pickle: bool = False
    has_check: bool = False
    input_schema: dict[str, Any] = msgspec.field(default_factory=dict)
    output_schema: dict[str, Any] = msgspec.field(default_factory=dict)
    example: Any = None
    python: str = ""
    sdk_version: str = ""
    created_at_s: float = 0.0
    format: int = MANIFEST_FORMAT
    fallback: Fallback | None = None
    cache: Cache | None = None
    breaker: Breaker = Breaker()
    log: Log = Log()
    hedge_after: str | None = None
    jobs: Jobs = Jobs()
    task: str = ""
    inputs: list[TensorSpec] = msgspec.field(default_factory=list)
    outputs: list[TensorSpec] = msgspec.field(default_factory=list)
    no_tensors: str = ""
    acceleration: Acceleration = Acceleration()
    built: Built | None = None

    @property
    def ref(self) -> str:
        """`name@version`, the key of a version everywhere."""
        return version_ref(self.name, self.version)


class Canary(Struct, frozen=True, kw_only=True):
    """A version on trial beside the stable ones. percent: its share, 1..99. auto: promoted or rolled back by itself
    after `bake_s` seconds of evidence, > 0. started_at_s: unix seconds."""

    version: int
    percent: int
    auto: bool = False
    bake_s: float = 600.0
    started_at_s: float = 0.0


class Mirror(Struct, frozen=True, kw_only=True):
    """A version that gets copies of calls, whose answers are compared and never returned. percent: of calls, 1..100."""

    version: int
    percent: int


class RouteChange(Struct, frozen=True, kw_only=True):
    """What a route was before one change. what: deploy, canary, promote, rollback, pin, unpin, mirror, undo.

    shares, canary, mirror, pinned, rejected, sticky: as before it; by: key id, or "auto"; reason: one sentence.
    """

    what: str
    at_s: float
    shares: dict[str, int]
    canary: Canary | None = None
    mirror: Mirror | None = None
    pinned: int | None = None
    rejected: list[int] = msgspec.field(default_factory=list)
    by: str = ""
    reason: str = ""
    sticky: str = ""


class Route(Struct, frozen=True, kw_only=True):
    """`functions/<name>/route.json`: which versions get which share of traffic. Written by conditional put only.

    shares: stable versions' number (as text, for JSON) to percent, summing to 100. latest: the highest version ever
    deployed. scaling: an operator's override (`samovar scale`), or None. canary: takes its percent off the top of the
    shares. previous: the shares that hold until the versions of `shares` are ready, and what "previous" means to a
    fallback. pinned: a deploy does not move traffic off this version. rejected: rolled back, may not be routed to.
    sticky: "" (every call by chance), "key" (by API key) or "header:<name>". history: the newest changes first.
    moved_at_s: unix seconds since when `shares` are as they are, 0 = always.
    """

    name: str
    shares: dict[str, int]
    latest: int
    scaling: Scaling | None = None
    updated_at_s: float = 0.0
    canary: Canary | None = None
    mirror: Mirror | None = None
    previous: dict[str, int] = msgspec.field(default_factory=dict)
    pinned: int | None = None
    rejected: list[int] = msgspec.field(default_factory=list)
    sticky: str = ""
    history: list[RouteChange] = msgspec.field(default_factory=list)
    moved_at_s: float = 0.0

    def receiving(self) -> set[int]:
        """Return the versions that may be sent calls or copies of calls now, or that must not go yet."""
        named = {int(version) for version, share in (self.shares | self.previous).items() if share > 0}
        return named | {trial.version for trial in (self.canary, self.mirror) if trial is not None}


def stand_in(route: Route, manifest: Manifest) -> int | None:
    """Return the version that answers when `manifest`'s does not, by its fallback; None if it names none or that was
    rolled back. "previous" is the one with the largest share before the current ones; to a canary, among these."""
    wanted = manifest.fallback.version if manifest.fallback is not None else None
    if wanted == "previous":
        before = route.previous if str(manifest.version) in route.shares else route.shares
        wanted = int(max(before, key=lambda number: (before[number], int(number)))) if before else None
    return None if wanted == manifest.version or wanted in route.rejected else wanted


def version_ref(name: str, version: int) -> str:
    """Return `name@version`."""
    return f"{name}@{version}"


def parse_ref(ref: str) -> tuple[str, int]:
    """Return (name, version) of a `name@version` reference."""
    name, _, version = ref.rpartition("@")
    return name, int(version)


def check_name(name: str) -> str:
    """Return `name` if it may name a function; raise DeployRefused otherwise."""
    require(
        bool(NAME_PATTERN.match(name)),
        f"function name {name!r} must be 1-63 characters of a-z, 0-9 and '-', with a letter or digit at both ends",
    )
    return name


def concurrency(manifest: Manifest) -> int:
    """Return how many invocations of this version one instance works on at once (its slots), >= 1."""
    if manifest.batch is not None:
        return manifest.batch.max_size
    if manifest.handler in ("async", "async_generator"):
        return max(1, int(manifest.scaling.target_concurrency or 8))
    return 1


def streams(manifest: Manifest) -> bool:
    """Return whether this version answers item by item."""
    return manifest.handler in ("generator", "async_generator")


def target_concurrency(manifest: Manifest, scaling: Scaling | None = None) -> float:
    """Return how many invocations per instance the autoscaler aims at, > 0."""
    declared = (scaling or manifest.scaling).target_concurrency
    return declared if declared is not None else float(concurrency(manifest))
