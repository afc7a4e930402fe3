"""Uploads of content-addressed blobs: clients write straight to object storage, through presigned URLs.

| size          | how                                                                    |
|---------------|------------------------------------------------------------------------|
| <= 16 MiB     | one PUT of `blobs/<sha256>`                                            |
| above         | a multipart upload of 16, 32 or 64 MiB parts, its id in `sv:upload:{sha256}` for 24 h |

A blob counts only once its stored bytes were hashed here: then `verified/<sha256>` holds their size and etag.
Asking for a plan again resumes: parts that arrived are named in `done_parts`, and a verified blob is `present`. A
presigned URL outlives the verification: a blob that was overwritten has another etag, so it counts as not verified, and
nodes verify what they fetch.
This module does not know who uploads, or what the bytes mean.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec
import redis as redis_sync

from samovar.errors import InvalidInput, NotFound
from samovar.spec import BlobRef
from samovar.values import Struct
from samovar_storage import keys
from samovar_storage.failures import translating
from samovar_storage.objects import ObjectInfo, ObjectStore, Part
from samovar_storage.records import dumps, loads

MIB = 1024 * 1024
MAX_SINGLE_BYTES = 16 * MIB
PART_BYTES = (16 * MIB, 32 * MIB, 64 * MIB)
# Small parts while there are few of them: a lost connection costs less. No store takes more than 10,000.
MAX_SMALL_PARTS = 64
MAX_PARTS = 10_000
MAX_BLOBS_PER_PLAN = 1_000
_SHA256 = re.compile(r"^[0-9a-f]{64}\Z")


class PartUrl(Struct, frozen=True, kw_only=True):
    """A part still to be sent: PUT bytes [(number - 1) * part_bytes, number * part_bytes) to the URL."""

    number: int
    url: str


class DonePart(Struct, frozen=True, kw_only=True):
    """A part that has arrived."""

    number: int
    etag: str


class UploadPlan(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What is left to do for one blob; nothing if it is present."""

    sha256: str
    present: bool
    part_bytes: int = 0
    num_parts: int = 0
    parts: list[PartUrl] = msgspec.field(default_factory=list)
    done_parts: list[DonePart] = msgspec.field(default_factory=list)


class _Upload(Struct, frozen=True, kw_only=True):
    upload_id: str
    size_bytes: int


def blob_key(sha256: str) -> str:
    """Return where a blob is in object storage."""
    return f"blobs/{sha256}"


def verified_key(sha256: str) -> str:
    """Return the marker that says a blob's stored bytes were hashed."""
    return f"verified/{sha256}"


def part_bytes(size_bytes: int) -> int:
    """Return the part size of a blob: all of it up to 16 MiB, else 16, 32 or 64 MiB. Raises InvalidInput (> 640 GB)."""
    if size_bytes <= MAX_SINGLE_BYTES:
        return max(1, size_bytes)
    for size in PART_BYTES:
        if size_bytes <= size * MAX_SMALL_PARTS:
            return size
    if size_bytes > PART_BYTES[-1] * MAX_PARTS:
        raise InvalidInput(f"a file may have at most {PART_BYTES[-1] * MAX_PARTS} bytes", path="$.size_bytes")
    return PART_BYTES[-1]


