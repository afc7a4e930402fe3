"""What is found out about versions on trial: the verdict on a canary so far, and how a mirror's answers compare.

This module does not know who judges or compares.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec
import redis.asyncio as redis_async

from samovar.values import Struct
from samovar_storage import keys
from samovar_storage.failures import translating
from samovar_storage.records import dumps, loads

PATH_PREFIX = "path:"


class TrialReport(Struct, frozen=True, kw_only=True):
    """The verdict on a canary at `at_s` (unix).

    action: wait, promote or rollback; rule, reason: why; inputs: the numbers it rests on.
    """

    ref: str
    at_s: float
    action: str
    rule: str
    reason: str
    inputs: dict[str, float] = msgspec.field(default_factory=dict)


class MirrorReport(Struct, frozen=True, kw_only=True):
    """Copies of calls sent to a version. compared: those with two answers, either equal or different; failed: the copy
    had no answer where the call had one; skipped: not sent or not compared. paths: JSON path → differences there."""

    compared: int = 0
    equal: int = 0
    different: int = 0
    failed: int = 0
    skipped: int = 0
    paths: dict[str, int] = msgspec.field(default_factory=dict)


async def put_trial(redis: redis_async.Redis, name: str, report: TrialReport) -> None:
    """The report is the function's newest, for `keys.TRIAL_LIFETIME_S`."""
    with translating("a canary's report"):
        await redis.set(keys.trial(name), dumps(report), ex=keys.TRIAL_LIFETIME_S)


async def trial(redis: redis_async.Redis, name: str) -> TrialReport | None:
    """Return the newest report on the function's canary, while there is one."""
    with translating("a canary's report"):
        data = await redis.get(keys.trial(name))
    return loads(data, TrialReport) if data is not None else None


async def add_mirrored(redis: redis_async.Redis, ref: str, counts: Mapping[str, int]) -> None:
    """The counts (fields of MirrorReport, and PATH_PREFIX + path) are added to the version's, kept for a day."""
    with translating("a mirror's report"):
        async with redis.pipeline(transaction=False) as pipe:
            for field, count in counts.items():
                pipe.hincrby(keys.mirror(ref), field, count)
            pipe.expire(keys.mirror(ref), keys.MIRROR_LIFETIME_S)
            await pipe.execute()


async def mirrored(redis: redis_async.Redis, ref: str) -> MirrorReport | None:
    """Return how the version's answers compare, over all gateways; None if none was compared lately."""
    with translating("a mirror's report"):
        rows: dict[Any, Any] = await redis.hgetall(keys.mirror(ref))
    counts = {_text(field): int(value) for field, value in rows.items()}
    if not counts:
        return None
    paths = {f.removeprefix(PATH_PREFIX): n for f, n in counts.items() if f.startswith(PATH_PREFIX)}
    plain = {f: n for f, n in counts.items() if f in MirrorReport.__struct_fields__}
    return MirrorReport(**plain, paths=dict(sorted(paths.items(), key=lambda path: -path[1])))


def _text(value: bytes | str) -> str:
    return value.decode() if isinstance(value, bytes) else value
