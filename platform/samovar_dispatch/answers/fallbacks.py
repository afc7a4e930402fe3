"""What a version says about answers that are not its own, ready for the path: when they are used, in which order, and
how they are marked.

| what became of the call                                              | the chain is walked
|----------------------------------------------------------------------|--------------------------------------------
| an answer, the first item of a stream, the caller left               | no
| 4xx: wrong input, unknown function, too large, rate limit            | no: another version would be no better
| 5xx: raised, lost, refused, breaker open, no boot, deadline          | yes
| this gateway ends now                                                | no: nothing new begins here, others serve

Where a failure would be the same for everybody who asks the same (`is_shared`), those who wait for one call get it
too; else the next of them tries. This module does not know calls, clocks or stores.
"""

from __future__ import annotations

from typing import Literal

import msgspec

from samovar.errors import (
    DeadlineExceeded,
    Draining,
    FunctionError,
    LoadFailed,
    RequestError,
    SamovarError,
    Unavailable,
)
from samovar.policies import Cache, Cached
from samovar.spec import Manifest
from samovar_dispatch.answers.answer_key import Path, parse_path

Link = Literal["cached", "version", "function", "value"]
Header = tuple[bytes, bytes]

AT_ONCE = ("cached", "value")  # links that need no instance
RESERVE_S, RESERVE_SHARE = 0.06, 0.1
_STREAMING = ("generator", "async_generator")


class Scope(msgspec.Struct, frozen=True):
    """Whose answers may be served for each other. prefix: function, and whatever else sets them apart. shared: also
    between API keys. lifetime_s: how long an answer is of use."""

    function: str
    prefix: bytes
    paths: tuple[Path, ...]
    shared: bool
    lifetime_s: float


class Recipe(msgspec.Struct, frozen=True):
    """A version's wishes. fresh: reuse of answers younger than its lifetime; stale: those that stand in for a failure.

    links: the fallback chain in order. function: of the link "function". value: JSON, of the link "value".
    """

    fresh: Scope | None
    stale: Scope | None
    links: tuple[Link, ...]
    function: str | None = None
    value: bytes = b""


def recipe_of(manifest: Manifest) -> Recipe | None:
    """Return what a version wishes for; None, as for most, when nothing."""
    fallback, streams = manifest.fallback, manifest.handler in _STREAMING
    fresh = _scope(manifest, manifest.cache, f"fresh@{manifest.version}") if manifest.cache and not streams else None
    if fallback is None:
        return Recipe(fresh, None, ()) if fresh is not None else None
    cached = fallback.cached if not streams else None
    links: dict[Link, bool] = {
        "cached": cached is not None,
        "version": fallback.version is not None,
        "function": fallback.function is not None,
        "value": fallback.value is not None,
    }
    return Recipe(
        fresh,
        _scope(manifest, cached, "stale") if cached is not None else None,
        tuple(link for link, wanted in links.items() if wanted),
        fallback.function,
        msgspec.json.encode(fallback.value),
    )


def _scope(manifest: Manifest, policy: Cached | Cache, kind: str) -> Scope:
    """A fresh answer is of one version; a stale one may come from whichever version of the function answered last."""
    prefix = msgspec.json.encode([kind, manifest.name, sorted(policy.key)])
    lifetime_s = policy.ttl_s if isinstance(policy, Cache) else policy.max_stale_s
    return Scope(manifest.name, prefix, tuple(map(parse_path, sorted(policy.key))), policy.shared, lifetime_s)


def falls_back(error: SamovarError) -> bool:
    """Return whether another answer may stand in for this error."""
    return error.status >= 500 and not isinstance(error, Draining)


def is_shared(error: SamovarError, scope: Scope) -> bool:
    """Return whether everybody whose input is the same in this scope would get this error.

    Not what was this caller's own: a deadline, a refusal, or input that differs beside the declared key.
    """
    if isinstance(error, (Unavailable, DeadlineExceeded)):
        return False
    return error.status >= 500 or (isinstance(error, RequestError) and not scope.paths)


def reserve_s(links: tuple[Link, ...], remaining_s: float) -> float:
    """Return how long before its deadline an attempt should end, seconds, so that one of the `links` after it can
    answer in time: nothing when none of them answers at once."""
    return min(RESERVE_S, remaining_s * RESERVE_SHARE) if any(link in AT_ONCE for link in links) else 0.0


# ---- headers (Cache-Status: RFC 9211) --------------------------------------------------------------------------


def fresh_headers(version: str, age_s: float, ttl_s: float) -> tuple[Header, ...]:
    """Return what an answer from the fresh cache says beside its body."""
    status = b"samovar; hit; ttl=%d" % max(0, ttl_s - age_s)
    return ((b"cache-status", status), _age(age_s), (b"samovar-version", version.encode()))


def collapsed_headers(version: str) -> tuple[Header, ...]:
    """Return what the answer of somebody else's identical call says."""
    return ((b"cache-status", b"samovar; fwd=miss; collapsed"), _age(0), (b"samovar-version", version.encode()))


def stale_headers(version: str, age_s: float, error: SamovarError) -> tuple[Header, ...]:
    """Return what a kept answer says that stands in for `error`: a hit if no instance saw the call, else what came."""
    how = b"fwd=stale" if _was_forwarded(error) else b"hit; ttl=%d" % -max(0, age_s)
    if isinstance(error, FunctionError) and how == b"fwd=stale":
        how += b"; fwd-status=%d" % error.status
    return (
        (b"cache-status", b"samovar; %s; detail=%s" % (how, error.code.encode())),
        _age(age_s),
        (b"samovar-fallback", b"cached"),
        (b"samovar-version", version.encode()),
    )


def link_headers(link: Link, function: str, label: bytes) -> tuple[Header, ...]:
    """Return what an answer says that another version (its receipt names it), function or the value stands in for."""
    found: tuple[Header, ...] = ((b"samovar-fallback", link.encode()),)
    if link == "function":
        found += ((b"samovar-function", function.encode()),)
    if link == "value":
        found += ((b"samovar-version", label),)
    return found


def _was_forwarded(error: SamovarError) -> bool:
    if isinstance(error, DeadlineExceeded):
        return error.extra.get("phase") == "run"
    return not isinstance(error, (Unavailable, LoadFailed))


def _age(age_s: float) -> Header:
    return (b"age", b"%d" % max(0, age_s))