class Blobs:
    """Plans and completes uploads. Blocking: for worker threads; safe to share between them."""

    def __init__(self, store: ObjectStore, redis: redis_sync.Redis) -> None:
        self._store = store
        self._redis = redis

    def plan(self, blobs: Sequence[BlobRef]) -> list[UploadPlan]:
        """Return, per blob in order, what is still to be uploaded. Raises InvalidInput (a hash, a size, too many)."""
        if len(blobs) > MAX_BLOBS_PER_PLAN:
            raise InvalidInput(f"at most {MAX_BLOBS_PER_PLAN} blobs at a time", path="$.blobs")
        for index, blob in enumerate(blobs):
            _check(blob, f"$.blobs[{index}]")
        return [self._plan(blob) for blob in blobs]

    def complete(self, sha256: str, size_bytes: int) -> None:
        """The blob is stored, hashed and marked as verified. May be called again.

        Raises: InvalidInput when bytes are missing, or are others than promised: then they are deleted.
        """
        blob = BlobRef(sha256=sha256, size_bytes=size_bytes)
        _check(blob, "$")
        if self.is_present(blob):
            return
        if size_bytes > MAX_SINGLE_BYTES:
            self._assemble(blob)
        self._verify(blob)

    def is_present(self, blob: BlobRef) -> bool:
        """Return whether the blob's stored bytes were verified and have not been replaced since."""
        try:
            marker, _ = self._store.get(verified_key(blob.sha256))
        except NotFound:
            return False
        info = self._store.head(blob_key(blob.sha256))
        return info is not None and info.size_bytes == blob.size_bytes and marker == _marker(info)

    def _plan(self, blob: BlobRef) -> UploadPlan:
        if self.is_present(blob):
            return UploadPlan(sha256=blob.sha256, present=True)
        size = part_bytes(blob.size_bytes)
        num_parts = max(1, -(-blob.size_bytes // size))
        info = self._store.head(blob_key(blob.sha256))
        if info is not None and info.size_bytes == blob.size_bytes:
            # all bytes arrived, but nobody asked to verify them: only `complete` is left
            done, urls = {number: info.etag for number in range(1, num_parts + 1)}, {}
        elif blob.size_bytes <= MAX_SINGLE_BYTES:
            done, urls = {}, {1: self._store.presign_put(blob_key(blob.sha256))}
        else:
            done, urls = self._multipart(blob, size, num_parts)
        return UploadPlan(
            sha256=blob.sha256,
            present=False,
            part_bytes=size,
            num_parts=num_parts,
            parts=[PartUrl(number=number, url=url) for number, url in urls.items()],
            done_parts=[DonePart(number=number, etag=etag) for number, etag in done.items()],
        )

    def _multipart(self, blob: BlobRef, size: int, num_parts: int) -> tuple[dict[int, str], dict[int, str]]:
        """Return the parts that have arrived (number → etag) and the URLs of the others."""
        key = blob_key(blob.sha256)
        upload_id = self._upload_id(blob)
        done = {
            part.number: part.etag
            for part in self._store.list_parts(key, upload_id)
            if part.size_bytes == _part_size(blob.size_bytes, size, part.number)
        }
        missing = [number for number in range(1, num_parts + 1) if number not in done]
        return done, {number: self._store.presign_part(key, upload_id, number) for number in missing}

    def _upload_id(self, blob: BlobRef) -> str:
        """Return the id of this blob's upload in progress, started if there is none; all clients share it."""
        key = blob_key(blob.sha256)
        current = self._current(blob)
        if current is not None:
            if current.size_bytes == blob.size_bytes and self._is_known(key, current.upload_id):
                return current.upload_id
            self._forget(blob)
        upload = _Upload(upload_id=self._store.start_multipart(key), size_bytes=blob.size_bytes)
        with translating("the upload"):
            ours = self._redis.set(keys.upload(blob.sha256), dumps(upload), nx=True, ex=keys.UPLOAD_LIFETIME_S)
        if ours:
            return upload.upload_id
        self._store.abort_multipart(key, upload.upload_id)
        winner = self._current(blob)
        if winner is None or winner.size_bytes != blob.size_bytes:
            raise InvalidInput(f"another upload of {blob.sha256} with another size is going on", path="$.size_bytes")
        return winner.upload_id

    def _assemble(self, blob: BlobRef) -> None:
        """Make the object of its parts, if that has not happened yet."""
        key, current = blob_key(blob.sha256), self._current(blob)
        if current is None:
            return
        try:
            parts = self._store.list_parts(key, current.upload_id)
            _check_parts(parts, blob)
            self._store.complete_multipart(key, current.upload_id, parts)
        except NotFound:
            # another client completed it; whether the object is there is checked next
            pass
        self._forget(blob)

    def _verify(self, blob: BlobRef) -> None:
        key = blob_key(blob.sha256)
        # the etag is from before: what replaces the bytes while they are hashed has another one
        info = self._store.head(key)
        if info is None:
            raise InvalidInput(f"nothing was uploaded for {blob.sha256}; ask for a plan again")
        sha256, size_bytes = self._store.sha256(key)
        if (sha256, size_bytes) != (blob.sha256, blob.size_bytes):
            self._store.delete(key)
            raise InvalidInput(
                f"the {size_bytes} bytes that arrived have the SHA-256 {sha256}, not {blob.sha256}; they were deleted"
            )
        self._store.put(verified_key(blob.sha256), _marker(info))

    def _current(self, blob: BlobRef) -> _Upload | None:
        with translating("the upload"):
            data = self._redis.get(keys.upload(blob.sha256))
        return loads(data, _Upload) if data is not None else None

    def _forget(self, blob: BlobRef) -> None:
        with translating("the upload"):
            self._redis.delete(keys.upload(blob.sha256))

    def _is_known(self, key: str, upload_id: str) -> bool:
        try:
            self._store.list_parts(key, upload_id)
        except NotFound:
            return False
        return True


def _marker(info: ObjectInfo) -> bytes:
    return f"{info.size_bytes} {info.etag}".encode()


def _part_size(size_bytes: int, part_size: int, number: int) -> int:
    return min(part_size, size_bytes - (number - 1) * part_size)


def _check_parts(parts: Sequence[Part], blob: BlobRef) -> None:
    size = part_bytes(blob.size_bytes)
    arrived = {part.number: part.size_bytes for part in parts}
    for number in range(1, -(-blob.size_bytes // size) + 1):
        if arrived.get(number) != _part_size(blob.size_bytes, size, number):
            raise InvalidInput(f"part {number} of {blob.sha256} is missing or has the wrong size")


def _check(blob: BlobRef, path: str) -> None:
    if not _SHA256.match(blob.sha256):
        raise InvalidInput("sha256 must be 64 lower-case hex digits", path=f"{path}.sha256")
    if blob.size_bytes < 0:
        raise InvalidInput("size_bytes must be 0 or more", path=f"{path}.size_bytes")
    part_bytes(blob.size_bytes)
