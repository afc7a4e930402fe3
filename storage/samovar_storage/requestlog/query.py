"""Reading the request log: the newest minutes from Redis, the rest from Parquet, no record twice.

Only the keeper's process imports this. Either store may be away: then what the other one knows is answered, and the
answer says what is missing. This module does not know HTTP or who asks.
"""

from __future__ import annotations

import datetime
import logging
from collections.abc import Iterator
from typing import Any

import pyarrow as pa
import pyarrow.compute as pc
import redis as redis_sync

from samovar.errors import NotFound, StoreUnavailable
from samovar_storage import traffic
from samovar_storage.objects import ObjectStore
from samovar_storage.requestlog import layout, live, tables
from samovar_storage.requestlog.layout import Partition
from samovar_storage.requestlog.merging import partitions, read_commit
from samovar_storage.requestlog.questions import MAX_RECORDS, Wanted
from samovar_storage.requestlog.rows import Frame
from samovar_storage.traffic import Tally

log = logging.getLogger(__name__)

MAX_ANSWER_BYTES = 16 << 20
REDIS, OBJECTS = "redis", "object storage"
_SUMMED = ["run", "seq", "at", "version", "status", "total_ms", "run_ms", "shadow", "fallback", "cached"]
_PERCENTILES = (0.5, 0.9, 0.95, 0.99)


class Sources:
    """Where one answer comes from. missing: stores that did not answer. floor_s: nothing older is wanted any more."""

    def __init__(self, store: ObjectStore, redis: redis_sync.Redis, wanted: Wanted) -> None:
        self.missing: list[str] = []
        self.floor_s = wanted.since_s
        self._store = store
        self._redis = redis
        self._wanted = wanted
        self._filter = _expression(wanted)

    def tables(self, columns: list[str] | None = None) -> Iterator[pa.Table]:
        """Yield the wanted records in tables: those of object storage, newest hour first, then what only Redis has."""
        newest = self._newest(columns)  # first: what is shipped meanwhile is then in both, not in neither
        seen: set[tuple[str, int]] = set()
        try:
            for table in self._stored(columns):
                seen |= _both(newest, table)
                yield table
        except StoreUnavailable as error:
            log.warning("%s", error.detail)
            self.missing.append(OBJECTS)
        yield _without(newest, seen)

    def _stored(self, columns: list[str] | None) -> Iterator[pa.Table]:
        for partition, name in files(self._store, self._wanted):
            if partition.hour_s + 3600 < self.floor_s:
                return
            try:
                data, _ = self._store.get(partition.prefix + name)
            except NotFound:
                continue  # merged or expired since it was listed
            yield self._wanted_of(tables.conformed(tables.read(data)), columns)

    def _newest(self, columns: list[str] | None) -> pa.Table:
        frames: list[Frame] = []
        try:
            frames = live.read_frames(self._redis, self._wanted.function, self._wanted.since_s)
        except StoreUnavailable as error:
            log.warning("%s", error.detail)
            self.missing.append(REDIS)
        made = [tables.table_of(*frame) for frame in frames if frame.rows]
        return self._wanted_of(pa.concat_tables(made) if made else tables.SCHEMA.empty_table(), columns)

    def _wanted_of(self, table: pa.Table, columns: list[str] | None) -> pa.Table:
        table = table.filter(self._filter)
        return table.select(columns) if columns else table


def files(store: ObjectStore, wanted: Wanted) -> Iterator[tuple[Partition, str]]:
    """Yield (partition, name) of every counting file that may hold wanted records, newest hour first."""
    first_s, last_s = layout.hours_between(wanted.since_s, wanted.until_s)
    listed = partitions(store, f"{layout.ROOT}function={wanted.function}/")
    for partition in sorted(listed, key=lambda p: p.hour_s, reverse=True):
        if first_s <= partition.hour_s <= last_s:
            merges = read_commit(store, partition, listed[partition]).merges
            for file in reversed(layout.counting(listed[partition], merges)):
                yield partition, file.name


def records(store: ObjectStore, redis: redis_sync.Redis, wanted: Wanted) -> dict[str, Any]:
    """Return `records`, the newest wanted ones, oldest first, and `missing`, the stores that did not answer."""
    sources = Sources(store, redis, wanted)
    limit = max(1, min(wanted.limit, MAX_RECORDS))
    kept = tables.SCHEMA.empty_table()
    for table in sources.tables():
        joined = pa.concat_tables([kept, table])
        kept = joined.sort_by([("at", "descending"), ("seq", "descending")]).slice(0, limit)
        if len(kept) == limit:
            sources.floor_s = kept["at"][limit - 1].as_py().timestamp()
    return {"records": _bounded([*map(_plain, kept.to_pylist())])[::-1], "missing": sources.missing}


