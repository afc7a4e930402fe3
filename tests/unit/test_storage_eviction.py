"""What leaves the cache: enough, oldest first, never what is pinned; and how blobs are cut into ranges and parts."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from samovar.errors import InvalidInput
from samovar_storage.blobs import MAX_PARTS, MAX_SINGLE_BYTES, PART_BYTES, part_bytes
from samovar_storage.eviction import Entry, choose
from samovar_storage.fetch import MIB, RANGE_BYTES, ranges

ENTRIES = st.lists(
    st.builds(
        Entry, name=st.text("abcdef", min_size=1, max_size=4), size_bytes=st.integers(0, 50), used_at_s=st.floats(0, 9)
    ),
    unique_by=lambda entry: entry.name,
    max_size=12,
)


@given(ENTRIES, st.data(), st.integers(0, 200), st.integers(0, 300))
def test_eviction(entries: list[Entry], data: st.DataObject, needed_bytes: int, max_bytes: int) -> None:
    pinned = set(data.draw(st.sets(st.sampled_from([entry.name for entry in entries] or [""]))))
    used_bytes = sum(entry.size_bytes for entry in entries)
    chosen = choose(entries, pinned, used_bytes, needed_bytes, max_bytes)
    unpinned_bytes = sum(entry.size_bytes for entry in entries if entry.name not in pinned)
    if chosen is None:
        assert used_bytes - unpinned_bytes + needed_bytes > max_bytes
        return
    assert not pinned & {entry.name for entry in chosen}
    freed_bytes = sum(entry.size_bytes for entry in chosen)
    assert used_bytes - freed_bytes + needed_bytes <= max_bytes
    # not one more than needed, and nothing kept that is older than what went
    if chosen:
        assert used_bytes - freed_bytes + chosen[-1].size_bytes + needed_bytes > max_bytes
        kept = [entry for entry in entries if entry.name not in pinned and entry not in chosen]
        assert all(entry.used_at_s >= chosen[-1].used_at_s for entry in kept)


@given(st.integers(1, 5 * 1024**3))
def test_ranges_cover_a_blob_once_in_order(size_bytes: int) -> None:
    cut = ranges(size_bytes)
    assert [offset for offset, _ in cut] == [sum(length for _, length in cut[:index]) for index in range(len(cut))]
    assert sum(length for _, length in cut) == size_bytes
    assert all(0 < length <= RANGE_BYTES for _, length in cut)
    assert all(offset % MIB == 0 for offset, _ in cut)


@given(st.integers(0, PART_BYTES[-1] * MAX_PARTS))
def test_part_sizes_are_the_documented_ones(size_bytes: int) -> None:
    size = part_bytes(size_bytes)
    assert -(-size_bytes // size) <= MAX_PARTS
    assert size == max(1, size_bytes) if size_bytes <= MAX_SINGLE_BYTES else size in PART_BYTES


def test_a_blob_beyond_any_store_is_refused() -> None:
    with pytest.raises(InvalidInput):
        part_bytes(PART_BYTES[-1] * MAX_PARTS + 1)
