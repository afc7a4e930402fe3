"""The object store: one bucket of any S3, through boto3. Synchronous and safe to share between threads.

Every call has a connect and a read timeout and a bounded number of attempts; every failure is one of ours
(`failures.py`). Conditional puts (`If-None-Match: *`, `If-Match`) are the only way two writers are kept apart: with
SeaweedFS 4.48 exactly one of any number of writers wins (tests/contract/test_storage_objects.py), though a
contended one may wait some seconds for the store's own lock.
This module does not know what the keys mean.
"""

from __future__ import annotations

import hashlib
import os
import uuid
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from threading import Lock
from typing import Any

import boto3
from botocore.config import Config

from samovar.errors import ConfigError, Conflict, NotFound, StoreUnavailable
from samovar_storage.failures import translating
from samovar_storage.settings import StoreSettings

CONNECT_TIMEOUT_S = 3
READ_TIMEOUT_S = 20
MAX_ATTEMPTS = 3
MAX_CONNECTIONS = 32
CHUNK_BYTES = 4 * 1024 * 1024
COPY_BYTES = 256 * 1024
PRESIGNED_LIFETIME_S = 3600


@dataclass(frozen=True, slots=True)
class ObjectInfo:
    """What a HEAD or a listing tells of one object."""

    key: str
    size_bytes: int
    etag: str


@dataclass(frozen=True, slots=True)
class Part:
    """One uploaded part of a multipart upload; `number` starts at 1."""

    number: int
    etag: str
    size_bytes: int = 0


