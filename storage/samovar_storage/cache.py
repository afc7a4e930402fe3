"""The node cache: code and weights of versions on this node's disk, content-addressed and verified.

Nothing appears under its name before its SHA-256 was checked. One filler per item (a file lock), the others wait and
find it. What is pinned is never evicted; the least recently used goes first; one cap holds for all of it. A file whose
size changed is fetched again, and so is one that may not have reached the disk before the machine went down: after a
reboot everything is hashed once more before its first use (`room.py` has the folders).
This module does not know instances or how bytes travel (`fetch.py`).
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Iterable
from concurrent.futures import Executor, ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path

from samovar.errors import SamovarError, StoreUnavailable, WeightsMissing
from samovar.spec import FileRef, Manifest
from samovar_storage import fetch, trees
from samovar_storage.blobs import blob_key
from samovar_storage.objects import ObjectStore
from samovar_storage.room import Room, blob_name, code_name, is_trusted, trust

log = logging.getLogger(__name__)

MAX_ATTEMPTS = 2
NUM_PREFETCHERS = 2


@dataclass(frozen=True, slots=True)
class LocalVersion:
    """A version's files on this node, read-only. weights_dir: None without weights. fetched_bytes: moved just now."""

    code_dir: Path
    weights_dir: Path | None
    weight_files: tuple[Path, ...] = ()
    fetched_bytes: int = 0
    fetch_ms: float = 0.0


