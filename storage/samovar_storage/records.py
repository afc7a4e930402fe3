"""What is stored under the keys of `keys.py`: frozen structs, JSON in Redis.

Times named `_at_s` are unix seconds. This module does not know Redis.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from samovar.errors import DeployRefused
from samovar.spec import Manifest, Route
from samovar.values import Struct


class FunctionRecord(Struct, frozen=True, kw_only=True):
    """The live index entry of a function: its route, and the manifests of the versions that the route names, or that
    stand in for those by their fallback."""

    name: str
    route: Route
    manifests: dict[str, Manifest]


class ApiKeyRecord(Struct, frozen=True, kw_only=True):
    """An API key without its secret. scopes: admin, deploy, invoke. functions: names it is bound to, empty = all.

    rate: limit of its calls, such as "20/s", "" = none; burst: 0 = one second's worth. max_priority: high, normal, low.
    expires_at_s: 0 = never. previous_sha256: of the secret before the last rotation, good until previous_until_s.
    """

    key_id: str
    name: str
    secret_sha256: str
    scopes: list[str]
    functions: list[str] = msgspec.field(default_factory=list)
    created_at_s: float = 0.0
    rate: str = ""
    burst: int = 0
    max_priority: str = "high"
    expires_at_s: float = 0.0
    rotated_at_s: float = 0.0
    previous_sha256: str = ""
    previous_until_s: float = 0.0


class InstanceRecord(Struct, frozen=True, kw_only=True):
    """One instance as the pool manager knows it.

    state: samovar.lifecycle.State value. ref: "" for a blank. address: "unix:/path" or "tcp:host:port".
    token: what a caller must present. boot_ms: claim, fetch, import, load, warmup. from_template: forked loaded.
    idle_since_s: since when it has had no call, 0 while busy or not ready; behind by up to half a minute.
    ended: of one that is gone, why, as far as that is known when it is published: "" or a sentence; it may be published
    once more when it is known.
    """

    instance_id: str
    state: str
    ref: str = ""
    node: str = ""
    pid: int = 0
    address: str = ""
    token: str = ""
    concurrency: int = 1
    device: str = "cpu"
    from_template: bool = False
    started_at_s: float = 0.0
    ready_at_s: float = 0.0
    boot_ms: dict[str, float] = msgspec.field(default_factory=dict)
    memory_bytes: int = 0
    sandbox: list[str] = msgspec.field(default_factory=list)
    simulated: bool = False
    idle_since_s: float = 0.0
    ended: str = ""


class Demand(Struct, frozen=True, kw_only=True):
    """What one gateway or job worker holds for one version now. jobs: how many of these calls are attempts at jobs."""

    queued: int
    running: int
    jobs: int = 0


class BootFailure(Struct, frozen=True, kw_only=True):
    """Why a version's last boot failed. code, status and detail as the waiting callers get them."""

    ref: str
    code: str
    status: int
    detail: str
    phase: str = ""
    log_tail: list[str] = msgspec.field(default_factory=list)
    num_failures: int = 1
    failed_at_s: float = 0.0
    retry_at_s: float = 0.0


class VersionStatus(Struct, frozen=True, kw_only=True):
    """desired: target of the last decision, with its reason. memory_bytes: sum over its instances. manner: how an
    engine runs the model, in words, "" while none says."""

    ref: str
    desired: int
    ready: int
    starting: int
    draining: int
    reason: str
    at_s: float
    templates: int = 0
    memory_bytes: int = 0
    manner: str = ""


class DeviceStatus(Struct, frozen=True, kw_only=True):
    """One accelerator. simulated devices are marked as such everywhere."""

    device: str
    name: str
    memory_bytes: int
    free_bytes: int
    simulated: bool = False


class NodeStatus(Struct, frozen=True, kw_only=True):
    node: str
    blanks: int
    blank_target: int
    instances: int
    memory_budget_bytes: int
    memory_used_bytes: int
    devices: list[DeviceStatus]
    at_s: float
    zygote_ready: bool = True
    sandbox: list[str] = msgspec.field(default_factory=list)


class Decision(Struct, frozen=True, kw_only=True):
    """One action of the pool manager and why: `rule` is the rule's name, `inputs` the numbers it saw, `detail` a
    sentence where these do not say it all."""

    at_s: float
    ref: str
    action: str
    rule: str
    desired: int
    ready: int
    inputs: dict[str, float] = msgspec.field(default_factory=dict)
    detail: str = ""


class WarmRequest(Struct, frozen=True, kw_only=True):
    """`samovar warm NAME --instances N --for 30m`: keep N ready until `until_s`."""

    ref: str
    instances: int
    until_s: float


class LogLine(Struct, frozen=True, kw_only=True):
    """One line of a function's own output. stream: stdout or stderr."""

    at_s: float
    ref: str
    instance: str
    stream: str
    line: str


R = TypeVar("R", bound=Struct)


def dumps(record: Struct) -> bytes:
    """Return `record` as JSON bytes."""
    return msgspec.json.encode(record)


def loads(data: bytes | str, type: type[R]) -> R:
    """Return the `type` stored in `data`.

    Raises: msgspec.ValidationError if it is not one, or breaks a rule that came after it was written.
    """
    try:
        return msgspec.json.decode(data, type=type)
    except DeployRefused as error:
        raise msgspec.ValidationError(error.detail) from error
