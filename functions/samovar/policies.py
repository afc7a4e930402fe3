"""How a version wants its traffic handled: the value objects beside `spec.Limits` that authors write.

All are frozen, equal by value, and stored in the manifest. This module does not know how any of it is carried out.
"""

from __future__ import annotations

import json
import re
from typing import Any, Literal

import msgspec

from samovar.errors import DeployRefused
from samovar.values import NAME_PATTERN, Struct, above, at_least, require

MAX_VALUE_BYTES = 64 * 1024
MIN_PER_S, MAX_PER_S = 1e-3 / 3600, 1e6
MAX_BURST = 1_000_000

_RATE = re.compile(r"^(\d+(?:\.\d+)?)/(s|m|h)\Z")
_UNIT_S = {"s": 1.0, "m": 60.0, "h": 3600.0}
_JSON_PATH = re.compile(r"^\$(\.[A-Za-z_][A-Za-z0-9_-]*|\[(\d+|\*)\])*\Z")
_HEDGE = re.compile(r"^(p[1-9]\d?|(?=.*[1-9])\d+(\.\d+)?ms)\Z")


def parse_rate(text: str) -> float:
    """Return the calls per second, > 0, that `text` such as "20/s", "300/m" or "1000/h" means.

    Raises: DeployRefused.
    """
    found = _RATE.match(text) if isinstance(text, str) else None
    rate = float(found[1]) / _UNIT_S[found[2]] if found else 0.0
    if rate <= 0:
        raise DeployRefused(
            f"{text!r} is not a rate: write calls per second, minute or hour, such as '20/s' or '300/m'"
        )
    is_kept = MIN_PER_S <= rate <= MAX_PER_S
    require(is_kept, f"{text!r} is out of range: a rate is between '0.001/h' and '{MAX_PER_S:.0f}/s'")
    return rate


def check_json_path(path: str) -> str:
    """Return `path` if it is a JSON path we know, such as `$.user.name`, `$.items[*].text`; raise DeployRefused."""
    if not isinstance(path, str) or not _JSON_PATH.match(path):
        raise DeployRefused(f"{path!r} is not a path into JSON: write such as '$.user.name' or '$.items[*].text'")
    return path


def _check_json_paths(paths: object, rule: str) -> None:
    """Raise DeployRefused unless `paths` is a list of JSON paths."""
    if not isinstance(paths, list | tuple):
        raise DeployRefused(rule)
    for path in paths:
        check_json_path(path)


class Cached(Struct, frozen=True, kw_only=True):
    """The last good answer to the same input, as a fallback.

    max_stale_s: how old it may be, seconds, > 0. key: JSON paths of the input that matter, empty = the whole body.
    shared: one key's answers may be served to other keys.
    """

    max_stale_s: float = 3600.0
    key: list[str] = msgspec.field(default_factory=list)
    shared: bool = False

    def __post_init__(self) -> None:
        require(above(self.max_stale_s, 0), "Cached: max_stale_s is a number of seconds > 0")
        _check_json_paths(self.key, "Cached: key is a list of JSON paths, such as ['$.text']")


class Cache(Struct, frozen=True, kw_only=True):
    """Fresh answers are reused: the same input within `ttl_s` seconds (> 0) is not computed again.

    key, shared: as in Cached. Identical calls in flight are computed once.
    """

    ttl_s: float
    key: list[str] = msgspec.field(default_factory=list)
    shared: bool = False

    def __post_init__(self) -> None:
        require(above(self.ttl_s, 0), "Cache: ttl_s is a number of seconds > 0")
        _check_json_paths(self.key, "Cache: key is a list of JSON paths, such as ['$.text']")


class Fallback(Struct, frozen=True, kw_only=True):
    """What to answer with when the version is broken, sheds or fails, tried in this order.

    cached: the last good answer. version: "previous" (the version that had the traffic before this one) or a number.
    function: another function, called with the same input, whoever the caller is. value: a fixed JSON answer of at most
    MAX_VALUE_BYTES (None = no such).
    """

    cached: Cached | None = None
    version: Literal["previous"] | int | None = None
    function: str | None = None
    value: Any = None

    def __post_init__(self) -> None:
        given = (self.cached, self.version, self.function, self.value)
        require(any(item is not None for item in given), "Fallback: give cached, version, function or value")
        require(isinstance(self.cached, Cached | None), "Fallback: cached takes sv.Cached(…)")
        if (name := self.function) is not None:
            is_name = isinstance(name, str) and bool(NAME_PATTERN.match(name))
            require(is_name, f"Fallback: {name!r} cannot be a function's name")
        is_version = self.version in (None, "previous") or at_least(self.version, 1)
        require(is_version, 'Fallback: version is "previous", or the number of a version, from 1 on')
        require(_num_json_bytes(self.value) <= MAX_VALUE_BYTES, f"Fallback: value has at most {MAX_VALUE_BYTES} bytes")


def _num_json_bytes(value: Any) -> int:
    """Return the size of `value` as JSON. Raises: DeployRefused if it is none."""
    try:
        return len(json.dumps(value, allow_nan=False))
    except (TypeError, ValueError, RecursionError) as error:
        raise DeployRefused(f"Fallback: value must be JSON: {error}") from None


