"""One deploy, seen from the author's machine: inspect, pack, hash, plan, upload, create the version.

Bytes go straight to object storage through links the gateway signed; the API key is never sent there.
This module does not know how progress is shown, nor what the gateway does with what it gets.
"""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import msgspec

from samovar import building
from samovar.acceleration.options import Acceleration
from samovar.bundle import HashCache, SourceFile, code_files, hash_files, pack, refuse_pickles, weight_files
from samovar.client import Client
from samovar.errors import DeadlineExceeded, DeployRefused, rebuild
from samovar.inspection import Draft, Failure
from samovar.spec import BlobRef, FileRef, Manifest, check_name
from samovar.uploading import BlobPlan, OnBytes, Source, ignore_bytes, upload_all

INSPECT_TIMEOUT_S = 300.0
LIVE_TIMEOUT_S = 30.0
SERVING_TIMEOUT_S = 60.0
STATUS_TIMEOUT_S = 5.0  # a version that is up says how it runs on the next tick
CREATE_TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True)
class Package:
    """Everything a version consists of: its manifest, and where the bytes of each blob are on this machine."""

    manifest: Manifest
    sources: dict[str, Source]
    num_code_files: int


@dataclass(frozen=True, slots=True)
class Deployed:
    """A version that is live. url: its invoke address. warnings: what may not be meant, a sentence each."""

    name: str
    version: int
    url: str
    warnings: tuple[str, ...] = ()


def inspect(target: str) -> Draft:
    """Return the draft of "app.py" or "app.py:name", found by importing it in a process of its own.

    Raises: DeployRefused with file and line of what is wrong.
    """
    command = [sys.executable, "-P", "-m", "samovar.inspection", target]
    environment = {key: value for key, value in os.environ.items() if key != "SAMOVAR_API_KEY"}
    try:
        done = subprocess.run(  # noqa: S603
            command, stdout=subprocess.PIPE, env=environment, timeout=INSPECT_TIMEOUT_S, check=False
        )
    except subprocess.TimeoutExpired:
        raise DeployRefused(f"importing {target} took longer than {INSPECT_TIMEOUT_S:.0f} s") from None
    if done.returncode == 0:
        return msgspec.json.decode(done.stdout, type=Draft)
    try:
        failure = msgspec.json.decode(done.stdout, type=dict[str, Failure])["error"]
    except (msgspec.MsgspecError, KeyError):
        raise DeployRefused(f"importing {target} ended the process: {_ending(done.returncode)}") from None
    raise DeployRefused(failure.detail, file=failure.file, line=failure.line)


def prepare(
    draft: Draft,
    *,
    name: str | None = None,
    allow_pickle: bool = False,
    on_hashed: OnBytes = ignore_bytes,
    on_build: Callable[[Acceleration], object] = lambda _: None,
) -> Package:
    """Pack the code and hash the weights of `draft`; build what it declares of its models.

    Args:
        name: overrides the function's own. allow_pickle: accept formats that run code when read.
        on_hashed: told of weight bytes hashed, from several threads. on_build: told before something is built, which
        may take minutes.
    Raises: DeployRefused.
    """
    root = Path(draft.root)
    weights_path = Path(draft.weights) if draft.weights else None
    code, weights = code_files(root, weights_path), weight_files(weights_path, root) if weights_path else []
    if not allow_pickle:
        refuse_pickles([*weights, *code])
    archive = pack(code)
    ref = BlobRef(sha256=hashlib.sha256(archive).hexdigest(), size_bytes=len(archive))
    refs = hash_files(weights, HashCache(), on_hashed) if weights else []
    manifest = msgspec.structs.replace(
        draft.manifest,
        name=check_name(name or draft.manifest.name),
        code=ref,
        weights=refs,
        allow_pickle=allow_pickle,
    )
    if building.is_needed(manifest.acceleration):
        on_build(manifest.acceleration)
        built, made = building.build(manifest, root, weights)
        weights = [*weights, *made]
        refs = [*refs, *hash_files(made, HashCache())]
        manifest = msgspec.structs.replace(manifest, weights=refs, built=built)
    return Package(manifest, _sources(archive, ref, weights, refs), len(code))


def weight_bytes(draft: Draft) -> int:
    """Return how many bytes of weights `draft` has to hash."""
    return sum(file.size_bytes for file in weight_files(Path(draft.weights), Path(draft.root))) if draft.weights else 0


def plan(client: Client, package: Package, *, dry_run: bool = False) -> list[BlobPlan]:
    """Return for every distinct blob whether it is there already, else the links its parts go to.

    Args: dry_run: ask only; no upload is begun.
    """
    blobs = [{"sha256": source.sha256, "size_bytes": source.size_bytes} for source in package.sources.values()]
    body = msgspec.json.encode({"blobs": blobs, "dry_run": dry_run})
    response = client.request("POST", "/v1/uploads", body, timeout_s=CREATE_TIMEOUT_S)
    return msgspec.json.decode(response.content, type=_Plans).blobs


def upload(client: Client, package: Package, plans: list[BlobPlan], on_sent: OnBytes = ignore_bytes) -> int:
    """Upload what is missing and have it verified; return the number of bytes sent. Raises a SamovarError."""
    return upload_all(client, package.sources, [plan for plan in plans if not plan.present], on_sent)


