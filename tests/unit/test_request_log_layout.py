"""Where the request log's files lie, which count, which are merged, which go."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samovar_storage.requestlog import layout
from samovar_storage.requestlog.layout import File, Merges, Partition
from samovar_storage.requestlog.rows import decode_frame, encode_frame, frames_of, prefixed

HOUR_S = 1_796_000_400  # 2026-11-30 01:00 UTC
MIB = 1 << 20


def test_a_partition_is_a_folder_of_a_function_and_an_hour() -> None:
    partition = layout.partition_of("echo", HOUR_S + 3599.9)
    assert partition == Partition("echo", HOUR_S)
    assert partition.prefix == "logs/function=echo/date=2026-11-30/hour=01/"
    assert layout.parse_key(partition.prefix + "g-000001.parquet") == (partition, "g-000001.parquet")
    assert layout.parse_key("logs/other.txt") is None
    assert layout.safe_name("host/../x y") == "host_.._x_y"


@given(st.floats(0, 4e9), st.sampled_from(["a", "my-fn"]))
def test_a_key_tells_its_partition(at_s: float, function: str) -> None:
    partition = layout.partition_of(function, at_s)
    assert partition.hour_s <= at_s < partition.hour_s + 3600
    assert layout.parse_key(f"{partition.prefix}x.parquet") == (partition, "x.parquet")


def test_what_was_merged_does_not_count_and_what_was_not_finished_neither() -> None:
    files = [
        File(name, 1) for name in ("a.parquet", "b.parquet", "merged-1.parquet", "merged-2.parquet", "merged.json")
    ]
    assert [f.name for f in layout.counting(files, Merges())] == ["a.parquet", "b.parquet"]
    merges = layout.after_merge(Merges(), "merged-1.parquet", ["a.parquet"])
    assert [f.name for f in layout.counting(files, merges)] == ["b.parquet", "merged-1.parquet"]
    assert layout.leftovers(files, merges) == ["a.parquet", "merged-2.parquet"]
    again = layout.after_merge(merges, "merged-2.parquet", ["b.parquet", "merged-1.parquet"])
    assert [f.name for f in layout.counting(files, again)] == ["merged-2.parquet"]
    assert set(again.replaced) == {"a.parquet", "b.parquet", "merged-1.parquet"}, "replaced for ever"


@pytest.mark.parametrize(
    ("sizes", "after_s", "merged"),
    [
        ([1, 1], 3600 + 301, 2),  # the hour is over
        ([1, 1], 3600 + 299, 0),  # spools may still bring some
        ([1], 9000, 0),
        ([1] * 16, 60, 16),
        ([1] * 15, 60, 0),
        ([1, 1, 20 * MIB], 9000, 2),  # large ones are left alone
        ([15 * MIB, 15 * MIB, 15 * MIB], 9000, 2),  # up to max_bytes in one
    ],
)  # fmt: skip
def test_which_files_become_one(sizes: list[int], after_s: float, merged: int) -> None:
    files = [File(f"{index}.parquet", size) for index, size in enumerate(sizes)]
    assert len(layout.to_merge(files, HOUR_S, HOUR_S + after_s, 32 * MIB)) == merged


@given(st.lists(st.integers(0, 40 * MIB), max_size=40), st.floats(0, 10_000))
def test_a_merge_is_never_larger_than_it_may_be(sizes: list[int], after_s: float) -> None:
    files = [File(f"{index}.parquet", size) for index, size in enumerate(sizes)]
    chosen = layout.to_merge(files, HOUR_S, HOUR_S + after_s, 32 * MIB)
    assert len(chosen) != 1 and sum(f.size_bytes for f in chosen) <= 32 * MIB and set(chosen) <= set(files)


def test_old_partitions_go_first_and_the_running_hour_stays() -> None:
    sizes = {Partition("a", HOUR_S - 3600 * age): 10 for age in range(5)}
    now_s = HOUR_S + 60.0
    assert layout.to_delete(sizes, now_s, 1e9, 1000) == []
    assert [p.hour_s for p in layout.to_delete(sizes, now_s, 1e9, 30)] == [HOUR_S - 4 * 3600, HOUR_S - 3 * 3600]
    assert [p.hour_s for p in layout.to_delete(sizes, now_s, 2.5 * 3600, 1000)] == [HOUR_S - 4 * 3600]
    assert Partition("a", HOUR_S) not in layout.to_delete(sizes, now_s, 0, 0)


def test_the_hours_that_may_hold_records() -> None:
    assert layout.hours_between(HOUR_S + 10.0, HOUR_S + 3700.0) == (HOUR_S, HOUR_S + 3600)


@given(st.lists(st.integers(1, 5), max_size=4), st.integers(0, 200))
def test_a_spool_file_cut_anywhere_gives_its_whole_frames(counts: list[int], lost: int) -> None:
    frames = [encode_frame("g", "f", []) + b"" for _ in counts]
    data = b"".join(prefixed(frame) for frame in frames)
    cut = data[: max(0, len(data) - lost)]
    read = [*frames_of(cut)]
    assert read == [decode_frame(frame) for frame in frames][: len(read)]
    assert len(read) >= len(frames) - lost - 1
    assert [*frames_of(data)] == [decode_frame(frame) for frame in frames]


def test_bytes_that_make_no_sense_end_a_spool_file() -> None:
    good = prefixed(encode_frame("g", "f", []))
    assert len([*frames_of(good + prefixed(b"\xc1\xc1") + good)]) == 1
