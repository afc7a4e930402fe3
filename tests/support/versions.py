"""Versions made of a few bytes, stored as a deploy would store them."""

from __future__ import annotations

import hashlib
import io
import tarfile
from collections.abc import Mapping

from samovar.spec import BlobRef, FileRef, Manifest
from samovar_storage.blobs import blob_key
from samovar_storage.objects import ObjectStore


def sha256(data: bytes) -> str:
    """Return the SHA-256 of `data` (hex)."""
    return hashlib.sha256(data).hexdigest()


def tar(files: Mapping[str, bytes]) -> bytes:
    """Return an uncompressed tar archive of the files."""
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, data in files.items():
            info = tarfile.TarInfo(name)
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def store_version(
    store: ObjectStore,
    name: str = "embed",
    version: int = 1,
    code: Mapping[str, bytes] | None = None,
    weights: Mapping[str, bytes] | None = None,
) -> Manifest:
    """Store the blobs of a version and return its manifest (which is not stored)."""
    archive = tar(code if code is not None else {"app.py": b"def handler(x):\n    return x\n"})
    contents = dict(weights or {})
    for data in (archive, *contents.values()):
        store.put(blob_key(sha256(data)), data)
    return Manifest(
        name=name,
        version=version,
        entry="app:handler",
        kind="function",
        handler="sync",
        code=BlobRef(sha256=sha256(archive), size_bytes=len(archive)),
        weights=[FileRef(path=path, sha256=sha256(data), size_bytes=len(data)) for path, data in contents.items()],
    )
