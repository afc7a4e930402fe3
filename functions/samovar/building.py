"""What a version declares of its models, built on the author's machine in a process of its own, once per content.

    cache/samovar/builds/<digest>/built.json, .samovar/…      by code, weights, options and torch: a deploy without
                                                              changes builds nothing
    cache/samovar/layers/<digest>                             packages that its precision needs and that are not here:
                                                              for the build alone, as instances get them in a layer

This module does not know torch, uploads or how it is shown.
"""

from __future__ import annotations

import hashlib
import os
import platform
import re
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec

from samovar.acceleration.options import FOLDER, Acceleration, Built, requirements
from samovar.bundle import SourceFile, cache_folder
from samovar.errors import DeployRefused, LoadFailed
from samovar.layers import Layers, canonical
from samovar.spec import Manifest

BUILD_TIMEOUT_S = 1800.0
_REPORT = "built.json"


def build(manifest: Manifest, root: Path, weights: Sequence[SourceFile]) -> tuple[Built, list[SourceFile]]:
    """Return what a build of the version found, and the files it made, named as they lie among the weights.

    Args: manifest: with the content of code and weights. root: the project folder.
    Raises: DeployRefused with what the compiler, the exporter or the author's code said.
    """
    folder = cache_folder() / "builds" / _digest(manifest)
    if not (folder / _REPORT).is_file():
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=".building-", dir=folder.parent) as text:
            made = Path(text)
            for file in weights:
                place = made / file.name
                place.parent.mkdir(parents=True, exist_ok=True)
                place.symlink_to(file.path.resolve())
            report = _run(manifest, root, made)
            _keep(made, report, folder)
    built = msgspec.json.decode((folder / _REPORT).read_bytes(), type=Built)
    files = sorted((folder / FOLDER).iterdir())
    return built, [SourceFile(file, f"{FOLDER}/{file.name}", file.stat().st_size) for file in files]


def is_needed(acceleration: Acceleration) -> bool:
    """Return whether there is something to build or to measure."""
    return acceleration.is_built or acceleration.precision not in ("", "fp32")


def _keep(made: Path, report: bytes, folder: Path) -> None:
    """Put what was made where the next deploy finds it; another one may have been faster."""
    whole = made / "whole"
    whole.mkdir()
    (made / FOLDER).rename(whole / FOLDER)
    (whole / _REPORT).write_bytes(report)
    try:
        whole.rename(folder)
    except OSError:
        if not (folder / _REPORT).is_file():
            raise


def _run(manifest: Manifest, root: Path, weights: Path) -> bytes:
    """Return the report of the build. Raises: DeployRefused."""
    task = {
        "manifest": msgspec.to_builtins(manifest),
        "code": str(root),
        "weights": str(weights),
        "layers": _layers(manifest),
    }
    environment = {key: value for key, value in os.environ.items() if key != "SAMOVAR_API_KEY"}
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-m", "samovar_instance.build"],
            input=msgspec.json.encode(task),
            stdout=subprocess.PIPE,
            env=environment,
            timeout=BUILD_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        raise DeployRefused(f"building its models took longer than {BUILD_TIMEOUT_S / 60:.0f} minutes") from None
    if done.returncode == 0:
        return done.stdout
    raise _refusal(done.stdout, done.returncode)


def _layers(manifest: Manifest) -> list[str]:
    """Return the folders of packages that the version's precision needs and this environment lacks, installed now.

    What an engine or a compiler needs is not installed: it has to fit what else is on this machine.
    Raises: DeployRefused with what pip said and what to type.
    """
    if manifest.acceleration.is_built:
        return []
    missing = [each for each in requirements(manifest.acceleration, manifest.resources.gpus) if not _is_here(each)]
    if not missing:
        return []
    try:
        return [Layers(cache_folder() / "layers", BUILD_TIMEOUT_S).ensure(missing).folder]
    except LoadFailed as failed:
        typed = " ".join(f"'{each}'" for each in missing)
        raise DeployRefused(
            f"its precision is measured here and needs {', '.join(missing)}: {failed.detail}; try: pip install {typed}"
        ) from failed


def _is_here(requirement: str) -> bool:
    name = canonical(re.split(r"[^A-Za-z0-9._-]", requirement, maxsplit=1)[0])
    return any(True for _ in metadata.distributions(name=name))


def _refusal(said: bytes, returncode: int) -> DeployRefused:
    try:
        error: dict[str, Any] = msgspec.json.decode(said)["error"]
    except (msgspec.MsgspecError, KeyError, TypeError):
        return DeployRefused(f"building its models ended the process, exit code {returncode}")
    return DeployRefused(error["detail"], file=error.get("file", ""), line=error.get("line", 0))


def _digest(manifest: Manifest) -> str:
    """Return what tells this build from others, in hex."""
    try:
        torch = metadata.version("torch")
    except metadata.PackageNotFoundError:
        raise DeployRefused("what it declares of its models is built here, and torch is not installed") from None
    parts = [manifest.code, manifest.weights, manifest.acceleration, manifest.example, manifest.entry]
    parts += [manifest.resources.gpus, torch, platform.machine(), platform.node(), sys.version]
    return hashlib.sha256(msgspec.json.encode(parts)).hexdigest()