class NodeCache:
    """The cache under one folder. Blocking: for worker threads. Any number of processes may share the folder."""

    def __init__(self, root: Path, max_bytes: int, store: ObjectStore) -> None:
        """Open the cache, made if absent. max_bytes: cap of everything in it, > 0. Raises DiskFull, ConfigError."""
        self._room = Room(root, max_bytes)
        self._store = store
        self._prefetcher = ThreadPoolExecutor(NUM_PREFETCHERS, thread_name_prefix="prefetch")
        self._prefetching: set[Path] = set()
        self._prefetching_lock = threading.Lock()
        self._closing = threading.Event()

    def ensure(self, manifest: Manifest, owner: str | None = None) -> LocalVersion:
        """The version's files are here, verified; return where. Under a millisecond when they are here already.

        Args:
            owner: pins them, from before the first byte is fetched until `release(owner)`; not when this raises.
        Raises: WeightsMissing (absent or damaged in the store; names function and file), StoreUnavailable, DiskFull,
        DeployRefused (a code archive that cannot be unpacked).
        """
        if owner is None:
            return self._ensure(manifest)
        self.pin(owner, manifest)
        try:
            return self._ensure(manifest)
        except BaseException:
            self.release(owner)
            raise

    def _ensure(self, manifest: Manifest) -> LocalVersion:
        started_s = time.perf_counter()
        local = self.lookup(manifest)
        if local is not None:
            return local
        with self._room.pinned_while_filling(_names(manifest)):
            fetched_bytes = self._fill(manifest)
            local = self.lookup(manifest)
        if local is None:
            raise StoreUnavailable(f"the files of {manifest.ref} changed on disk while they were being fetched")
        fetch_ms = (time.perf_counter() - started_s) * 1000
        log.info("%s: fetched %d bytes in %.0f ms", manifest.ref, fetched_bytes, fetch_ms)
        return replace(local, fetched_bytes=fetched_bytes, fetch_ms=fetch_ms)

    def lookup(self, manifest: Manifest) -> LocalVersion | None:
        """Return where the version's files are if all are here, in full size and trusted; they count as just used."""
        code = self._room.code_tree(manifest.code.sha256)
        weights = self._weights_tree(manifest)
        listing = trees.read_listing(code)
        if listing is None or not trees.is_whole(code, listing.files) or not trees.is_whole(weights, manifest.weights):
            return None
        paths = tuple(weights / trees.CONTENT / file.path for file in manifest.weights)
        try:
            marks = (code / trees.LISTING, *paths)
            if not all(is_trusted(path) for path in marks):
                return None
            # the kernel's own idea of now moves in steps of milliseconds
            now_ns = time.time_ns()
            for path in marks:
                os.utime(path, ns=(now_ns, now_ns))
        except FileNotFoundError:
            return None
        return LocalVersion(code / trees.CONTENT, weights / trees.CONTENT if paths else None, paths)

    def prefetch(self, local: LocalVersion) -> None:
        """Have the weight files read into memory in the background; returns at once. Repeated calls cost little."""
        for path in local.weight_files:
            with self._prefetching_lock:
                if path in self._prefetching:
                    continue
                self._prefetching.add(path)
            self._prefetcher.submit(self._prefetch, path)

    def _prefetch(self, path: Path) -> None:
        try:
            fetch.prefetch(path, self._closing)
        except OSError as error:
            log.warning("cannot prefetch %s: %s", path, error)
        finally:
            with self._prefetching_lock:
                self._prefetching.discard(path)

    def close(self) -> None:
        """No prefetch is running or waiting any more; one that runs ends within a step."""
        self._closing.set()
        self._prefetcher.shutdown(cancel_futures=True)

    def verify(self, manifest: Manifest) -> list[str]:
        """Hash everything of a version again; return what was damaged. That is gone now; `ensure` fetches it again."""
        damaged = []
        code = self._room.code_tree(manifest.code.sha256)
        listing = trees.read_listing(code)
        if listing is not None and not trees.is_intact(code, listing.files):
            damaged.append("code")
            trees.remove_tree(code, self._room.staging)
        for file in manifest.weights:
            blob = self._room.blob(file.sha256)
            if blob.exists() and trees.file_sha256(blob) != file.sha256:
                damaged.append(file.path)
                self._room.drop_blob(file.sha256)
        return damaged

    def pin(self, owner: str, manifest: Manifest) -> None:
        """Nothing of the version is evicted until `release(owner)`, by any process, across restarts."""
        self._room.pin(owner, _names(manifest))

    def release(self, owner: str) -> None:
        """The owner pins nothing. An unknown one is no error."""
        self._room.release(owner)

    def pins(self) -> dict[str, frozenset[str]]:
        """Return owner → names it pins (`blob:<sha256>`, `code:<sha256>`)."""
        return self._room.owners()

    def prune(self, live_owners: Iterable[str]) -> list[str]:
        """Release every owner that is not alive, as a manager does after its start; return them."""
        orphans = sorted(self._room.owners().keys() - set(live_owners))
        for owner in orphans:
            self._room.release(owner)
        return orphans

    def used_bytes(self) -> int:
        """Return the bytes the cap counts: blobs, code, and what is being fetched."""
        return self._room.used_bytes()

    # filling ---------------------------------------------------------------------------------------------------------

    def _fill(self, manifest: Manifest) -> int:
        """Bring in what is missing, several files and several ranges at a time; return the bytes moved."""
        files = {file.sha256: file for file in manifest.weights}.values()
        for file in files:
            trees.safe_path(file.path)
        with (
            ThreadPoolExecutor(fetch.NUM_STREAMS, thread_name_prefix="range") as streams,
            ThreadPoolExecutor(fetch.NUM_STREAMS, thread_name_prefix="blob") as fillers,
        ):
            jobs = [fillers.submit(self._fill_code, manifest, streams)]
            jobs += [fillers.submit(self._fill_blob, manifest, file, streams) for file in files]
            fetched_bytes = sum(job.result() for job in jobs)
        self._link(manifest)
        return fetched_bytes

    def _fill_code(self, manifest: Manifest, streams: Executor) -> int:
        tree, staging = self._room.code_tree(manifest.code.sha256), self._room.staging
        with self._room.lock(code_name(tree.name)):
            listing = trees.read_listing(tree)
            mark = tree / trees.LISTING
            if listing is not None and trees.is_whole(tree, listing.files):
                if is_trusted(mark):
                    return 0
                if trees.is_intact(tree, listing.files):
                    trust(mark)
                    return 0
            trees.remove_tree(tree, staging)
            file = FileRef(path="", sha256=tree.name, size_bytes=manifest.code.size_bytes)
            archive = self._fetch(manifest, file, streams)
            try:
                trees.extract_code(archive, tree, staging)
            finally:
                archive.unlink(missing_ok=True)
            return file.size_bytes

    def _fill_blob(self, manifest: Manifest, file: FileRef, streams: Executor) -> int:
        blob = self._room.blob(file.sha256)
        with self._room.lock(blob_name(file.sha256)):
            if blob.exists():
                if is_trusted(blob) and blob.stat().st_size == file.size_bytes:
                    return 0
                if trees.file_sha256(blob) == file.sha256:
                    trust(blob)
                    return 0
                log.warning("%s: the cached %s is damaged; fetching it again", manifest.ref, file.path)
                self._room.drop_blob(file.sha256)
            fetched = self._fetch(manifest, file, streams)
            trust(fetched)
            fetched.replace(blob)
            return file.size_bytes

    def _fetch(self, manifest: Manifest, file: FileRef, streams: Executor) -> Path:
        """Return a new staging file with the blob's verified bytes; what arrives damaged is fetched once more."""
        failure: SamovarError | None = None
        for _ in range(MAX_ATTEMPTS):
            path = self._room.reserve(file.size_bytes)
            try:
                self._download(manifest, file, path, streams)
                return path
            except (StoreUnavailable, WeightsMissing) as error:
                path.unlink(missing_ok=True)
                log.warning("%s", error.detail)
                failure = error
            except BaseException:
                path.unlink(missing_ok=True)
                raise
        assert failure is not None
        raise failure

    def _download(self, manifest: Manifest, file: FileRef, path: Path, streams: Executor) -> None:
        key = blob_key(file.sha256)
        stored = self._store.head(key)
        if stored is None:
            raise _unusable(manifest, file, f"is missing in the object store ({key})")
        if stored.size_bytes != file.size_bytes:
            sizes = f"{stored.size_bytes} bytes instead of {file.size_bytes}"
            raise _unusable(manifest, file, f"is damaged in the object store: {key} has {sizes}")
        if fetch.download(self._store, key, file.size_bytes, path, streams) != file.sha256:
            raise _unusable(manifest, file, f"is damaged in the object store: {key} has another SHA-256")

    def _link(self, manifest: Manifest) -> None:
        if not manifest.weights:
            return
        tree = self._weights_tree(manifest)
        with self._room.lock(f"weights:{tree.name}"):
            blobs = [self._room.blob(file.sha256) for file in manifest.weights]
            if not all(_same_file(tree / trees.CONTENT / file.path, blob) for file, blob in _pairs(manifest, blobs)):
                trees.remove_tree(tree, self._room.staging)
                trees.link_weights(manifest.weights, blobs, tree, self._room.staging)

    def _weights_tree(self, manifest: Manifest) -> Path:
        return self._room.weights_tree(trees.tree_digest(manifest.weights))


def _pairs(manifest: Manifest, blobs: list[Path]) -> list[tuple[FileRef, Path]]:
    return list(zip(manifest.weights, blobs, strict=True))


def _same_file(one: Path, other: Path) -> bool:
    try:
        return one.samefile(other)
    except FileNotFoundError:
        return False


def _names(manifest: Manifest) -> list[str]:
    return [code_name(manifest.code.sha256), *(blob_name(file.sha256) for file in manifest.weights)]


def _unusable(manifest: Manifest, file: FileRef, problem: str) -> WeightsMissing:
    what = f"the weight file {file.path!r}" if file.path else "the code archive"
    return WeightsMissing(f"{manifest.ref}: {what} {problem}", function=manifest.name, file=file.path)
