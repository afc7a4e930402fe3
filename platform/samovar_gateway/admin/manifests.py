"""What a manifest must satisfy to become a version: the client is never trusted.

This module does not know HTTP, object storage or what is already deployed.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Container, Iterator, Sequence
from pathlib import PurePosixPath

from samovar.errors import DeployRefused
from samovar.policies import check_hedge
from samovar.spec import MANIFEST_FORMAT, BlobRef, Manifest, check_name
from samovar_storage.records import NodeStatus

PICKLE_SUFFIXES = frozenset({".bin", ".pt", ".pth", ".pkl", ".pickle", ".ckpt", ".joblib"})
MAX_CODE_BYTES = 512 * 1024 * 1024
MAX_WEIGHT_FILES = 4096
MAX_REQUIREMENTS = 200
SHA256_PATTERN = re.compile(r"^[0-9a-f]{64}\Z")
ENTRY_PATTERN = re.compile(r"^[A-Za-z_]\w*(\.[A-Za-z_]\w*)*:[A-Za-z_]\w*\Z", re.ASCII)


def _require(condition: bool, rule: str, **extra: str) -> None:
    if not condition:
        raise DeployRefused(rule, retry_after_s=None, **extra)


def check_manifest(name: str, manifest: Manifest) -> None:
    """Raise DeployRefused with the rule that `manifest` breaks, if it breaks one.

    Args:
        name: the function's name in the URL.
        manifest: what the client sent; its version must be 0, because the platform numbers versions.
    """
    check_name(name)
    _require(manifest.name == name, f"the manifest is for {manifest.name!r}, the address for {name!r}")
    _require(manifest.version == 0, "the platform numbers versions: send version 0")
    _require(
        manifest.format == MANIFEST_FORMAT,
        f"manifest format {manifest.format} is not {MANIFEST_FORMAT}: use a samovar of the platform's version",
    )
    _require(bool(ENTRY_PATTERN.match(manifest.entry)), f"entry {manifest.entry!r} is not module:attribute")
    _check_batch(manifest)
    _check_code(manifest)
    _check_weights(manifest)
    _check_requirements(manifest)
    if manifest.hedge_after is not None:
        check_hedge(manifest.hedge_after)
    fallback = manifest.fallback
    _require(fallback is None or fallback.function != name, "Fallback: a function cannot stand in for itself")


def warnings_of(manifest: Manifest, functions: Container[str]) -> list[str]:
    """Return what is allowed, but perhaps not meant. functions: names that exist."""
    other = manifest.fallback.function if manifest.fallback is not None else None
    found = []
    if other is not None and other not in functions:
        found.append(f"there is no function {other!r} yet: until there is, the fallback to it is passed over")
    if "generator" in manifest.handler:
        found += _warnings_of_stream(manifest)
    elif manifest.hedge_after is not None and not manifest.retry_on_crash:
        found.append("hedge_after has no effect with retry_on_crash=False: a copy is a second run, too")
    elif manifest.hedge_after is not None and manifest.scaling.max_instances == 1:
        found.append("hedge_after has no effect with one instance: a copy goes to another one")
    return found


def warnings_of_place(manifest: Manifest, nodes: Sequence[NodeStatus]) -> list[str]:
    """Return what keeps its instances from starting as the platform is now. nodes: those heard of."""
    num_gpus = manifest.resources.gpus
    most = max((len(node.devices) for node in nodes), default=0)
    if not nodes or num_gpus <= most:
        return []
    has = f"the largest has {most}" if most else "none has any"
    return [f"an instance needs {num_gpus} GPU{'s' * (num_gpus > 1)}, and of the nodes {has}: calls are refused (503)"]


def _warnings_of_stream(manifest: Manifest) -> Iterator[str]:
    if manifest.cache is not None or (manifest.fallback is not None and manifest.fallback.cached is not None):
        yield "the answers of a generator are not kept: its cache or cached fallback has no effect"
    if manifest.hedge_after is not None:
        yield "hedge_after has no effect on a generator: a stream is not sent twice"


def blobs_of(manifest: Manifest) -> list[BlobRef]:
    """Return every distinct blob the version needs, code first."""
    refs = [manifest.code, *(BlobRef(sha256=file.sha256, size_bytes=file.size_bytes) for file in manifest.weights)]
    return list(dict.fromkeys(refs))


def check_sha256(sha256: str) -> str:
    """Return `sha256` if it is one: 64 lower-case hexadecimal digits."""
    _require(bool(SHA256_PATTERN.match(sha256)), f"{sha256[:80]!r} is not a SHA-256 in lower-case hexadecimal")
    return sha256


def _check_batch(manifest: Manifest) -> None:
    batch = manifest.batch
    if batch is None:
        return
    _require(batch.max_size >= 1, "Batch: max_size >= 1")
    _require(batch.max_wait_ms >= 0, "Batch: max_wait_ms >= 0")
    _require(batch.max_cost is None or batch.max_cost > 0, "Batch: max_cost > 0")
    _require(batch.max_tokens is None or batch.max_tokens >= 1, "Batch: max_tokens >= 1")
    _require(batch.max_padding >= 0, "Batch: max_padding >= 0")
    _require(manifest.handler in ("sync", "async"), "a generator cannot be batched")


def _check_code(manifest: Manifest) -> None:
    check_sha256(manifest.code.sha256)
    _require(
        0 < manifest.code.size_bytes <= MAX_CODE_BYTES,
        f"the code archive has {manifest.code.size_bytes} bytes; 1 to {MAX_CODE_BYTES} are allowed",
    )


def _check_weights(manifest: Manifest) -> None:
    _require(len(manifest.weights) <= MAX_WEIGHT_FILES, f"more than {MAX_WEIGHT_FILES} weight files")
    for file in manifest.weights:
        check_sha256(file.sha256)
        _require(file.size_bytes >= 0, f"weight file {file.path!r} has a negative size", file=file.path)
        _check_weight_path(file.path)
        suffix = PurePosixPath(file.path).suffix.lower()
        _require(
            manifest.allow_pickle or suffix not in PICKLE_SUFFIXES,
            f"{file.path} may hold pickled data, and unpickling runs whatever code its author put there: convert it to "
            "safetensors, or deploy with --allow-pickle if you trust every byte of it",
            file=file.path,
        )
    twice = [path for path, count in Counter(file.path for file in manifest.weights).items() if count > 1]
    _require(not twice, f"weight file {twice[:1]} is listed twice")


def _check_weight_path(path: str) -> None:
    parts = path.split("/")
    sane = path and "\\" not in path and "\0" not in path and not any(part in ("", ".", "..") for part in parts)
    _require(bool(sane), f"weight path {path!r} must be relative, without '.', '..' or empty parts", file=path)


def _check_requirements(manifest: Manifest) -> None:
    _require(len(manifest.requirements) <= MAX_REQUIREMENTS, f"more than {MAX_REQUIREMENTS} requirements")
    for requirement in manifest.requirements:
        sane = requirement.strip() and not requirement.lstrip().startswith("-") and requirement.isprintable()
        _require(bool(sane), f"{requirement!r} is not a requirement pip can be given; options are not allowed")
