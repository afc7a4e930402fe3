"""Layers: extra pip requirements, a function's or a build's, installed once into a content-addressed folder.

pip first says what the requirements would add to this environment (so that torch is not installed again), then exactly
that is installed with `--no-deps --target`. A layer that replaces something the zygote has already imported cannot be
put in front of `sys.path` after the fork: it gets a zygote of its own. This module does not know versions or instances.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable
from importlib import metadata
from pathlib import Path
from typing import Any

import msgspec

from samovar.errors import LoadFailed
from samovar.values import Struct

TAIL_LINES = 20
# What a zygote imports; their own requirements count as imported too.
ZYGOTE_ROOTS = ("samovar", "torch", "transformers", "safetensors", "tokenizers", "numpy", "uvloop")


class Layer(Struct, frozen=True, kw_only=True):
    """key: digest of the requirements. folder: what goes in front of `sys.path`. conflicts: distributions that the
    zygote has imported in another version; with any, the layer needs a zygote of its own."""

    key: str
    folder: str
    conflicts: tuple[str, ...] = ()


def layer_key(requirements: Iterable[str], python: str = sys.version.split()[0]) -> str:
    """Return the content address of a set of requirements for one Python."""
    text = "\n".join([python, *sorted(r.strip() for r in requirements)])
    return hashlib.sha256(text.encode()).hexdigest()[:32]


def canonical(name: str) -> str:
    """Return a distribution's name as pip compares it."""
    return re.sub(r"[-_.]+", "-", name).lower()


def conflicts(additions: dict[str, str], imported: dict[str, str]) -> list[str]:
    """Return the distributions that `additions` (name → version) would replace although the zygote imported them."""
    return sorted(name for name, version in additions.items() if imported.get(name, version) != version)


def imported_distributions(roots: Iterable[str] = ZYGOTE_ROOTS) -> dict[str, str]:
    """Return name → version of what a zygote may have imported: the roots and, transitively, what they require."""
    found: dict[str, str] = {}
    waiting = [canonical(root) for root in roots]
    while waiting:
        name = waiting.pop()
        if name in found:
            continue
        try:
            distribution = metadata.distribution(name)
        except metadata.PackageNotFoundError:
            continue
        found[name] = distribution.version
        required = [r for r in distribution.requires or () if "extra ==" not in r]
        waiting += [canonical(re.split(r"[^A-Za-z0-9._-]", r, maxsplit=1)[0]) for r in required]
    return found


class Layers:
    """The layers of one node. Thread-safe: the same layer is installed once, across threads and processes."""

    def __init__(self, root: Path, timeout_s: float) -> None:
        self._root = root
        self._timeout_s = timeout_s
        root.mkdir(parents=True, exist_ok=True, mode=0o700)
        for unfinished in root.glob("new-*"):  # of a manager that was killed; there is one manager per folder
            shutil.rmtree(unfinished, ignore_errors=True)

    def lookup(self, requirements: list[str]) -> Layer | None:
        """Return the layer if it is installed."""
        try:
            return msgspec.json.decode((self._root / layer_key(requirements) / "layer.json").read_bytes(), type=Layer)
        except (OSError, msgspec.MsgspecError):
            return None

    def ensure(self, requirements: list[str]) -> Layer:
        """Return the layer, installing it first if need be. Blocks. Raises LoadFailed with the tail of pip's output."""
        key = layer_key(requirements)
        with open(self._root / f"{key}.lock", "ab") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            return self.lookup(requirements) or self._install(key, requirements)

    def _install(self, key: str, requirements: list[str]) -> Layer:
        with tempfile.TemporaryDirectory(dir=self._root, prefix="new-") as folder:
            work = Path(folder)
            additions = self._resolve(work, requirements)
            packages = work / "layer"
            packages.mkdir()
            if additions:
                self._run_pip(
                    work, ["--no-deps", "--target", str(packages)], [a["download_info"]["url"] for a in additions]
                )
            replaced = conflicts(_versions(additions), imported_distributions())
            layer = Layer(key=key, folder=str(self._root / key), conflicts=tuple(replaced))
            (packages / "layer.json").write_bytes(msgspec.json.encode(layer))
            shutil.rmtree(self._root / key, ignore_errors=True)
            packages.rename(self._root / key)
        return layer

    def _resolve(self, work: Path, requirements: list[str]) -> list[dict[str, Any]]:
        """Return pip's report on what the requirements add to this environment."""
        report = work / "report.json"
        self._run_pip(work, ["--dry-run", "--report", str(report)], requirements)
        return list(msgspec.json.decode(report.read_bytes())["install"])

    def _run_pip(self, work: Path, options: list[str], requirements: list[str]) -> None:
        # in a file: a requirement may hold an index's credential, and arguments are for everybody to read
        listed = work / "requirements.txt"
        listed.write_text("\n".join(requirements) + "\n")
        listed.chmod(0o600)
        command = [sys.executable, "-P", "-m", "pip", "install", "--quiet", "--no-input", "--disable-pip-version-check"]
        environ = {name: value for name, value in os.environ.items() if not name.startswith("SAMOVAR_")}
        try:
            done = subprocess.run(  # noqa: S603 (our own interpreter; requirements come from who may deploy code)
                [*command, *options, "-r", str(listed)],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                errors="replace",
                timeout=self._timeout_s,
                env=environ,
                cwd=work,
                check=False,
            )
        except subprocess.TimeoutExpired:
            raise LoadFailed(f"installing the requirements took longer than {self._timeout_s:g} s") from None
        if done.returncode:
            lines = done.stdout.strip().splitlines()[-TAIL_LINES:]
            last = next(
                (line for line in reversed(lines) if line.startswith("ERROR")), lines[-1] if lines else "pip failed"
            )
            raise LoadFailed(f"installing the requirements failed: {last}", log_tail=lines)


def _versions(additions: list[dict[str, Any]]) -> dict[str, str]:
    return {canonical(a["metadata"]["name"]): str(a["metadata"]["version"]) for a in additions}