def summary(store: ObjectStore, redis: redis_sync.Redis, wanted: Wanted) -> dict[str, Any]:
    """Return per version: calls by outcome, latency percentiles in ms of the answered ones; and `missing`.

    Percentiles are those of `traffic`'s histograms, at most traffic.PERCENTILE_ERROR off.
    """
    sources = Sources(store, redis, wanted)
    tallies: dict[int, list[Tally]] = {}
    for table in sources.tables(_SUMMED):
        for version, tally in _tallies(table).items():
            tallies.setdefault(version, []).append(tally)
    versions = [_described(version, traffic.merge(parts)) for version, parts in sorted(tallies.items())]
    return {"versions": versions, "missing": sources.missing}


def _expression(wanted: Wanted) -> Any:
    at = pc.field("at")
    wants = (at >= _instant(wanted.since_s)) & (at <= _instant(wanted.until_s))
    if wanted.status is not None:
        low, high = wanted.status
        wants &= (pc.field("status") >= low) & (pc.field("status") <= high)
    if wanted.slower_ms is not None:
        wants &= pc.field("total_ms") > wanted.slower_ms
    if wanted.version is not None:
        wants &= pc.field("version") == wanted.version
    return wants


def _instant(at_s: float) -> pa.Scalar:
    return pa.scalar(int(at_s * 1e6), pa.timestamp("us", tz="UTC"))


def _ids(table: pa.Table) -> list[tuple[str, int]]:
    return [*zip(table["run"].to_pylist(), table["seq"].to_pylist(), strict=True)]


def _both(newest: pa.Table, stored: pa.Table) -> set[tuple[str, int]]:
    """Return the identities that are in both tables; the larger one is narrowed before it is looked at in Python."""
    if not len(newest):
        return set()
    near = stored.filter(pc.is_in(stored["run"], pc.unique(newest["run"])))
    near = near.filter(pc.greater_equal(near["at"], pc.min(newest["at"])))
    return set(_ids(newest)) & set(_ids(near))


def _without(table: pa.Table, seen: set[tuple[str, int]]) -> pa.Table:
    return table.filter(pa.array([identity not in seen for identity in _ids(table)], pa.bool_()))


def _plain(record: dict[str, Any]) -> dict[str, Any]:
    """Return a record as JSON has it: no nulls, the time as unix seconds and as text."""
    at: datetime.datetime = record["at"]
    plain = {name: value for name, value in record.items() if value is not None}
    return plain | {"at": at.isoformat(timespec="milliseconds").replace("+00:00", "Z"), "at_s": at.timestamp()}


def _bounded(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the first rows whose payloads together fit an answer."""
    left = MAX_ANSWER_BYTES
    for index, row in enumerate(rows):
        left -= 1000 + len(row.get("payload", "")) + len(row.get("answer", ""))
        if left < 0:
            return rows[:index]
    return rows


def _tallies(table: pa.Table) -> dict[int, Tally]:
    """Return each version's tally, shadow copies left out. Grouped in columns: an hour may be millions of calls."""
    table = table.filter(pc.invert(table["shadow"]))
    table = table.append_column("bucket", _buckets(table["total_ms"])).append_column(
        "run_bucket", _buckets(table["run_ms"])
    )
    by = ["version", "status", "fallback", "cached", "bucket", "run_bucket"]
    parts: dict[int, list[Tally]] = {}
    for row in table.group_by(by).aggregate([([], "count_all")]).to_pylist():
        parts.setdefault(row["version"], []).append(_tally(row))
    return {version: traffic.merge(tallies) for version, tallies in parts.items()}


def _tally(row: dict[str, Any]) -> Tally:
    count = row["count_all"]
    if row["fallback"] or row["cached"]:
        return Tally(fallback=count) if row["fallback"] else Tally(cached=count)
    outcome = traffic.outcome_of(row["status"])
    if outcome != "ok":
        return Tally(**{outcome: count})
    return Tally(ok=count, total={row["bucket"]: count}, run={row["run_bucket"]: count})


def _buckets(ms: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return `traffic.bucket_of` of a whole column of milliseconds."""
    seconds = pc.max_element_wise(pc.divide(ms, 1e3), pa.scalar(traffic.LOWEST_S))
    buckets = pc.floor(pc.multiply(pc.log10(pc.divide(seconds, traffic.LOWEST_S)), traffic.BUCKETS_PER_DECADE))
    return pc.min_element_wise(buckets.cast(pa.int32()), pa.scalar(traffic.NUM_BUCKETS - 1, pa.int32()))


def _described(version: int, tally: Tally) -> dict[str, Any]:
    described: dict[str, Any] = {"version": version, "calls": tally.num_calls}
    described |= {name: getattr(tally, name) for name in traffic.OUTCOMES}
    for label, histogram in (("total", tally.total), ("run", tally.run)):
        for q in _PERCENTILES:
            time_s = traffic.percentile_s(histogram, q)
            described[f"{label}_p{round(q * 100)}_ms"] = None if time_s is None else round(1000 * time_s, 3)
    return described
