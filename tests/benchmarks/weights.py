"""Weights: filling the node cache from object storage, and loading what is not in memory with and without a prefetch.

Fills are held against boto3's `download_file` of the same object, which hashes nothing. Loads run in a forked blank, as
an instance's do, of a file about as large as the demo's model; before each its pages are dropped from memory. The head
start of a prefetch is what it is for the demo's model: its code is imported and the model built, then pages are
touched. `prefetched_over_cold_load` counts all of that; `_mapping` the last step alone. Takes alternate.
"""

from __future__ import annotations

import hashlib
import io
import os
import shutil
import subprocess
import tarfile
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import boto3
import torch
from harness import minilm
from harness.child import Child
from harness.report import Measured, Options, Table, interleave, median_of, run
from safetensors.torch import save_file

from samovar.settings import Secret
from samovar.spec import BlobRef, FileRef, Manifest
from samovar_storage.blobs import blob_key
from samovar_storage.cache import NodeCache
from samovar_storage.embedded import EmbeddedSeaweed
from samovar_storage.objects import ObjectStore
from samovar_storage.settings import StoreSettings

TARGETS = {"fill_over_download_file": (">=", 2.0), "prefetched_over_cold_load": ("<=", 0.75)}
MIB = 1024 * 1024
TENSOR_MIB = 32
NUM_MODEL_TENSORS = 3
PART_BYTES = 64 * MIB
MAX_CACHE_BYTES = 64 * 1024 * MIB


@contextmanager
def object_store(folder: Path) -> Iterator[tuple[ObjectStore, Any]]:
    """Run an embedded SeaweedFS and yield a bucket in it, and a boto3 client as anyone would make it."""
    server = EmbeddedSeaweed(folder)
    with (folder / "weed.log").open("wb") as log:
        process = subprocess.Popen(server.command(), env=server.environment(), stdout=log, stderr=log)
    try:
        server.wait_ready(60)
        settings = StoreSettings(
            s3_endpoint=server.endpoint,
            s3_bucket="weights",
            s3_access_key=Secret(server.access_key),
            s3_secret_key=Secret(server.secret_key),
        )
        store = ObjectStore.from_settings(settings)
        store.ensure_bucket()
        yield (
            store,
            boto3.client(
                "s3",
                endpoint_url=server.endpoint,
                aws_access_key_id=server.access_key,
                aws_secret_access_key=server.secret_key,
                region_name="us-east-1",
            ),
        )
    finally:
        process.kill()
        process.wait()


def make_weights(path: Path, num_tensors: int) -> FileRef:
    """Write a safetensors file of `num_tensors` x 32 MiB and return what it is."""
    generator = torch.Generator().manual_seed(0)
    tensors = {
        f"layer.{index}": torch.randint(0, 256, (TENSOR_MIB * MIB,), dtype=torch.uint8, generator=generator)
        for index in range(num_tensors)
    }
    save_file(tensors, path)
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return FileRef(path="model.safetensors", sha256=digest, size_bytes=path.stat().st_size)


def upload(store: ObjectStore, path: Path, key: str) -> None:
    """Store the file as a deploy does: a multipart upload of 64 MiB parts."""
    upload_id = store.start_multipart(key)
    with path.open("rb") as file:
        number = 0
        while part := file.read(PART_BYTES):
            number += 1
            store._client.upload_part(Bucket=store.bucket, Key=key, UploadId=upload_id, PartNumber=number, Body=part)
    store.complete_multipart(key, upload_id, store.list_parts(key, upload_id))


