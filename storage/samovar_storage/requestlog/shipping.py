"""From the spool to object storage: each ready segment becomes one Parquet file per function and hour it touches.

A file's key comes from its segment, so a segment shipped twice (whoever shipped it was killed before it was removed)
writes the same files again. This module does not know who wrote the spool.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from samovar_storage.objects import ObjectStore
from samovar_storage.requestlog import spool, tables
from samovar_storage.requestlog.rows import frames_of


@dataclass(frozen=True, slots=True)
class Shipped:
    """What one round of shipping did."""

    num_segments: int = 0
    num_files: int = 0
    num_records: int = 0


def ship(store: ObjectStore, folder: Path) -> Shipped:
    """Every segment that was ready is in object storage and gone from the spool.

    Raises: StoreUnavailable and its kin; what was shipped before stays shipped, the rest stays in the spool.
    """
    total = Shipped()
    for path in spool.waiting(folder):
        with spool.claimed(path) as data:
            if data is None:
                continue
            num_files, num_records = _ship_one(store, path.stem, data)
            path.unlink()
        total = Shipped(total.num_segments + 1, total.num_files + num_files, total.num_records + num_records)
    return total


def _ship_one(store: ObjectStore, name: str, data: bytes) -> tuple[int, int]:
    made = tables.tables_of(frames_of(data))
    for partition, table in made.items():
        store.put(f"{partition.prefix}{name}.parquet", tables.write(table))
    return len(made), sum(table.num_rows for table in made.values())
