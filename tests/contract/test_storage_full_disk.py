"""A node cache on a disk that is really full: one sentence, nothing half written, other functions go on."""

from __future__ import annotations

import multiprocessing
import os
from multiprocessing.queues import SimpleQueue
from pathlib import Path

from samovar.errors import DiskFull
from samovar.spec import Manifest
from samovar_storage.cache import NodeCache
from samovar_storage.objects import ObjectStore
from support.small_disk import limit_disk
from support.stores import Stores
from support.versions import store_version

MIB = 1024 * 1024
DISK_BYTES = 8 * MIB
CAP_BYTES = 100 * MIB


def _fill_up(stores: Stores, root: Path, versions: list[Manifest], results: SimpleQueue[object]) -> None:
    """In a process of its own: ensure a version that fits, one that does not, and a third; say what happened."""
    limit_disk(root, DISK_BYTES)
    cache = NodeCache(root, CAP_BYTES, ObjectStore.from_settings(stores.settings(root)))
    kept, large, small = versions
    cache.ensure(kept, owner="i-kept")
    used_bytes = cache.used_bytes()
    try:
        cache.ensure(large, owner="i-large")
        sentence = ""
    except DiskFull as error:
        sentence = error.detail
    results.put(sentence)
    # what fits of the version that does not, its code, may stay: it is whole
    left = {path.name for path in (root / "blobs").iterdir()}
    results.put((left, os.listdir(root / "staging"), set(cache.pins()), cache.used_bytes() - used_bytes))
    results.put((cache.lookup(kept) is not None, cache.lookup(large) is not None, cache.verify(kept)))
    local = cache.ensure(small, owner="i-small")
    results.put([path.read_bytes() for path in local.weight_files])


def test_a_full_disk_is_one_sentence_and_other_functions_go_on(
    tmp_path: Path, stores: Stores, object_store: ObjectStore
) -> None:
    root = tmp_path / "disk"
    root.mkdir()
    kept = store_version(object_store, "kept", weights={"w": os.urandom(2 * MIB)})
    large = store_version(object_store, "large", weights={"w": os.urandom(12 * MIB)})
    small = store_version(object_store, "small", weights={"w": b"small"})
    context = multiprocessing.get_context("spawn")
    results: SimpleQueue[object] = context.SimpleQueue()
    process = context.Process(target=_fill_up, args=(stores, root, [kept, large, small], results))
    process.start()
    process.join(60)
    assert process.exitcode == 0
    sentence = results.get()
    assert isinstance(sentence, str) and str(root) in sentence
    assert ("No space left" in sentence) or ("File too large" in sentence)
    assert results.get() == ({kept.weights[0].sha256}, [], {"i-kept"}, 0)
    assert results.get() == (True, False, [])
    assert results.get() == [b"small"]
