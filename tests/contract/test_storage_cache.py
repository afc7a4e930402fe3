"""The node cache: verified, filled once, evicted by age, never under a live instance."""

from __future__ import annotations

import io
import multiprocessing
import os
import shutil
import stat
import subprocess
import tarfile
import threading
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from samovar.errors import DeployRefused, DiskFull, NotFound, WeightsMissing
from samovar.spec import BlobRef, Manifest
from samovar_storage.blobs import blob_key
from samovar_storage.cache import NodeCache
from samovar_storage.objects import ObjectStore
from support.stores import Stores
from support.versions import sha256, store_version
from support.waiting import wait_until

MIB = 1024 * 1024
WEIGHTS = {"model.safetensors": b"w" * (3 * MIB), "sub/tokenizer.json": b"{}", "empty.txt": b""}


class CountingStore(ObjectStore):
    """The real store, counting range reads; `harm` may spoil what landed."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner._client, inner.bucket)
        self.reads: Counter[str] = Counter()
        self.harm: Callable[[str, int], None] | None = None

    def copy_range(self, key: str, offset: int, length: int, descriptor: int, writing: threading.Lock) -> None:
        self.reads[key] += 1
        super().copy_range(key, offset, length, descriptor, writing)
        if self.harm is not None:
            self.harm(key, descriptor)


@pytest.fixture
def store(object_store: ObjectStore) -> CountingStore:
    return CountingStore(object_store)


def cache_of(tmp_path: Path, store: ObjectStore, max_bytes: int = 100 * MIB) -> NodeCache:
    return NodeCache(tmp_path / "cache", max_bytes, store)


def test_a_version_becomes_local_once(tmp_path: Path, store: CountingStore) -> None:
    manifest = store_version(store, code={"app.py": b"x = 1\n", "pkg/util.py": b"y = 2\n"}, weights=WEIGHTS)
    cache = cache_of(tmp_path, store)
    assert cache.lookup(manifest) is None
    local = cache.ensure(manifest)
    assert (local.code_dir / "pkg/util.py").read_bytes() == b"y = 2\n"
    assert local.weights_dir is not None
    for path, data in WEIGHTS.items():
        assert (local.weights_dir / path).read_bytes() == data
    assert local.fetched_bytes == manifest.code.size_bytes + sum(map(len, WEIGHTS.values()))
    reads = sum(store.reads.values())
    again = cache.ensure(manifest)
    assert (again.fetched_bytes, again.code_dir, again.weights_dir) == (0, local.code_dir, local.weights_dir)
    assert sum(store.reads.values()) == reads


def resident_bytes(path: Path) -> int:
    """Return how much of the file is in memory."""
    return int(subprocess.run(["fincore", "-bno", "RES", str(path)], capture_output=True, check=True).stdout)


@pytest.mark.skipif(shutil.which("fincore") is None, reason="fincore (util-linux) is not installed")
def test_a_prefetch_brings_in_whole_files(tmp_path: Path, store: CountingStore) -> None:
    data = os.urandom(40 * MIB)
    cache = cache_of(tmp_path, store)
    local = cache.ensure(store_version(store, weights={"model.safetensors": data}))
    (path,) = local.weight_files
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if resident_bytes(path) > 0:
        pytest.skip("this file system keeps its pages")
    cache.prefetch(local)
    cache.prefetch(local)
    wait_until(lambda: resident_bytes(path) == len(data))
    cache.close()


def test_files_are_read_only_and_weights_share_their_blob(tmp_path: Path, store: CountingStore) -> None:
    cache = cache_of(tmp_path, store)
    one = cache.ensure(store_version(store, weights=WEIGHTS))
    other = cache.ensure(store_version(store, version=2, weights={**WEIGHTS, "more.txt": b"more"}))
    assert one.weights_dir is not None and other.weights_dir is not None
    assert (one.weights_dir / "model.safetensors").samefile(other.weights_dir / "model.safetensors")
    for path in [*one.weights_dir.rglob("*"), *one.code_dir.rglob("*")]:
        assert not stat.S_IMODE(path.stat().st_mode) & 0o222, path


def test_without_weights_there_is_no_weights_folder(tmp_path: Path, store: CountingStore) -> None:
    assert cache_of(tmp_path, store).ensure(store_version(store)).weights_dir is None


def test_equal_names_in_two_folders_stay_apart(tmp_path: Path, store: CountingStore) -> None:
    cache = cache_of(tmp_path, store)
    one = cache.ensure(store_version(store, weights={"a": b"1", "b": b"2"}))
    other = cache.ensure(store_version(store, weights={"a": b"2", "b": b"1"}))
    assert one.weights_dir is not None and other.weights_dir is not None
    assert (one.weights_dir / "a").read_bytes() == b"1"
    assert (other.weights_dir / "a").read_bytes() == b"2"


def test_bytes_damaged_on_the_way_are_fetched_once_more(tmp_path: Path, store: CountingStore) -> None:
    manifest = store_version(store, weights=WEIGHTS)
    key = blob_key(manifest.weights[0].sha256)

    def harm(read_key: str, descriptor: int) -> None:
        if read_key == key and store.reads[key] == 1:
            os.pwrite(descriptor, b"?", 0)

    store.harm = harm
    local = cache_of(tmp_path, store).ensure(manifest)
    assert local.weights_dir is not None
    assert (local.weights_dir / "model.safetensors").read_bytes() == WEIGHTS["model.safetensors"]
    assert store.reads[key] == 2


@pytest.mark.parametrize(
    ("stored", "problem"),
    [(b"v" * (3 * MIB), "SHA-256"), (b"w" * MIB, "bytes instead of"), (None, "missing")],
    ids=["corrupt", "truncated", "missing"],
)
def test_a_bad_blob_in_the_store_is_named_and_never_served(
    tmp_path: Path, store: CountingStore, stored: bytes | None, problem: str
) -> None:
    manifest = store_version(store, weights=WEIGHTS)
    key = blob_key(manifest.weights[0].sha256)
    if stored is None:
        store.delete(key)
    else:
        store.put(key, stored)
    cache = cache_of(tmp_path, store)
    with pytest.raises(WeightsMissing, match=problem) as caught:
        cache.ensure(manifest, owner="i-1")
    assert cache.pins() == {}
    assert "embed@1" in caught.value.detail and "model.safetensors" in caught.value.detail
    assert cache.lookup(manifest) is None
    assert not list((tmp_path / "cache/staging").iterdir())
    # others go on, and so does this one once the store is whole again
    cache.ensure(store_version(store, name="other", weights={"x": b"x"}))
    store.put(key, WEIGHTS["model.safetensors"])
    assert cache.ensure(manifest).weights_dir is not None


def test_a_file_truncated_on_disk_is_fetched_again(tmp_path: Path, store: CountingStore) -> None:
    manifest = store_version(store, weights=WEIGHTS)
    cache = cache_of(tmp_path, store)
    local = cache.ensure(manifest)
    assert local.weights_dir is not None
    os.truncate(local.weights_dir / "model.safetensors", 10)
    again = cache.ensure(manifest)
    assert again.weights_dir is not None
    assert (again.weights_dir / "model.safetensors").read_bytes() == WEIGHTS["model.safetensors"]
    assert again.fetched_bytes == 3 * MIB


def test_damage_that_keeps_the_size_is_found_by_verify_and_after_a_reboot(tmp_path: Path, store: CountingStore) -> None:
    manifest = store_version(store, weights=WEIGHTS)
    cache = cache_of(tmp_path, store)

    def spoil() -> None:
        local = cache.ensure(manifest)
        assert local.weights_dir is not None
        path = local.weights_dir / "model.safetensors"
        path.chmod(0o644)
        with path.open("r+b") as file:
            file.write(b"?")
        path.chmod(0o444)

    def is_good() -> bool:
        weights_dir = cache.ensure(manifest).weights_dir
        assert weights_dir is not None
        return (weights_dir / "model.safetensors").read_bytes() == WEIGHTS["model.safetensors"]

    assert cache.ensure(manifest) and cache.verify(manifest) == []
    spoil()
    assert cache.verify(manifest) == ["model.safetensors"]
    assert is_good()
    spoil()
    (tmp_path / "cache/boot_id").write_text("an earlier boot")
    cache = cache_of(tmp_path, store)
    reads = sum(store.reads.values())
    assert is_good()
    # the damaged one alone was fetched; what was intact only had to be hashed
    assert sum(store.reads.values()) == reads + 1


def test_a_code_file_that_changed_is_extracted_again(tmp_path: Path, store: CountingStore) -> None:
    manifest = store_version(store)
    cache = cache_of(tmp_path, store)
    code = cache.ensure(manifest).code_dir / "app.py"
    code.chmod(0o644)
    code.write_bytes(b"")
    assert b"handler" in (cache.ensure(manifest).code_dir / "app.py").read_bytes()


def archive_with(*members: tarfile.TarInfo) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for member in members:
            archive.addfile(member)
    return buffer.getvalue()


def link(name: str, target: str, kind: bytes) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, target
    return info


@pytest.mark.parametrize(
    "archive",
    [
        archive_with(tarfile.TarInfo("../escaped.py")),
        archive_with(link("out", "/etc/passwd", tarfile.SYMTYPE)),
        archive_with(link("out", "../../secrets.json", tarfile.SYMTYPE)),
        archive_with(link("out", "/etc/passwd", tarfile.LNKTYPE)),
        archive_with(link("device", "", tarfile.CHRTYPE)),
        archive_with(tarfile.TarInfo("a"), tarfile.TarInfo("a/b")),
        b"this is no archive" * 100,
    ],
    ids=["parent", "absolute link", "link out", "hard link", "device", "file and folder", "not a tar"],
)
def test_an_archive_that_reaches_out_is_refused(tmp_path: Path, store: CountingStore, archive: bytes) -> None:
    store.put(blob_key(sha256(archive)), archive)
    manifest = Manifest(
        name="evil",
        version=1,
        entry="app:f",
        kind="function",
        handler="sync",
        code=BlobRef(sha256=sha256(archive), size_bytes=len(archive)),
    )
    with pytest.raises(DeployRefused):
        cache_of(tmp_path, store).ensure(manifest)
    assert not (tmp_path / "cache/escaped.py").exists() and not list((tmp_path / "cache/code").iterdir())


@pytest.mark.parametrize("path", ["../x", "/etc/x", "", "a/../../x", "."])
def test_a_weight_path_that_leads_out_is_refused(tmp_path: Path, store: CountingStore, path: str) -> None:
    with pytest.raises(DeployRefused):
        cache_of(tmp_path, store).ensure(store_version(store, weights={path: b"x"}))


def test_a_weight_path_that_is_there_twice_is_refused(tmp_path: Path, store: CountingStore) -> None:
    with pytest.raises(DeployRefused):
        cache_of(tmp_path, store).ensure(store_version(store, weights={"a": b"x", "a/b": b"y"}))


def test_threads_that_want_the_same_fetch_it_once(tmp_path: Path, store: CountingStore) -> None:
    manifest = store_version(store, weights=WEIGHTS)
    fetched: list[int] = []

    def ensure() -> None:
        fetched.append(cache_of(tmp_path, store).ensure(manifest).fetched_bytes)

    threads = [threading.Thread(target=ensure) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(fetched) == 6
    assert sum(fetched) == manifest.code.size_bytes + sum(map(len, WEIGHTS.values()))


def _fill_in_process(stores: Stores, root: Path, manifest: Manifest, start: object, results: object) -> None:
    store = CountingStore(ObjectStore.from_settings(stores.settings(root)))
    start.wait()  # type: ignore[attr-defined]
    NodeCache(root, 100 * MIB, store).ensure(manifest)
    results.put(sum(store.reads.values()))  # type: ignore[attr-defined]


def test_two_processes_that_fill_at_once_fetch_once(tmp_path: Path, stores: Stores, object_store: ObjectStore) -> None:
    manifest = store_version(object_store, weights=WEIGHTS)
    context = multiprocessing.get_context("spawn")
    start, results = context.Barrier(2), context.Queue()
    processes = [
        context.Process(target=_fill_in_process, args=(stores, tmp_path / "cache", manifest, start, results))
        for _ in range(2)
    ]
    for process in processes:
        process.start()
    reads = [results.get(timeout=60) for _ in processes]
    for process in processes:
        process.join(30)
        assert process.exitcode == 0
    # the code, two weight files with bytes in them; an empty one needs no read
    assert sum(reads) == 3


def test_eviction_takes_the_oldest_and_never_what_is_pinned(tmp_path: Path, store: CountingStore) -> None:
    versions = [store_version(store, name=f"f{i}", weights={"w": bytes([i]) * (3 * MIB)}) for i in range(4)]
    cache = cache_of(tmp_path, store, max_bytes=10 * MIB)
    pinned = cache.ensure(versions[0], owner="i-live")
    for version in versions[1:3]:
        cache.ensure(version)
    # used again, so that version 2 is the oldest that is not pinned
    cache.ensure(versions[1])
    cache.ensure(versions[3])
    assert [cache.lookup(version) is not None for version in versions] == [True, True, False, True]
    assert cache.used_bytes() <= 10 * MIB
    assert pinned.weights_dir is not None and (pinned.weights_dir / "w").stat().st_size == 3 * MIB
    # with all of the room pinned there is a sentence, and nothing is touched
    cache.pin("i-2", versions[1])
    cache.pin("i-3", versions[3])
    with pytest.raises(DiskFull, match="cap"):
        cache.ensure(versions[2])
    assert all(cache.lookup(version) for version in (versions[0], versions[1], versions[3]))
    cache.release("i-live")
    assert cache.ensure(versions[2]).fetched_bytes and cache.lookup(versions[0]) is None


def test_pins_outlive_the_process_and_orphans_are_pruned(tmp_path: Path, store: CountingStore) -> None:
    manifest = store_version(store, weights={"w": b"w"})
    cache_of(tmp_path, store).ensure(manifest, owner="i-1")
    cache_of(tmp_path, store).pin("i-2", manifest)
    restarted = cache_of(tmp_path, store)
    assert restarted.pins().keys() == {"i-1", "i-2"}
    assert restarted.prune({"i-2"}) == ["i-1"]
    assert restarted.pins().keys() == {"i-2"}


def test_what_a_killed_process_left_is_cleared(tmp_path: Path, store: CountingStore) -> None:
    cache_of(tmp_path, store)
    dead = multiprocessing.get_context("spawn").Process(target=os.getpid)
    dead.start()
    dead.join()
    (tmp_path / f"cache/staging/{dead.pid}-half").write_bytes(b"half a blob")
    (tmp_path / f"cache/pins/fill.{dead.pid}.x").write_text('["blob:a"]')
    cache = cache_of(tmp_path, store)
    assert cache.used_bytes() == 0 and cache.pins() == {}
    assert not list((tmp_path / "cache/staging").iterdir())


def test_a_store_that_is_gone_does_not_matter_for_what_is_here(tmp_path: Path, store: CountingStore) -> None:
    manifest = store_version(store, weights=WEIGHTS)
    cache = cache_of(tmp_path, store)
    cache.ensure(manifest)
    for file in manifest.weights:
        store.delete(blob_key(file.sha256))
    with pytest.raises(NotFound):
        store.get(blob_key(manifest.weights[0].sha256))
    assert cache.ensure(manifest).fetched_bytes == 0


def test_several_ranges_land_in_order(tmp_path: Path, store: CountingStore) -> None:
    data = os.urandom(40 * MIB)
    manifest = store_version(store, weights={"model.safetensors": data})
    started_s = time.perf_counter()
    local = cache_of(tmp_path, store).ensure(manifest)
    assert local.weights_dir is not None
    assert (local.weights_dir / "model.safetensors").read_bytes() == data
    assert store.reads[blob_key(sha256(data))] == 5
    assert 0 < local.fetch_ms <= (time.perf_counter() - started_s) * 1000
