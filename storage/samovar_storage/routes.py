"""What can be done to a route, as pure changes: a Route in, a Route out, or a clear error.

| change     | shares                  | canary        | mirror   | rejected            | pinned
|------------|-------------------------|---------------|----------|---------------------|--------
| deploy     | all to the new version  | none          | kept     | –                   | keeps shares as they are
| canary     | –                       | as asked      | –        | –                   | refused
| promote    | all to the canary       | none          | –        | –                   | refused
| rollback   | – with a canary, else   | none          | none if  | what it leaves      | off, if left
|            | all to what was before  |               | it left  |                     |
| pin        | all to the version      | none          | –        | –                   | the version
| unpin      | –                       | –             | –        | –                   | off
| mirror     | –                       | –             | as asked | –                   | –
| undo       | as before the last change, which is itself a change: undoing an undo does it again

A mirror ends once its version has all stable traffic: there is nothing left to compare.
A change that would have a rejected version get calls is refused; a deploy makes a new number, which is not rejected.
Undoing a rollback takes the rejection back with it. This module does not know Redis, object storage or readiness: who
changes a route says which versions are `ready`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection

import msgspec

from samovar.errors import Conflict, FunctionNotFound, InvalidInput, VersionRejected
from samovar.spec import Canary, Mirror, Route, RouteChange

MAX_HISTORY = 20
STICKY_HEADER = "header:"
HOLD_S = 120.0  # a successor is given this long to come up as wide as what it follows; then one instance will do


class Author(msgspec.Struct, frozen=True):
    """Who changes a route, when (unix seconds), and what they know: the versions with ready instances."""

    by: str
    at_s: float
    ready: Collection[int] = ()
    reason: str = ""


Command = Callable[[Route, Author], Route]


class Trial(msgspec.Struct, frozen=True, kw_only=True):
    """How a version is tried out. percent: 1..99 of calls. auto, bake_s: as in `Canary`; sticky: as in `Route`.

    None keeps what there is: of auto and bake_s if the version is on trial already, else `Canary`'s defaults hold.
    """

    percent: int
    auto: bool | None = None
    bake_s: float | None = None
    sticky: str | None = None


def deployed(
    old: Route | None, name: str, version: int, author: Author, trial: Trial | None = None, mirror: int = 0
) -> Route:
    """Return the route once `version` exists: it has all traffic, or is on trial, or gets copies of `mirror` percent.

    A function's first version has all traffic whatever was asked. A newer version that came first keeps what it has; a
    pinned route keeps its shares.
    """
    if old is None or not old.shares:
        base = Route(name=name, shares={}, latest=version, scaling=old.scaling if old is not None else None)
        return _changed(base, "deploy", author, f"version {version}", shares=_all(version))
    if version < old.latest:
        return old
    newest = msgspec.structs.replace(old, latest=version)
    if trial is not None:
        return canaried(newest, version, trial, author)
    if mirror:
        return mirrored(newest, version, mirror, author)
    if old.pinned is not None:
        return _changed(newest, "deploy", author, f"version {version}, without traffic: pinned to {old.pinned}")
    return _changed(newest, "deploy", author, f"version {version}", shares=_all(version), canary=None)


def canaried(old: Route, version: int | None, trial: Trial, author: Author) -> Route:
    """Return the route on which `version` (None: the canary there is, else the latest) gets its percent of calls.

    Raises: InvalidInput, VersionRejected, Conflict (pinned; it has all traffic already).
    """
    _refuse_pinned(old)
    version = version or (old.canary.version if old.canary else old.latest)
    if not 1 <= trial.percent <= 99:
        raise InvalidInput("a canary's percent is 1 to 99", path="$.percent")
    if trial.bake_s is not None and not trial.bake_s > 0:
        raise InvalidInput("bake_s must be above 0", path="$.bake_s")
    _refuse_rejected(old, version)
    if old.shares.get(str(version)):
        raise Conflict(f"version {version} of {old.name} has stable traffic already: nothing to try out")
    kept = old.canary if old.canary and old.canary.version == version else Canary(version=version, percent=0)
    canary = Canary(
        version=version,
        percent=trial.percent,
        auto=kept.auto if trial.auto is None else trial.auto,
        bake_s=trial.bake_s or kept.bake_s,
        started_at_s=author.at_s,
    )
    sticky = old.sticky if trial.sticky is None else check_sticky(trial.sticky)
    what = f"version {version} at {trial.percent} %"
    return _changed(old, "canary", author, what, canary=canary, sticky=sticky)


def promoted(old: Route, author: Author, expected: Canary | None = None) -> Route:
    """Return the route on which the canary has all traffic.

    expected: the canary that was judged; another one there now is a Conflict. Raises: Conflict (no canary, pinned).
    """
    _refuse_pinned(old)
    canary = _canary(old, expected)
    reason = f"version {canary.version} has all traffic"
    return _changed(old, "promote", author, reason, shares=_all(canary.version), canary=None)


def rolled_back(old: Route, author: Author, to: int | None = None, expected: Canary | None = None) -> Route:
    """Return the route without what is on trial, or else without what has the traffic; that is rejected from now on.

    to: the version that gets all traffic; None: with a canary the stable ones keep it, else those before them.
    expected: as in `promoted`. Raises: Conflict (nothing to go back to), VersionRejected.
    """
    if expected is not None:
        _canary(old, expected)
    if to is None and old.canary is not None:
        return _without(old, {old.canary.version}, old.shares, author)
    shares = _all(to) if to is not None else _before(old)
    for version in shares:
        _refuse_rejected(old, int(version))
    left = {int(version) for version in old.shares} | ({old.canary.version} if old.canary else set())
    left -= {int(version) for version in shares}
    if not left:
        raise Conflict(f"{old.name} is at version {to} already: nothing to roll back")
    return _without(old, left, shares, author)


def pinned(old: Route, version: int | None, author: Author) -> Route:
    """Return the route on which `version` (None: the one with the most traffic) has all of it, and deploys move none.

    Raises: VersionRejected, Conflict (it is pinned there already).
    """
    version = version or int(max(old.shares, key=lambda number: (old.shares[number], int(number))))
    _refuse_rejected(old, version)
    if old.pinned == version:
        raise Conflict(f"{old.name} is pinned to version {version} already")
    return _changed(old, "pin", author, f"to version {version}", shares=_all(version), canary=None, pinned=version)


def unpinned(old: Route, author: Author) -> Route:
    """Return the route on which deploys move traffic again. Raises Conflict if it was not pinned."""
    if old.pinned is None:
        raise Conflict(f"{old.name} is not pinned")
    return _changed(old, "unpin", author, f"from version {old.pinned}", pinned=None)


def mirrored(old: Route, version: int | None, percent: int, author: Author) -> Route:
    """Return the route on which `version` (None: the latest) gets copies of `percent` (0: of none) of the calls.

    Raises: InvalidInput, VersionRejected, Conflict (no mirror to end; the version has all traffic itself).
    """
    if not 0 <= percent <= 100:
        raise InvalidInput("a mirror's percent is 0 to 100", path="$.percent")
    if percent == 0:
        if old.mirror is None:
            raise Conflict(f"{old.name} mirrors no calls")
        return _changed(old, "mirror", author, "off", mirror=None)
    version = version or (old.mirror.version if old.mirror else old.latest)
    _refuse_rejected(old, version)
    if old.shares == _all(version):
        raise Conflict(f"version {version} of {old.name} has all stable traffic: there is nothing to compare it with")
    what = f"{percent} % to version {version}"
    return _changed(old, "mirror", author, what, mirror=Mirror(version=version, percent=percent))


def undone(old: Route, author: Author) -> Route:
    """Return the route as it was before its last change. Raises Conflict if there is none to undo."""
    last = next(iter(old.history), None)
    if last is None or not last.shares:
        raise Conflict(f"there is no change of {old.name} to undo")
    canary = last.canary and msgspec.structs.replace(last.canary, started_at_s=author.at_s)
    return _changed(
        old,
        "undo",
        author,
        f"of the last change ({last.what})",
        shares=last.shares,
        canary=canary,
        mirror=last.mirror,
        pinned=last.pinned,
        rejected=last.rejected,
        sticky=last.sticky,
    )


def check(route: Route) -> None:
    """Raise InvalidInput or VersionRejected unless the route keeps every rule; one without shares is a tombstone."""
    if not route.shares:
        return
    if sum(route.shares.values()) != 100 or min(route.shares.values()) < 0:
        raise InvalidInput(f"the shares of {route.name} must be 0 or more and sum to 100", path="$.shares")
    for version in targets(route):
        _refuse_rejected(route, version)


def targets(route: Route) -> set[int]:
    """Return the versions a route means to send calls or copies to: all but the previous ones. Raises InvalidInput."""
    odd = next((version for version in route.shares if not version.isdecimal()), None)
    if odd is not None:
        raise InvalidInput(f"{route.name} has no version {odd}", path="$.shares")
    trials = {trial.version for trial in (route.canary, route.mirror) if trial is not None}
    return trials | {int(version) for version in route.shares}


def width(before: int, share: float, most: int) -> int:
    """Return how many instances of a version with `share` within (0, 1] replace `before` ones, 1 to `most`."""
    return max(1, min(most, math.ceil(before * share - 1e-9)))


def check_sticky(text: str) -> str:
    """Return `text` if it says how callers stick to a version: "", "key" or "header:<name>"; raise InvalidInput."""
    name = text.removeprefix(STICKY_HEADER)
    is_header = text.startswith(STICKY_HEADER) and name.isascii() and name.replace("-", "").isalnum()
    if text not in ("", "key") and not is_header:
        raise InvalidInput("sticky is empty, 'key', or 'header:' and a header's name", path="$.sticky")
    return text.lower()


def _all(version: int) -> dict[str, int]:
    return {str(version): 100}


def _before(old: Route) -> dict[str, int]:
    """Return the shares that had the traffic before, without what was rejected since."""
    found = {version: share for version, share in old.previous.items() if int(version) not in old.rejected}
    if not found or found.keys() == old.shares.keys():
        raise Conflict(f"{old.name} has no earlier version to roll back to: name one with --to")
    return found if sum(found.values()) == 100 else _all(max(map(int, found)))


def _canary(old: Route, expected: Canary | None) -> Canary:
    if old.canary is None:
        raise Conflict(f"{old.name} has no canary")
    if expected is not None and old.canary != expected:
        raise Conflict(f"the canary of {old.name} has changed meanwhile")
    return old.canary


def _without(old: Route, left: set[int], shares: dict[str, int], author: Author) -> Route:
    """Return the route with `shares`, the versions in `left` rejected and named nowhere."""
    what = f"version {', '.join(map(str, sorted(left)))} rejected"
    return _changed(
        old,
        "rollback",
        author,
        what,
        shares=shares,
        canary=None,
        mirror=None if old.mirror and old.mirror.version in left else old.mirror,
        pinned=None if old.pinned in left else old.pinned,
        rejected=sorted({*old.rejected, *left}),
    )


def _refuse_rejected(route: Route, version: int) -> None:
    if version in route.rejected:
        raise VersionRejected(f"version {version} of {route.name} was rolled back: deploy it anew", version=version)


def _refuse_pinned(route: Route) -> None:
    if route.pinned is not None:
        raise Conflict(f"{route.name} is pinned to version {route.pinned}: `samovar pin {route.name} --off` first")


def _changed(old: Route, what: str, author: Author, reason: str, **fields: object) -> Route:
    """Return `old` with `fields`, the change in its history, and what it moved away from in `previous`."""
    before = RouteChange(
        what=what,
        at_s=author.at_s,
        shares=old.shares,
        canary=old.canary,
        mirror=old.mirror,
        pinned=old.pinned,
        rejected=old.rejected,
        sticky=old.sticky,
        by=author.by,
        reason=f"{reason}: {author.reason}" if author.reason else reason,
    )
    new = msgspec.structs.replace(old, history=[before, *old.history][:MAX_HISTORY], **fields)
    if new.mirror is not None and new.shares == _all(new.mirror.version):
        new = msgspec.structs.replace(new, mirror=None)
    if new.shares != old.shares:
        # what is rejected by this very change still serves until its successor is ready
        serving = _serving(old, author)
        previous = serving if serving != new.shares else {}
        return msgspec.structs.replace(new, previous=previous, moved_at_s=author.at_s)
    return msgspec.structs.replace(new, previous={v: s for v, s in new.previous.items() if int(v) not in new.rejected})


def _serving(old: Route, author: Author) -> dict[str, int]:
    """Return the shares that serve: those of before if these have nobody ready yet and those have."""
    if not any(int(version) in author.ready for version in old.shares):
        if any(int(version) in author.ready for version in old.previous):
            return old.previous
    return old.shares


def existing(route: Route | None, name: str) -> Route:
    """Return `route` if its function exists. Raises FunctionNotFound."""
    if route is None or not route.shares:
        raise FunctionNotFound(f"no function named {name!r}")
    return route