def create(client: Client, package: Package, rollout: Mapping[str, str | int | float] | None = None) -> Deployed:
    """Make the version and wait until its route is live.

    Args: rollout: how it gets traffic, as the route `POST …/versions` takes it in its query; None = all of it.
    Raises: DeployRefused, Conflict; DeadlineExceeded if it is not live within 30 s.
    """
    manifest = package.manifest
    path = f"/v1/functions/{manifest.name}"
    query = f"?{urlencode(rollout)}" if rollout else ""
    body = msgspec.json.encode(manifest)
    response = client.request("POST", f"{path}/versions{query}", body, timeout_s=CREATE_TIMEOUT_S)
    made: dict[str, Any] = msgspec.json.decode(response.content)
    version = int(made["version"])
    _wait_until_live(client, path, version)
    return Deployed(manifest.name, version, f"{client.connection.url}{path}/invoke", tuple(made.get("warnings", ())))


def wait_until_serving(client: Client, deployed: Deployed, load_timeout_s: float) -> None:
    """Return once the gateway sends this function's calls where its route says: the version before, if it has ready
    instances, serves until its successor has come up. A function that is asleep has nothing to wait for.

    Raises: why the new version does not come up (the one before goes on serving); DeadlineExceeded after
        `load_timeout_s` and a minute.
    """
    ref = f"{deployed.name}@{deployed.version}"
    give_up_at_s = time.monotonic() + load_timeout_s + SERVING_TIMEOUT_S
    while (seen := _why(client, deployed.name))["serving"] != "target":
        if failure := seen["boot_failures"].get(ref):
            detail = f"{ref} does not come up, and what served before goes on: {failure['detail']}"
            raise rebuild(failure["code"], failure["status"], detail, {"log_tail": failure["log_tail"]})
        if time.monotonic() > give_up_at_s:
            raise DeadlineExceeded(f"{ref} has not come up yet; `samovar why {deployed.name}` says more", phase="boot")
        time.sleep(0.2)


def wait_until_loaded(client: Client, deployed: Deployed, load_timeout_s: float) -> None:
    """Have an instance of a version come up that nobody has called yet, and return once it takes calls; it leaves again
    when it has been idle. A version that gets no calls by its route is left alone.

    Raises: why it does not load; DeadlineExceeded after `load_timeout_s` and a minute.
    """
    ref, number = f"{deployed.name}@{deployed.version}", str(deployed.version)
    seen = _why(client, deployed.name)
    if seen["ready"].get(number) or not seen["route"]["shares"].get(number):
        return
    give_up_at_s = time.monotonic() + load_timeout_s + SERVING_TIMEOUT_S
    _warm(client, deployed.name, 1, load_timeout_s + SERVING_TIMEOUT_S)
    try:
        while not seen["ready"].get(number):
            if failure := seen["boot_failures"].get(ref):
                detail = f"{ref} does not load, and its calls will fail like this: {failure['detail']}"
                raise rebuild(failure["code"], failure["status"], detail, {"log_tail": failure["log_tail"]})
            if time.monotonic() > give_up_at_s:
                raise DeadlineExceeded(
                    f"{ref} has not come up yet; `samovar why {deployed.name}` says more", phase="boot"
                )
            time.sleep(0.2)
            seen = _why(client, deployed.name)
    finally:
        _warm(client, deployed.name, 0, 1.0)


def manner_of(client: Client, deployed: Deployed) -> str:
    """Return how an engine runs the model of a version that is up, in words; "" if it has none, or has not said yet."""
    ref, give_up_at_s = f"{deployed.name}@{deployed.version}", time.monotonic() + STATUS_TIMEOUT_S
    while time.monotonic() < give_up_at_s:
        seen = msgspec.json.decode(client.request("GET", f"/v1/functions/{deployed.name}").content)
        status = seen["status"].get(ref, {})
        if status.get("ready"):
            return str(status.get("manner", ""))
        time.sleep(0.2)
    return ""


def _warm(client: Client, name: str, instances: int, for_s: float) -> None:
    body = msgspec.json.encode({"instances": instances, "for_s": for_s})
    client.request("POST", f"/v1/functions/{name}/warm", body)


def _why(client: Client, name: str) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.json.decode(client.request("GET", f"/v1/functions/{name}/why").content)
    return found


def _wait_until_live(client: Client, path: str, version: int) -> None:
    give_up_at_s = time.monotonic() + LIVE_TIMEOUT_S
    while not _is_live(msgspec.json.decode(client.request("GET", path).content), version):
        if time.monotonic() > give_up_at_s:
            raise DeadlineExceeded(f"version {version} exists, but no gateway routes to it yet", phase="boot")
        time.sleep(0.1)


def _is_live(function: dict[str, Any], version: int) -> bool:
    """Return whether the function's route knows `version`, whatever traffic it gives it."""
    return int(function["route"]["latest"]) >= version


class _Plans(msgspec.Struct):
    blobs: list[BlobPlan]


def _sources(archive: bytes, code: BlobRef, files: list[SourceFile], refs: list[FileRef]) -> dict[str, Source]:
    """Return the sources by SHA-256: equal files are one blob."""
    sources = {code.sha256: Source(code.sha256, code.size_bytes, "code", archive)}
    for file, ref in zip(files, refs, strict=True):
        sources.setdefault(ref.sha256, Source(ref.sha256, ref.size_bytes, ref.path, file.path))
    return sources


def _ending(returncode: int) -> str:
    if returncode >= 0:
        return f"exit code {returncode}"
    try:
        return f"signal {signal.Signals(-returncode).name}"
    except ValueError:
        return f"signal {-returncode}"