class ObjectStore:
    """One bucket. Holds a connection pool of up to 32 connections and no other state."""

    def __init__(self, client: Any, bucket: str) -> None:
        self._client = client
        self.bucket = bucket

    @classmethod
    def from_settings(cls, settings: StoreSettings) -> ObjectStore:
        """Return a store for the settings' endpoint and bucket; nothing is connected yet.

        With no access key the usual AWS chain (profile, instance role) is asked.
        """
        config = Config(
            connect_timeout=CONNECT_TIMEOUT_S,
            read_timeout=READ_TIMEOUT_S,
            retries={"total_max_attempts": MAX_ATTEMPTS, "mode": "standard"},
            max_pool_connections=MAX_CONNECTIONS,
            signature_version="s3v4",
            # other stores than AWS know neither virtual hosts on an IP nor trailing checksums
            s3={"addressing_style": "path"},
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            tcp_keepalive=True,
        )
        keys: dict[str, Any] = {}
        if settings.s3_access_key:
            keys = {
                "aws_access_key_id": settings.s3_access_key.reveal(),
                "aws_secret_access_key": settings.s3_secret_key.reveal(),
            }
        with translating("the object store's settings"):
            client = boto3.session.Session().client(
                "s3", endpoint_url=settings.s3_endpoint or None, region_name=settings.s3_region, config=config, **keys
            )
        return cls(client, settings.s3_bucket)

    def ping(self) -> None:
        """Return if the store answers with these credentials. Raises StoreUnavailable, BadCredential."""
        with translating("the object store"):
            self._client.list_buckets()

    def ensure_bucket(self) -> None:
        """The bucket exists afterwards, and keeps conditional writers apart.

        Raises: BadCredential, StoreUnavailable, ConfigError (an impossible name, a store that ignores conditions).
        """
        with translating(f"the bucket {self.bucket}"):
            if not self._bucket_exists():
                try:
                    self._client.create_bucket(Bucket=self.bucket)
                except (self._client.exceptions.BucketAlreadyOwnedByYou, self._client.exceptions.BucketAlreadyExists):
                    pass
        self._require_conditions()

    def get(self, key: str) -> tuple[bytes, str]:
        """Return an object's bytes and etag. For small objects: all of it is held in memory. Raises NotFound."""
        with translating(f"the object {key}"):
            answer = self._client.get_object(Bucket=self.bucket, Key=key)
            return answer["Body"].read(), answer["ETag"]

    def put(self, key: str, data: bytes, *, if_absent: bool = False, if_match: str | None = None) -> str:
        """Store `data` under `key` and return its etag.

        Args:
            if_absent: only if no such object exists.
            if_match: only if the object's etag is still this one.
        Raises: Conflict when the condition does not hold. After StoreUnavailable the object may or may not be there;
        a retried conditional put may also report Conflict with its own first attempt: compare the bytes.
        """
        condition: dict[str, Any] = {}
        if if_absent:
            condition["IfNoneMatch"] = "*"
        if if_match is not None:
            condition["IfMatch"] = if_match
        with translating(f"the object {key}"):
            return str(self._client.put_object(Bucket=self.bucket, Key=key, Body=data, **condition)["ETag"])

    def head(self, key: str) -> ObjectInfo | None:
        """Return an object's size and etag, or None if there is none."""
        try:
            with translating(f"the object {key}"):
                answer = self._client.head_object(Bucket=self.bucket, Key=key)
        except NotFound:
            return None
        return ObjectInfo(key, answer["ContentLength"], answer["ETag"])

    def delete(self, key: str) -> None:
        """No object is under `key` afterwards; an absent one is no error."""
        with translating(f"the object {key}"):
            self._client.delete_object(Bucket=self.bucket, Key=key)

    def list(self, prefix: str) -> Iterator[ObjectInfo]:
        """Yield every object whose key starts with `prefix`, in key order, a page of 1,000 at a time."""
        pages = self._client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=prefix)
        with translating(f"the objects under {prefix}"):
            for page in pages:
                for item in page.get("Contents", ()):
                    yield ObjectInfo(item["Key"], item["Size"], item["ETag"])

    def read_chunks(self, key: str, chunk_bytes: int = CHUNK_BYTES, offset: int = 0, etag: str = "") -> Iterator[bytes]:
        """Yield an object's bytes in order, from `offset` (before its end) on.

        Raises, before the first: NotFound; Conflict if the object has another etag than the one given.
        """
        where: dict[str, str] = {"Range": f"bytes={offset}-"} if offset else {}
        if etag:
            where["IfMatch"] = etag
        with translating(f"the object {key}"):
            body = self._client.get_object(Bucket=self.bucket, Key=key, **where)["Body"]
            with body:
                yield from body.iter_chunks(chunk_bytes)

    def sha256(self, key: str) -> tuple[str, int]:
        """Return the SHA-256 (hex) and size of the stored bytes, streamed in constant memory. Raises NotFound."""
        digest, size_bytes = hashlib.sha256(), 0
        for chunk in self.read_chunks(key):
            digest.update(chunk)
            size_bytes += len(chunk)
        return digest.hexdigest(), size_bytes

    def copy_range(self, key: str, offset: int, length: int, descriptor: int, writing: Lock) -> None:
        """Write the object's bytes [offset, offset + length) to the same place in an open file.

        They pass through memory in pieces that stay in the processor's cache (docs/node-cache.md).

        Args:
            writing: held for each write.
        Raises: NotFound; DiskFull; StoreUnavailable when the object ends early.
        """
        landed = 0
        with translating(f"the object {key}"), self._range(key, offset, length) as body:
            while landed < length and (piece := body.read(min(COPY_BYTES, length - landed))):
                with writing:
                    _write_all(descriptor, memoryview(piece), offset + landed)
                landed += len(piece)
        _require_all(key, landed, length)

    def presign_put(self, key: str, lifetime_s: int = PRESIGNED_LIFETIME_S) -> str:
        """Return a URL to which anyone may PUT this one object until it expires."""
        return self._presign("put_object", {"Key": key}, lifetime_s)

    def presign_get(self, key: str, lifetime_s: int = PRESIGNED_LIFETIME_S, content_type: str = "") -> str:
        """Return a URL from which anyone may read this one object until it expires, as `content_type` if given."""
        kind = {"ResponseContentType": content_type} if content_type else {}
        return self._presign("get_object", {"Key": key, **kind}, lifetime_s)

    def start_multipart(self, key: str) -> str:
        """Return the id of a new multipart upload."""
        with translating(f"the upload of {key}"):
            return str(self._client.create_multipart_upload(Bucket=self.bucket, Key=key)["UploadId"])

    def presign_part(self, key: str, upload_id: str, number: int, lifetime_s: int = PRESIGNED_LIFETIME_S) -> str:
        """Return a URL to which anyone may PUT part `number` (>= 1) of an upload until it expires."""
        return self._presign("upload_part", {"Key": key, "UploadId": upload_id, "PartNumber": number}, lifetime_s)

    def list_parts(self, key: str, upload_id: str) -> tuple[Part, ...]:
        """Return the parts that have arrived, in order. Raises NotFound when the upload is not known any more."""
        with translating(f"the upload of {key}"):
            pages = self._client.get_paginator("list_parts").paginate(Bucket=self.bucket, Key=key, UploadId=upload_id)
            return tuple(
                Part(part["PartNumber"], part["ETag"], part["Size"]) for page in pages for part in page.get("Parts", ())
            )

    def complete_multipart(self, key: str, upload_id: str, parts: tuple[Part, ...]) -> None:
        """The parts, in order, are the object afterwards. Raises NotFound (upload), InvalidInput (a part)."""
        listed = [{"PartNumber": part.number, "ETag": part.etag} for part in sorted(parts, key=lambda p: p.number)]
        with translating(f"the upload of {key}"):
            self._client.complete_multipart_upload(
                Bucket=self.bucket,
                Key=key,
                UploadId=upload_id,
                MultipartUpload={"Parts": listed},
            )

    def abort_multipart(self, key: str, upload_id: str) -> None:
        """The upload and its parts are gone afterwards; an unknown one is no error."""
        try:
            with translating(f"the upload of {key}"):
                self._client.abort_multipart_upload(Bucket=self.bucket, Key=key, UploadId=upload_id)
        except NotFound:
            return

    def close(self) -> None:
        """Close the pooled connections."""
        self._client.close()

    def _bucket_exists(self) -> bool:
        try:
            self._client.head_bucket(Bucket=self.bucket)
        except self._client.exceptions.ClientError as error:
            if error.response["ResponseMetadata"]["HTTPStatusCode"] != 404:
                raise
            return False
        return True

    def _require_conditions(self) -> None:
        """Try a put that must fail. A store that lets it pass would lose one of two deploys without a word."""
        key = f"probes/{uuid.uuid4().hex}"
        self.put(key, b"first")
        try:
            self.put(key, b"second", if_absent=True)
        except Conflict:
            return
        finally:
            self.delete(key)
        raise ConfigError(f"the store of bucket {self.bucket} ignores conditional puts (If-None-Match); use another")

    def _range(self, key: str, offset: int, length: int) -> Any:
        """Return the body of a range request, a context manager that closes it."""
        last = offset + length - 1
        return self._client.get_object(Bucket=self.bucket, Key=key, Range=f"bytes={offset}-{last}")["Body"]

    def _presign(self, operation: str, params: Mapping[str, Any], lifetime_s: int) -> str:
        with translating("a presigned URL"):
            return str(
                self._client.generate_presigned_url(
                    operation, Params={"Bucket": self.bucket, **params}, ExpiresIn=lifetime_s
                )
            )


def put_or_same(store: ObjectStore, key: str, data: bytes) -> bool:
    """Put `data` if absent. Return False if another object is there; True if it is ours or holds the same bytes.

    The comparison makes a put whose answer was lost, and which was tried again, count as the success it was.
    """
    try:
        store.put(key, data, if_absent=True)
    except Conflict:
        return store.get(key)[0] == data
    return True


def _write_all(descriptor: int, data: memoryview, offset: int) -> None:
    while data:
        written = os.pwrite(descriptor, data, offset)
        data, offset = data[written:], offset + written


def _require_all(key: str, landed: int, wanted: int) -> None:
    if landed < wanted:
        raise StoreUnavailable(f"the object {key} ended {wanted - landed} bytes early")