def drop_pages(path: Path) -> None:
    """None of the file is in memory afterwards."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
        os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
    finally:
        os.close(descriptor)


class Bench:
    """One weight file in the store and on disk, and the sides that are timed; each returns seconds."""

    def __init__(self, folder: Path, store: ObjectStore, boto3_client: Any, loader: Child, manifest: Manifest) -> None:
        self._folder = folder
        self._store = store
        self._boto3 = boto3_client
        self._loader = loader
        self._manifest = manifest
        self._kept = NodeCache(folder / "kept", MAX_CACHE_BYTES, store)
        self._kept.ensure(manifest)
        self.size_bytes = manifest.weights[0].size_bytes
        # by whether there was a prefetch: from the claim of the blank to the last page
        self.whole_s: dict[bool, list[float]] = {False: [], True: []}

    def fill(self) -> float:
        """Fill an empty cache: fetched, hashed, in place."""
        root = self._folder / "filled"
        cache = NodeCache(root, MAX_CACHE_BYTES, self._store)
        started_s = time.perf_counter()
        cache.ensure(self._manifest)
        seconds = time.perf_counter() - started_s
        shutil.rmtree(root)
        return seconds

    def download_file(self) -> float:
        """Fetch the same object with boto3's `download_file` at its defaults; nothing is hashed."""
        path = self._folder / "downloaded"
        started_s = time.perf_counter()
        self._boto3.download_file(self._store.bucket, blob_key(self._manifest.weights[0].sha256), str(path))
        seconds = time.perf_counter() - started_s
        path.unlink()
        return seconds

    def download_and_hash(self) -> float:
        """What `download_file` takes when its bytes are verified too, as a fill's are."""
        path = self._folder / "verified"
        started_s = time.perf_counter()
        self._boto3.download_file(self._store.bucket, blob_key(self._manifest.weights[0].sha256), str(path))
        with path.open("rb") as file:
            hashlib.file_digest(file, "sha256")
        seconds = time.perf_counter() - started_s
        path.unlink()
        return seconds

    def cold_load(self) -> float:
        """Load with no page in memory."""
        return self._load(prefetched=False)

    def prefetched_load(self) -> float:
        """Load when a prefetch was asked for with the claim of the blank."""
        return self._load(prefetched=True)

    def _load(self, *, prefetched: bool) -> float:
        local = self._kept.lookup(self._manifest)
        assert local is not None
        drop_pages(local.weight_files[0])
        started_s = time.perf_counter()
        if prefetched:
            self._kept.prefetch(local)
        seconds = self._loader.ask(str(local.weight_files[0]))
        self.whole_s[prefetched].append(time.perf_counter() - started_s)
        return seconds


def stored_version(folder: Path, store: ObjectStore, num_tensors: int) -> Manifest:
    """Store a code archive and a weight file, and return the version made of them."""
    archive = io.BytesIO()
    tarfile.open(fileobj=archive, mode="w").close()
    code = BlobRef(sha256=hashlib.sha256(archive.getvalue()).hexdigest(), size_bytes=len(archive.getvalue()))
    store.put(blob_key(code.sha256), archive.getvalue())
    path = folder / "model.safetensors"
    file = make_weights(path, num_tensors)
    upload(store, path, blob_key(file.sha256))
    path.unlink()
    return Manifest(
        name="weights", version=1, entry="app:f", kind="function", handler="sync", code=code, weights=[file]
    )


def measure(options: Options) -> Measured:
    """Measure the four sides in turn on one file."""
    torch.set_num_threads(1)
    with tempfile.TemporaryDirectory(prefix="samovar-weights-") as name:
        folder = Path(name)
        with object_store(folder) as (store, boto3_client), Child("load_weights.py", str(minilm.APP)) as loader:
            bench = Bench(folder, store, boto3_client, loader, stored_version(folder, store, options.pick(32, 8)))
            model = Bench(folder, store, boto3_client, loader, stored_version(folder, store, NUM_MODEL_TENSORS))
            size_mb = bench.size_bytes / 1e6
            bench.fill()
            sides = {
                "fill": bench.fill,
                "download_file": bench.download_file,
                "download_file, SHA-256": bench.download_and_hash,
            }
            moved = interleave(options.pick(5, 2), sides)
            loads = interleave(
                options.pick(15, 5), {"cold load": model.cold_load, "prefetched load": model.prefetched_load}
            )
    whole_s = {prefetched: median_of(values, float) for prefetched, values in model.whole_s.items()}
    seconds = {side: median_of(values, float) for side, values in (moved | loads).items()}
    sizes_mb = dict.fromkeys(moved, size_mb) | dict.fromkeys(loads, model.size_bytes / 1e6)
    rows = [
        (side, sizes_mb[side], seconds[side], sizes_mb[side] / seconds[side], min(values), max(values))
        for side, values in (moved | loads).items()
    ]
    metrics: dict[str, float | None] = {
        "fill_over_download_file": seconds["download_file"] / seconds["fill"],
        "prefetched_over_cold_load": whole_s[True] / whole_s[False],
        "prefetched_over_cold_mapping": seconds["prefetched load"] / seconds["cold load"],
        "fill_over_verified_download_file": seconds["download_file, SHA-256"] / seconds["fill"],
        "fill_mb_per_s": size_mb / seconds["fill"],
        "download_file_mb_per_s": size_mb / seconds["download_file"],
    }
    columns = ("side", "MB", "median s", "MB/s", "least s", "most s")
    notes = [
        "the store runs on the same cores as its client; fill hashes every byte, download_file none",
        f"importing and building the model, then loading: cold {1000 * whole_s[False]:.0f} ms, "
        f"prefetched {1000 * whole_s[True]:.0f} ms",
    ]
    return Measured(metrics, [Table("Safetensors files", columns, rows)], notes)


if __name__ == "__main__":
    run("weights", TARGETS, measure)
