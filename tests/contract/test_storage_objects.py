"""The object store against SeaweedFS: conditions under many writers, ranges, multipart, and what failures become."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from samovar.errors import BadCredential, ConfigError, Conflict, NotFound, SamovarError, StoreUnavailable
from samovar.settings import Secret
from samovar_storage.objects import ObjectStore, Part, put_or_same
from support.stores import Stores

MIB = 1024 * 1024
NUM_WRITERS = 8


def race(num_threads: int, work: Callable[[int], None]) -> None:
    """Run `work(i)` in threads that start together."""
    barrier = threading.Barrier(num_threads)

    def run(number: int) -> None:
        barrier.wait()
        work(number)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(num_threads)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()


def test_put_get_head_list_delete(object_store: ObjectStore) -> None:
    etag = object_store.put("a/one", b"1")
    object_store.put("a/two", b"22")
    object_store.put("b/three", b"333")
    assert object_store.get("a/one") == (b"1", etag)
    info = object_store.head("a/two")
    assert info is not None and info.size_bytes == 2
    assert [item.key for item in object_store.list("a/")] == ["a/one", "a/two"]
    object_store.delete("a/one")
    object_store.delete("a/one")
    assert object_store.head("a/one") is None
    with pytest.raises(NotFound):
        object_store.get("a/one")


def test_listing_goes_beyond_one_page(object_store: ObjectStore) -> None:
    def put(number: int) -> None:
        for index in range(number, 1010, NUM_WRITERS):
            object_store.put(f"many/{index:04}", b"x")

    race(NUM_WRITERS, put)
    assert len(list(object_store.list("many/"))) == 1010


def test_exactly_one_of_many_creators_wins(object_store: ObjectStore) -> None:
    for key in ("one", "two"):
        outcomes: Counter[str] = Counter()
        winners: list[int] = []

        def create(
            number: int, key: str = key, outcomes: Counter[str] = outcomes, winners: list[int] = winners
        ) -> None:
            try:
                object_store.put(key, b"%d" % number, if_absent=True)
                winners.append(number)
                outcomes["won"] += 1
            except Conflict:
                outcomes["lost"] += 1

        race(NUM_WRITERS, create)
        assert outcomes == {"won": 1, "lost": NUM_WRITERS - 1}
        assert object_store.get(key)[0] == b"%d" % winners[0]


def test_no_update_is_lost_between_writers_that_check_the_etag(object_store: ObjectStore) -> None:
    object_store.put("counter", b"0")

    def increment(_: int) -> None:
        for _ in range(5):
            while True:
                value, etag = object_store.get("counter")
                try:
                    object_store.put("counter", b"%d" % (int(value) + 1), if_match=etag)
                    break
                except Conflict:
                    continue

    race(4, increment)
    assert object_store.get("counter")[0] == b"20"


def test_a_stale_etag_and_an_absent_object_conflict(object_store: ObjectStore) -> None:
    etag = object_store.put("key", b"1")
    object_store.put("key", b"2")
    with pytest.raises(Conflict):
        object_store.put("key", b"3", if_match=etag)
    with pytest.raises((Conflict, NotFound)):
        object_store.put("absent", b"3", if_match=etag)
    assert put_or_same(object_store, "key", b"2")
    assert not put_or_same(object_store, "key", b"4")


def test_ranges_land_in_place(object_store: ObjectStore, tmp_path: Path) -> None:
    data = bytes(range(256)) * 40_000
    object_store.put("big", data)
    with (tmp_path / "landed").open("w+b") as file:
        object_store.copy_range("big", 5_000_000, len(data) - 5_000_000, file.fileno(), threading.Lock())
        object_store.copy_range("big", 0, 5_000_000, file.fileno(), threading.Lock())
        assert file.read() == data
        assert object_store.sha256("big")[1] == len(data)
        with pytest.raises(StoreUnavailable, match="early"):
            object_store.copy_range("big", len(data) - 10, 20, file.fileno(), threading.Lock())


def test_a_multipart_upload_keeps_its_parts_until_it_is_complete(object_store: ObjectStore) -> None:
    upload_id = object_store.start_multipart("parts")
    assert object_store.list_parts("parts", upload_id) == ()
    put = object_store._client.upload_part
    put(Bucket=object_store.bucket, Key="parts", UploadId=upload_id, PartNumber=2, Body=b"b" * MIB)
    put(Bucket=object_store.bucket, Key="parts", UploadId=upload_id, PartNumber=1, Body=b"a" * (5 * MIB))
    parts = object_store.list_parts("parts", upload_id)
    assert [(part.number, part.size_bytes) for part in parts] == [(1, 5 * MIB), (2, MIB)]
    object_store.complete_multipart("parts", upload_id, parts)
    assert object_store.get("parts")[0] == b"a" * (5 * MIB) + b"b" * MIB
    with pytest.raises(NotFound):
        object_store.list_parts("parts", upload_id)
    with pytest.raises(SamovarError):
        object_store.complete_multipart("other", "no-such-upload", (Part(1, "etag"),))
    object_store.abort_multipart("parts", upload_id)


def test_wrong_credentials_and_a_dead_endpoint_are_told_apart(stores: Stores, tmp_path: Path) -> None:
    settings = stores.settings(tmp_path)
    wrong = type(settings)(
        **{**{f: getattr(settings, f) for f in settings.__struct_fields__}, "s3_secret_key": Secret("no")}
    )
    with pytest.raises(BadCredential):
        ObjectStore.from_settings(wrong).ensure_bucket()
    dead = type(settings)(
        **{**{f: getattr(settings, f) for f in settings.__struct_fields__}, "s3_endpoint": "http://127.0.0.1:1"}
    )
    with pytest.raises(StoreUnavailable):
        ObjectStore.from_settings(dead).ensure_bucket()


class Heedless(ObjectStore):
    """A store that takes conditions and ignores them, as some do."""

    def put(self, key: str, data: bytes, *, if_absent: bool = False, if_match: str | None = None) -> str:
        return super().put(key, data)


def test_a_store_that_ignores_conditions_is_refused(object_store: ObjectStore) -> None:
    with pytest.raises(ConfigError, match="conditional"):
        Heedless(object_store._client, object_store.bucket).ensure_bucket()
    object_store.ensure_bucket()
    assert not list(object_store.list("probes/"))


def test_an_object_is_read_from_an_offset_if_it_is_still_the_same(object_store: ObjectStore) -> None:
    etag = object_store.put("a", b"0123456789")
    assert b"".join(object_store.read_chunks("a", 3, offset=4, etag=etag)) == b"456789"
    object_store.put("a", b"another")
    with pytest.raises(Conflict):
        next(object_store.read_chunks("a", 3, offset=4, etag=etag))
