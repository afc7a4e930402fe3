"""Small files made one, and old ones deleted: how `layout`'s decisions are carried out on object storage.

Safe whoever else does the same at the same time, and killed at any point: the conditional put of `merged.json` decides
(see `layout`). A lease only spares two keepers the same work. This module does not know when it is run.
"""

from __future__ import annotations

import contextlib
import io
import logging
import uuid
from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import pyarrow.parquet as pq

from samovar.errors import Conflict, NotFound
from samovar_storage.objects import ObjectStore
from samovar_storage.records import dumps, loads
from samovar_storage.requestlog import layout, tables
from samovar_storage.requestlog.layout import File, Merges, Partition

log = logging.getLogger(__name__)

MAX_MERGED_BYTES = 32 << 20


@dataclass(frozen=True, slots=True)
class Commit:
    """`merged.json` of a partition as it was read. etag: None when there is none."""

    merges: Merges
    etag: str | None


def partitions(store: ObjectStore, prefix: str = layout.ROOT) -> dict[Partition, list[File]]:
    """Return every partition under a prefix with all its files."""
    found: dict[Partition, list[File]] = defaultdict(list)
    for item in store.list(prefix):
        parsed = layout.parse_key(item.key)
        if parsed is not None:
            found[parsed[0]].append(File(parsed[1], item.size_bytes))
    return dict(found)


def read_commit(store: ObjectStore, partition: Partition, files: Iterable[File]) -> Commit:
    """Return which of a partition's files were merged. files: as listed; without `merged.json` nothing is asked."""
    if not any(file.name == layout.MERGES for file in files):
        return Commit(Merges(), None)
    try:
        data, etag = store.get(partition.prefix + layout.MERGES)
    except NotFound:
        return Commit(Merges(), None)
    return Commit(loads(data, Merges), etag)


def merge(store: ObjectStore, partition: Partition, now_s: float, max_bytes: int = MAX_MERGED_BYTES) -> int:
    """Make a partition's small files one if it is worth it; return how many did. Every record goes on counting once.

    What an earlier merge left behind is deleted. Raises: StoreUnavailable and its kin.
    """
    files = [*partitions(store, partition.prefix).get(partition, ())]
    commit = read_commit(store, partition, files)
    try:
        commit = _clear(store, partition, files, commit)
        chosen = layout.to_merge(layout.counting(files, commit.merges), partition.hour_s, now_s, max_bytes)
        if not chosen:
            return 0
        made = _make(store, partition, chosen)
        try:
            _put(store, partition, layout.after_merge(commit.merges, made, (f.name for f in chosen)), commit.etag)
        except Conflict:
            store.delete(partition.prefix + made)
            raise
    except (Conflict, NotFound):
        return 0  # somebody else merges or deletes here: their turn
    for file in chosen:
        store.delete(partition.prefix + file.name)
    return len(chosen)


def _clear(store: ObjectStore, partition: Partition, files: Iterable[File], commit: Commit) -> Commit:
    """Delete what does not count. A merged file of a merge that was not finished is first disowned by a commit, so
    that whoever still works on it cannot commit it any more."""
    names = layout.leftovers(files, commit.merges)
    unfinished = [name for name in names if name not in commit.merges.replaced]
    if unfinished:
        merges = Merges(files=commit.merges.files, replaced=[*commit.merges.replaced, *unfinished])
        commit = Commit(merges, _put(store, partition, merges, commit.etag))
    for name in names:
        store.delete(partition.prefix + name)
    return commit


def _make(store: ObjectStore, partition: Partition, files: Iterable[File]) -> str:
    """Write one file with the records of all, a row group each, and return its name."""
    sink = io.BytesIO()
    with pq.ParquetWriter(sink, tables.SCHEMA, compression="zstd") as writer:
        for file in files:
            data, _ = store.get(partition.prefix + file.name)
            writer.write_table(tables.conformed(tables.read(data)))
    name = f"{layout.MERGED_PREFIX}{uuid.uuid4().hex}.parquet"
    store.put(partition.prefix + name, sink.getvalue())
    return name


def _put(store: ObjectStore, partition: Partition, merges: Merges, etag: str | None) -> str:
    return store.put(partition.prefix + layout.MERGES, dumps(merges), if_absent=etag is None, if_match=etag)


def merge_all(store: ObjectStore, now_s: float) -> int:
    """Merge wherever there is more than one Parquet file and it is worth it; return how many became fewer."""
    return sum(
        merge(store, partition, now_s)
        for partition, files in partitions(store).items()
        if sum(file.name.endswith(".parquet") for file in files) > 1
    )


def expire(store: ObjectStore, now_s: float, max_age_s: float, max_bytes: int) -> int:
    """Delete what `layout.to_delete` says; return how many partitions went."""
    listed = partitions(store)
    sizes = {partition: sum(file.size_bytes for file in files) for partition, files in listed.items()}
    doomed = layout.to_delete(sizes, now_s, max_age_s, max_bytes)
    for partition in doomed:
        # merged.json last: without it files that were merged would count again
        for file in sorted(listed[partition], key=lambda file: file.name == layout.MERGES):
            with contextlib.suppress(NotFound):
                store.delete(partition.prefix + file.name)
    return len(doomed)
