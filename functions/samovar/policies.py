"""How a version wants its traffic handled: the value objects beside `spec.Limits` that authors write.

All are frozen, equal by value, and stored in the manifest. This module does not know how any of it is carried out.
"""

from __future__ import annotations

import json
import re
from typing import Any, Literal

import msgspec

from samovar.errors import DeployRefused
from samovar.values import NAME_PATTERN, Struct, require

MAX_VALUE_BYTES = 64 * 1024

_RATE = re.compile(r"^(\d+(?:\.\d+)?)/(s|m|h)$")
_UNIT_S = {"s": 1.0, "m": 60.0, "h": 3600.0}
_JSON_PATH = re.compile(r"^\$(\.[A-Za-z_][A-Za-z0-9_-]*|\[(\d+|\*)\])*$")
_HEDGE = re.compile(r"^(p\d{1,2}|\d+(\.\d+)?ms)$")


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
    return rate


def check_json_path(path: str) -> str:
    """Return `path` if it is a JSON path we know, such as `$.user.name`, `$.items[*].text`; raise DeployRefused."""
    if not isinstance(path, str) or not _JSON_PATH.match(path):
        raise DeployRefused(f"{path!r} is not a path into JSON: write such as '$.user.name' or '$.items[*].text'")
    return path


class Cached(Struct, frozen=True, kw_only=True):
    """The last good answer to the same input, as a fallback.

    max_stale_s: how old it may be, seconds, > 0. key: JSON paths of the input that matter, empty = the whole body.
    shared: one key's answers may be served to other keys.
    """

    max_stale_s: float = 3600.0
    key: list[str] = msgspec.field(default_factory=list)
    shared: bool = False

    def __post_init__(self) -> None:
        require(self.max_stale_s > 0, "Cached: max_stale_s > 0")
        for path in self.key:
            check_json_path(path)


class Cache(Struct, frozen=True, kw_only=True):
    """Fresh answers are reused: the same input within `ttl_s` seconds (> 0) is not computed again.

    key, shared: as in Cached. Identical calls in flight are computed once.
    """

    ttl_s: float
    key: list[str] = msgspec.field(default_factory=list)
    shared: bool = False

    def __post_init__(self) -> None:
        require(self.ttl_s > 0, "Cache: ttl_s > 0")
        for path in self.key:
            check_json_path(path)


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
        if self.function is not None:
            require(bool(NAME_PATTERN.match(self.function)), f"Fallback: {self.function!r} cannot be a function's name")
        require(not isinstance(self.version, int) or self.version >= 1, "Fallback: versions are numbered from 1")
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
        require(0 < self.error_rate <= 1 and 0 < self.slow_rate <= 1, "Breaker: rates are within (0, 1]")
        require(self.slow_call_s is None or self.slow_call_s > 0, "Breaker: slow_call_s > 0")
        require(
            self.window_s > 0 and self.window_calls >= self.min_calls >= 1, "Breaker: window_calls >= min_calls >= 1"
        )
        require(0 < self.open_s <= self.max_open_s, "Breaker: 0 < open_s <= max_open_s")
        require(self.probes >= 1, "Breaker: probes >= 1")


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
        require(0 <= self.sample <= 1, "Log: sample is within [0, 1]")
        require(self.max_bytes >= 0, "Log: max_bytes >= 0")
        for path in self.redact:
            check_json_path(path)


def check_hedge(text: str) -> str:
    """Return `text` if it says when to hedge: a percentile such as "p95", or "50ms"; raise DeployRefused."""
    if not _HEDGE.match(text):
        raise DeployRefused(f"hedge_after={text!r}: write a percentile such as 'p95', or a time such as '50ms'")
    return text