class Breaker(Struct, frozen=True, kw_only=True):
    """When a version's circuit opens, and for how long.

    error_rate: share of failed calls within the window that opens it, within (0, 1]. slow_call_s: a call longer than
    this is slow, None = none is. slow_rate: share of slow calls that opens it. window_s, window_calls: how far back is
    looked, whichever is shorter. min_calls: fewer never open it. open_s: first time open; it doubles up to max_open_s.
    probes: calls let through to find out whether it works again.
    """

    error_rate: float = 0.5
    slow_call_s: float | None = None
    slow_rate: float = 0.8
    window_s: float = 10.0
    window_calls: int = 200
    min_calls: int = 20
    open_s: float = 5.0
    max_open_s: float = 60.0
    probes: int = 3

    def __post_init__(self) -> None:
        for share in (self.error_rate, self.slow_rate):
            require(above(share, 0) and share <= 1, "Breaker: error_rate and slow_rate are numbers within (0, 1]")
        require(self.slow_call_s is None or above(self.slow_call_s, 0), "Breaker: slow_call_s is a number > 0")
        require(above(self.window_s, 0), "Breaker: window_s is a number > 0")
        is_window = at_least(self.min_calls, 1) and at_least(self.window_calls, self.min_calls)
        require(is_window, "Breaker: window_calls >= min_calls >= 1")
        require(above(self.open_s, 0) and at_least(self.max_open_s, self.open_s), "Breaker: 0 < open_s <= max_open_s")
        require(at_least(self.probes, 1), "Breaker: probes >= 1")


class Log(Struct, frozen=True, kw_only=True):
    """What the request log keeps of each call beside its times and ids.

    payload: "full" (input and answer), "hash" (their SHA-256), "none". sample: share of calls whose payload is kept,
    within [0, 1]. max_bytes: longest input or answer kept, >= 0; longer ones are cut and marked. redact: JSON paths
    whose values are replaced before anything leaves the process.
    """

    payload: Literal["full", "hash", "none"] = "none"
    sample: float = 1.0
    max_bytes: int = 16_384
    redact: list[str] = msgspec.field(default_factory=list)

    def __post_init__(self) -> None:
        require(at_least(self.sample, 0) and self.sample <= 1, "Log: sample is a number within [0, 1]")
        require(at_least(self.max_bytes, 0), "Log: max_bytes >= 0")
        _check_json_paths(self.redact, "Log: redact is a list of JSON paths, such as ['$.user.email']")


def check_hedge(text: str) -> str:
    """Return `text` if it says when to hedge: a percentile such as "p95", or "50ms"; raise DeployRefused."""
    if not isinstance(text, str) or not _HEDGE.match(text):
        raise DeployRefused(f"hedge_after={text!r}: write a percentile such as 'p95', or a time such as '50ms'")
    return text


class Jobs(Struct, frozen=True, kw_only=True):
    """How queued jobs of a version are run.

    retries: further attempts after the handler failed, >= 0; backoff_s: the first one waits up to this long, each
    further up to twice as long, max_backoff_s at most (full jitter). retry_on: names of exception classes worth another
    attempt, empty = any; give_up_on: those that are not, which wins. timeout_s: of one attempt, > 0; deadline_s: of
    all of them, None = none. max_crashes: instances a job may take down before it is quarantined, >= 1.
    max_running, max_running_per_key: jobs that may run at a time, None = as slots allow. max_instances: up to how many
    instances a backlog of jobs scales this version, None = half of its max_instances, rounded up. low_scales: jobs of
    low priority count in the demand. result_ttl_s: how long an ended job is kept, > 0.
    """

    retries: int = 0
    backoff_s: float = 1.0
    max_backoff_s: float = 300.0
    retry_on: list[str] = msgspec.field(default_factory=list)
    give_up_on: list[str] = msgspec.field(default_factory=list)
    timeout_s: float = 600.0
    deadline_s: float | None = None
    max_crashes: int = 3
    max_running: int | None = None
    max_running_per_key: int | None = None
    max_instances: int | None = None
    low_scales: bool = True
    result_ttl_s: float = 86400.0

    def __post_init__(self) -> None:
        require(at_least(self.retries, 0), "Jobs: retries >= 0")
        is_backoff = at_least(self.backoff_s, 0) and at_least(self.max_backoff_s, self.backoff_s)
        require(is_backoff, "Jobs: 0 <= backoff_s <= max_backoff_s, in seconds")
        require(above(self.timeout_s, 0), "Jobs: timeout_s is a number of seconds > 0")
        require(self.deadline_s is None or above(self.deadline_s, 0), "Jobs: deadline_s is a number of seconds > 0")
        require(at_least(self.max_crashes, 1), "Jobs: max_crashes >= 1")
        for most in (self.max_running, self.max_running_per_key, self.max_instances):
            is_cap = most is None or at_least(most, 1)
            require(is_cap, "Jobs: max_running, max_running_per_key and max_instances are >= 1, or None")
        require(above(self.result_ttl_s, 0), "Jobs: result_ttl_s is a number of seconds > 0")
