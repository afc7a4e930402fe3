"""Where the request log's files lie, which of them count, which to merge and which to delete. Pure.

    logs/function=<name>/date=<YYYY-MM-DD>/hour=<HH>/<run>-<number>.parquet    as a gateway wrote it
                                                    /merged-<id>.parquet       several of those in one
                                                    /merged.json               Merges: which merged files count

A folder of one function and hour is a *partition*. `merged.json` is changed by conditional put only, and that put is
the moment a merge happens: before it the merged file does not count, after it the files it was made of do not. Whatever
dies in between, every record counts exactly once. This module does not know Parquet, S3 or the clock.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

import msgspec

from samovar.values import Struct

ROOT = "logs/"
MERGES = "merged.json"
MERGED_PREFIX = "merged-"
SETTLED_S = 300.0  # an hour is over for good this long after its end: spools of living gateways have arrived
MAX_SMALL_FILES = 16
_KEY = re.compile(
    r"^logs/function=(?P<function>[^/]+)/date=(?P<date>\d{4}-\d\d-\d\d)/hour=(?P<hour>\d\d)/(?P<name>[^/]+)$"
)
_UNSAFE = re.compile(r"[^A-Za-z0-9_.-]")


class Merges(Struct, frozen=True, kw_only=True):
    """`merged.json`. files: merged files that count. replaced: files that do not any more, for ever."""

    files: list[str] = msgspec.field(default_factory=list)
    replaced: list[str] = msgspec.field(default_factory=list)


@dataclass(frozen=True, slots=True, order=True)
class Partition:
    """One function and hour. hour_s: its start, unix seconds."""

    function: str
    hour_s: int

    @property
    def prefix(self) -> str:
        """What the keys of its files start with."""
        start = datetime.datetime.fromtimestamp(self.hour_s, datetime.UTC)
        return f"{ROOT}function={self.function}/date={start:%Y-%m-%d}/hour={start:%H}/"


@dataclass(frozen=True, slots=True)
class File:
    """One object of a partition."""

    name: str
    size_bytes: int


def partition_of(function: str, at_s: float) -> Partition:
    """Return the partition of a record that arrived at `at_s`, unix seconds."""
    return Partition(function, int(at_s // 3600) * 3600)


def parse_key(key: str) -> tuple[Partition, str] | None:
    """Return the partition and file name of an object's key, or None if it is not of the request log."""
    found = _KEY.match(key)
    if found is None:
        return None
    start = datetime.datetime.fromisoformat(f"{found['date']}T{found['hour']}:00:00+00:00")
    return Partition(found["function"], int(start.timestamp())), found["name"]


def safe_name(text: str) -> str:
    """Return `text` as it may stand in a file name and an object's key."""
    return _UNSAFE.sub("_", text)[:100]


def counting(files: Iterable[File], merges: Merges) -> list[File]:
    """Return the Parquet files whose records count, in order of name."""
    replaced, merged = set(merges.replaced), set(merges.files)
    return sorted(
        (
            file
            for file in files
            if file.name.endswith(".parquet")
            and file.name not in replaced
            and (file.name in merged or not file.name.startswith(MERGED_PREFIX))
        ),
        key=lambda file: file.name,
    )


def leftovers(files: Iterable[File], merges: Merges) -> list[str]:
    """Return names of files that count no more, or never did, and may be deleted by whoever merges."""
    counted = {file.name for file in counting(files, merges)}
    return sorted(file.name for file in files if file.name.endswith(".parquet") and file.name not in counted)


def to_merge(files: Sequence[File], hour_s: int, now_s: float, max_bytes: int) -> list[File]:
    """Return the counting files of a partition to be made one, at least two, or nothing.

    Once the hour is settled every file smaller than half of `max_bytes` is merged; while it runs, only when there are
    MAX_SMALL_FILES of them. One merge holds at most `max_bytes`, in bytes as stored.
    """
    small = sorted((f for f in files if f.size_bytes < max_bytes / 2), key=lambda f: (f.size_bytes, f.name))
    is_settled = now_s >= hour_s + 3600 + SETTLED_S
    if len(small) < (2 if is_settled else MAX_SMALL_FILES):
        return []
    chosen, total = [], 0
    for file in small:
        if total + file.size_bytes > max_bytes:
            break
        chosen.append(file)
        total += file.size_bytes
    return chosen if len(chosen) >= 2 else []


def after_merge(merges: Merges, made: str, of: Iterable[str]) -> Merges:
    """Return `merges` once the files `of` have become `made`."""
    gone = set(of)
    return Merges(
        files=[name for name in merges.files if name not in gone] + [made],
        replaced=[*merges.replaced, *sorted(gone)],
    )


def to_delete(sizes: Mapping[Partition, int], now_s: float, max_age_s: float, max_bytes: int) -> list[Partition]:
    """Return the partitions to delete, oldest first: those older than `max_age_s`, then what exceeds `max_bytes`.

    The running hour is never deleted. sizes: bytes of every partition.
    """
    total = sum(sizes.values())
    doomed = []
    for partition in sorted(sizes, key=lambda p: (p.hour_s, p.function)):
        ended_s = partition.hour_s + 3600
        is_old = ended_s < now_s - max_age_s
        if ended_s > now_s or not (is_old or total > max_bytes):
            continue
        doomed.append(partition)
        total -= sizes[partition]
    return doomed


def hours_between(since_s: float, until_s: float) -> tuple[int, int]:
    """Return the starts of the first and last hour that may hold records within [since_s, until_s]."""
    return int(since_s // 3600) * 3600, int(until_s // 3600) * 3600
