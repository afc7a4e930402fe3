"""The request log against the real stores: what is written is read once, whoever is killed, whatever is away."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pytest
import redis as redis_sync
import redis.asyncio as redis_async

from samovar.errors import DiskFull, StoreUnavailable
from samovar.settings import Secret
from samovar_storage import keys
from samovar_storage.live import connect_sync
from samovar_storage.objects import ObjectStore
from samovar_storage.requestlog import layout, live, merging, query, shipping, spool, tables
from samovar_storage.requestlog.layout import Partition
from samovar_storage.requestlog.questions import Wanted
from samovar_storage.requestlog.rows import CUT, HASH, NONE
from samovar_storage.settings import StoreSettings
from support.request_rows import HOUR_S, bare, frame, packed, row, spool_of

PARTITION = Partition("echo", HOUR_S)
LATER_S = HOUR_S + 3600 + layout.SETTLED_S + 1


def wanted(**changes: Any) -> Wanted:
    fields: dict[str, Any] = {"function": "echo", "since_s": HOUR_S, "until_s": time.time() + 60, "limit": 1000}
    return Wanted(**(fields | changes))


def stored(store: ObjectStore, folder: Path, *rows: Any, run: str = "g1-run") -> None:
    """Ship a segment with these rows."""
    writer = spool_of(folder, run)
    writer.append([packed(*rows, run=run)])
    writer.roll(force=True)
    shipping.ship(store, folder)


def store_that_is_away() -> ObjectStore:
    key = Secret("key")
    settings = StoreSettings(s3_endpoint="http://127.0.0.1:1", s3_bucket="none", s3_access_key=key, s3_secret_key=key)
    return ObjectStore.from_settings(settings)


def seqs(store: ObjectStore, redis: redis_sync.Redis, **changes: Any) -> list[int]:
    answer = query.records(store, redis, wanted(**changes))
    assert answer["missing"] == []
    return [record["seq"] for record in answer["records"]]


def names(store: ObjectStore) -> list[str]:
    return [item.key.removeprefix(PARTITION.prefix) for item in store.list(PARTITION.prefix)]


# what is written is read ------------------------------------------------------------------------------------------


def test_a_record_survives_its_way_into_parquet() -> None:
    trace = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
    rows = [
        row(1, traceparent=trace, marks=1 | 32, boot_ms={"load": 2.5}, body="täglich".encode()),
        row(2, body=b"\xff\x00", answer=bytes(32), answer_form=HASH),
        row(3, body="tä".encode()[:-1], body_form=CUT, answer=None, answer_form=NONE),
    ]
    (table,) = tables.tables_of([frame(*rows)]).values()
    first, second, third = tables.read(tables.write(table)).to_pylist()
    assert table.schema.equals(tables.SCHEMA)
    assert (first["run"], first["seq"], first["function"], first["request_id"]) == ("g1-run", 1, "echo", "r1")
    assert first["at"].timestamp() == HOUR_S + 60 and first["trace_id"] == "0af7651916cd43dd8448eb211c80319c"
    assert (first["cached"], first["cold"], first["fallback"], first["boot_load_ms"]) == (True, True, False, 2.5)
    assert (first["total_ms"], first["queue_ms"], first["run_ms"]) == (20.0, 1.0, 15.0)
    assert (first["payload"], first["payload_form"], first["answer"]) == ("täglich", "text", "[1.0]")
    assert (second["payload"], second["payload_form"], second["payload_cut"]) == ("/wA=", "base64", False)
    assert (second["answer"], second["answer_form"], second["trace_id"]) == ("00" * 32, "hash", "")
    assert (third["payload"], third["payload_cut"], third["answer"], third["answer_form"]) == ("t", True, None, "none")


def test_a_file_of_an_older_release_is_read() -> None:
    before = [values[:-2] for values in frame(row(1)).rows]
    older = tables.table_of("r", "echo", before)
    for column in ("answered_by", "protocol"):
        assert older[column].to_pylist() == [None], "rows of an older gateway"
    old = tables.tables_of([frame(row(1))])[PARTITION].drop_columns(["hedged", "answer_cut", "protocol"])
    assert tables.conformed(old).schema.equals(tables.SCHEMA)


def test_files_with_and_without_a_column_are_merged_and_asked_in_sql(object_store: ObjectStore, tmp_path: Path) -> None:
    new = tables.tables_of([frame(row(2, protocol="openai"))])[PARTITION]
    old = tables.tables_of([frame(row(1))])[PARTITION].drop_columns(["protocol"])
    paths = []
    for number, table in enumerate((old, new)):
        object_store.put(f"{PARTITION.prefix}g1-run-{number:06d}.parquet", tables.write(table))
        paths.append(tmp_path / f"{number}.parquet")
        paths[-1].write_bytes(tables.write(table))
    asked = "SELECT seq, protocol FROM read_parquet($paths, union_by_name=true) ORDER BY seq"
    with duckdb.connect(":memory:") as database:
        assert database.execute(asked, {"paths": [*map(str, paths)]}).fetchall() == [(1, None), (2, "openai")]
    assert merging.merge(object_store, PARTITION, HOUR_S + 7200) == 2
    ((_, (file,)),) = [
        (partition, [f for f in files if f.name.endswith(".parquet")])
        for partition, files in merging.partitions(object_store).items()
    ]
    merged = tables.read(object_store.get(PARTITION.prefix + file.name)[0])
    assert [*zip(merged["seq"].to_pylist(), merged["protocol"].to_pylist(), strict=True)] == [(1, None), (2, "openai")]


def test_a_segment_becomes_a_file_for_each_function_and_hour(object_store: ObjectStore, tmp_path: Path) -> None:
    writer = spool_of(tmp_path)
    writer.append([packed(row(1), row(2, HOUR_S + 3700.0)), packed(row(3), function="other")])
    assert shipping.ship(object_store, tmp_path).num_segments == 0, "a gateway still writes it"
    writer.roll(force=True)
    shipped = shipping.ship(object_store, tmp_path)
    assert (shipped.num_segments, shipped.num_files, shipped.num_records) == (1, 3, 3)
    assert [item.key for item in object_store.list("logs/")] == [
        "logs/function=echo/date=2026-11-30/hour=01/g1-run-000001.parquet",
        "logs/function=echo/date=2026-11-30/hour=02/g1-run-000001.parquet",
        "logs/function=other/date=2026-11-30/hour=01/g1-run-000001.parquet",
    ]
    assert [*tmp_path.iterdir()] == []


async def test_records_are_found_once_in_both_stores_and_by_what_is_asked(
    object_store: ObjectStore, redis: redis_sync.Redis, aredis: redis_async.Redis, tmp_path: Path
) -> None:
    now_s = time.time()
    rows = [
        row(1, now_s - 30),
        row(2, now_s - 20, status=503, code="queue_full"),
        row(3, now_s - 10, total_s=2.0, version=2),
    ]
    await live.add_frames(aredis, [live.LiveFrame("echo", packed(*rows), 3)], 1 << 20)
    assert seqs(object_store, redis) == [1, 2, 3]
    stored(object_store, tmp_path, *rows[:2], row(4, now_s - 5))
    stored(object_store, tmp_path, row(1, now_s - 30), run="g2-run")
    assert sorted(seqs(object_store, redis)) == [1, 1, 2, 3, 4], "the same number of another gateway is another record"
    assert seqs(object_store, redis, status=(500, 599)) == [2]
    assert seqs(object_store, redis, slower_ms=1000.0) == [3] == seqs(object_store, redis, version=2)
    assert seqs(object_store, redis, limit=2) == [3, 4]
    assert seqs(object_store, redis, since_s=now_s - 15) == [3, 4]
    assert seqs(object_store, redis, function="other") == []
    summary = {one["version"]: one for one in query.summary(object_store, redis, wanted())["versions"]}
    assert (summary[1]["calls"], summary[1]["ok"], summary[1]["shed"]) == (4, 3, 1)
    assert summary[2]["total_p50_ms"] == pytest.approx(2000, rel=0.08)


async def test_either_store_may_be_away(
    object_store: ObjectStore, redis: redis_sync.Redis, aredis: redis_async.Redis, tmp_path: Path
) -> None:
    now_s = time.time()
    await live.add_frames(aredis, [live.LiveFrame("echo", packed(row(1, now_s)), 1)], 1 << 20)
    stored(object_store, tmp_path, row(2, now_s))
    away = store_that_is_away()
    with connect_sync("redis://127.0.0.1:1/0") as no_redis:
        answer = query.records(object_store, no_redis, wanted())
        assert ([r["seq"] for r in answer["records"]], answer["missing"]) == ([2], ["redis"])
        with pytest.raises(StoreUnavailable):
            next(query.files(away, wanted()))
    answer = query.records(away, redis, wanted())
    assert ([r["seq"] for r in answer["records"]], answer["missing"]) == ([1], ["object storage"])
    away.close()


# merging ------------------------------------------------------------------------------------------------------------


class Killed(BaseException):
    """Stands for a kill -9 in the middle of a merge."""


class DyingStore(ObjectStore):
    """A store whose user is killed at its `dies_at`-th change."""

    def __init__(self, store: ObjectStore, dies_at: int) -> None:
        super().__init__(store._client, store.bucket)
        self.left = dies_at

    def put(self, key: str, data: bytes, *, if_absent: bool = False, if_match: str | None = None) -> str:
        self._change()
        return super().put(key, data, if_absent=if_absent, if_match=if_match)

    def delete(self, key: str) -> None:
        self._change()
        super().delete(key)

    def _change(self) -> None:
        self.left -= 1
        if self.left < 0:
            raise Killed


@pytest.mark.parametrize("dies_at", range(8))
def test_a_merge_killed_anywhere_loses_and_doubles_nothing(
    object_store: ObjectStore, redis: redis_sync.Redis, tmp_path: Path, dies_at: int
) -> None:
    for number in range(3):
        stored(object_store, tmp_path, row(2 * number), bare(2 * number + 1), run=f"g{number}-run")
    with_kill = DyingStore(object_store, dies_at)
    try:
        merging.merge(with_kill, PARTITION, LATER_S)
    except Killed:
        pass
    assert sorted(seqs(object_store, redis)) == [*range(6)], "while it lies there half done"
    # a segment that was shipped again, after it had been merged, does not come back
    stored(object_store, tmp_path, row(0), bare(1), run="g0-run")
    assert sorted(seqs(object_store, redis)) == [*range(6)]
    merging.merge(object_store, PARTITION, LATER_S)
    merging.merge(object_store, PARTITION, LATER_S)
    assert sorted(seqs(object_store, redis)) == [*range(6)]
    assert len([name for name in names(object_store) if name.endswith(".parquet")]) == 1


def test_of_two_mergers_one_wins_and_the_other_leaves_nothing(
    object_store: ObjectStore, redis: redis_sync.Redis, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for number in range(3):
        stored(object_store, tmp_path, row(number), run=f"g{number}-run")
    make, turns = merging._make, list[str]()

    def overtaken(store: ObjectStore, partition: Partition, files: Any) -> str:
        made = make(store, partition, files)
        if not turns:
            turns.append(made)
            assert merging.merge(object_store, PARTITION, LATER_S) == 3
        return made

    monkeypatch.setattr(merging, "_make", overtaken)
    assert merging.merge(object_store, PARTITION, LATER_S) == 0
    monkeypatch.undo()
    assert sorted(seqs(object_store, redis)) == [0, 1, 2]
    assert turns[0] not in names(object_store)


def test_late_files_join_a_merged_hour_and_all_goes_when_it_is_old(
    object_store: ObjectStore, redis: redis_sync.Redis, tmp_path: Path
) -> None:
    for number in range(4):
        stored(object_store, tmp_path, row(number), run=f"g{number}-run")
        assert merging.merge_all(object_store, LATER_S) == (2 if number else 0)
    assert sorted(seqs(object_store, redis)) == [0, 1, 2, 3]
    assert len(names(object_store)) == 2, "one file, and merged.json"
    assert merging.expire(object_store, LATER_S, 24 * 3600, 1 << 30) == 0
    assert merging.expire(object_store, HOUR_S + 26 * 3600, 24 * 3600, 1 << 30) == 1
    assert names(object_store) == [] == seqs(object_store, redis)


# the spool ----------------------------------------------------------------------------------------------------------


def test_the_spool_keeps_what_cannot_be_shipped_and_ships_it_later(object_store: ObjectStore, tmp_path: Path) -> None:
    writer = spool_of(tmp_path)
    writer.append([packed(row(1))])
    writer.roll(force=True)
    away = store_that_is_away()
    with pytest.raises(StoreUnavailable):
        shipping.ship(away, tmp_path)
    away.close()
    assert len(spool.waiting(tmp_path)) == 1 and spool.spooled_bytes(tmp_path) > 0
    assert shipping.ship(object_store, tmp_path).num_records == 1
    assert spool.spooled_bytes(tmp_path) == 0


def test_the_spool_has_a_cap(tmp_path: Path) -> None:
    writer = spool_of(tmp_path, max_bytes=20_000)
    with pytest.raises(DiskFull):
        for number in range(1000):
            writer.append([packed(row(number))])
    assert 10_000 < spool.spooled_bytes(tmp_path) <= 20_000
    assert spool.spooled_bytes(tmp_path / "none") == 0


def test_a_gateway_that_was_killed_leaves_its_records_to_the_next(object_store: ObjectStore, tmp_path: Path) -> None:
    script = (
        "import os, signal, sys; from pathlib import Path; from support.request_rows import packed, row, spool_of\n"
        "writer = spool_of(Path(sys.argv[1]))\n"
        "writer.append([packed(row(1)), packed(row(2))])\n"
        "os.write(writer._file, b'\\0\\0\\1\\0half a frame')\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])}
    died = subprocess.run([sys.executable, "-c", script, str(tmp_path)], env=environment, check=False, timeout=60)
    assert died.returncode == -9
    assert shipping.ship(object_store, tmp_path).num_records == 2
    assert [*tmp_path.iterdir()] == []


# the newest minutes -----------------------------------------------------------------------------------------------


async def test_redis_keeps_the_newest_within_bytes_and_count(
    redis: redis_sync.Redis, aredis: redis_async.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    frames = [live.LiveFrame("echo", packed(row(number)), 1) for number in range(50)]
    max_bytes = 10 * len(frames[-1].data) + 5
    await live.add_frames(aredis, frames[:30], max_bytes)
    await live.add_frames(aredis, frames[30:], max_bytes)
    assert [f.rows[0][0] for f in live.read_frames(redis, "echo", 0.0)] == [*range(40, 50)]
    size: Any = redis.hmget(keys.requests_size("echo"), "bytes", "records")
    assert [int(value) for value in size] == [sum(len(f.data) for f in frames[40:]), 10]
    monkeypatch.setattr(keys, "MAX_LIVE_REQUESTS", 4)
    await live.add_frames(aredis, frames[:1], max_bytes)
    assert len(live.read_frames(redis, "echo", 0.0)) == 4
    assert 0 < redis.ttl(keys.requests("echo")) <= keys.LIVE_REQUESTS_LIFETIME_S
    await live.add_frames(aredis, [live.LiveFrame("other", bytes(100), 1)], 10)
    assert live.read_frames(redis, "other", 0.0) == [], "larger than all that may be kept"


async def test_what_is_too_old_leaves_redis_with_the_next_record(
    redis: redis_sync.Redis, aredis: redis_async.Redis, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = f"{int((time.time() - keys.LIVE_REQUESTS_LIFETIME_S - 5) * 1000)}-0"
    redis.xadd(keys.requests("echo"), {"f": packed(row(1)), "n": 1}, id=old)
    await live.add_frames(aredis, [live.LiveFrame("echo", packed(row(2)), 1)], 1 << 20)
    assert [f.rows[0][0] for f in live.read_frames(redis, "echo", 0.0)] == [2]


async def test_a_frame_of_another_release_is_passed_over(redis: redis_sync.Redis, aredis: redis_async.Redis) -> None:
    await live.add_frames(aredis, [live.LiveFrame("echo", b"\xc1", 1), live.LiveFrame("echo", packed(row(1)), 1)], 1000)
    assert len(live.read_frames(redis, "echo", 0.0)) == 1


def test_tables_of_nothing_are_empty() -> None:
    assert tables.tables_of([]) == {}
    assert isinstance(tables.SCHEMA, pa.Schema)
