"""The pool manager's part of the sandbox: what zygotes are told, uids, folders, and what must be had before it starts.

The layers themselves are tried and recorded inside (samovar_instance.confine); cgroups are in `cgroups`. This module
does not know versions or instances.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import msgspec

from samovar.errors import ConfigError
from samovar.values import Struct
from samovar_pool.backends.cgroups import Cgroups

Mode = Literal["off", "best-effort", "required"]

NETWORK = "network"  # ends the name of an environment whose instances may call out
NUM_UIDS = 65536
# The first is beyond what distributions, systemd and container engines hand out; the second for containers with few.
_UID_BASES = (0x70000000, 40000)
_NUM_FEW_UIDS = 20000
PROBE_TIMEOUT_S = 60.0


class Report(Struct, frozen=True, kw_only=True):
    """What `python -m samovar_instance.probe` says: layers that are on, and why the others are not."""

    on: list[str]
    off: dict[str, str]


def network_environment(environment: str, network: bool) -> str:
    """Return the name of the environment of the same packages whose instances may use the network, or not."""
    return "-".join(filter(None, (environment, NETWORK))) if network else environment


def packages_of(environment: str) -> str:
    """Return the name without what says that its instances may use the network."""
    return environment.removesuffix(NETWORK).removesuffix("-")


def has_network(environment: str) -> bool:
    """Return whether instances of the environment may use the network."""
    return environment.rpartition("-")[2] == NETWORK


def uid_range(uid_map: str) -> range:
    """Return the uids that instances may be given, none if this user namespace maps too few (text of uid_map)."""
    rows = [tuple(map(int, line.split())) for line in uid_map.splitlines()]
    for base, count in zip(_UID_BASES, (NUM_UIDS, _NUM_FEW_UIDS), strict=True):
        if any(first <= base and base + count <= first + length for first, _, length in rows):
            return range(base, base + count)
    return range(0)


class Uids:
    """Hands out uids in turn, so that one that was just used rests for as long as possible."""

    def __init__(self, uids: range) -> None:
        self._uids = uids
        self._next = 0

    def take(self, taken: Collection[int]) -> int:
        """Return a uid that is not among `taken`, 0 if there is none."""
        for _ in range(len(self._uids)):
            uid = self._uids[self._next % len(self._uids)]
            self._next += 1
            if uid not in taken:
                return uid
        return 0


@dataclass(frozen=True)
class Sandboxing:
    """How this node confines what it runs. hidden: what no instance may see, beside homes. readable, writable: of that,
    what they need. max_memory_bytes: of a version that sets no limit."""

    mode: Mode
    uids: Uids
    cgroups: Cgroups | None
    hidden: tuple[str, ...] = ()
    readable: tuple[str, ...] = ()
    writable: tuple[str, ...] = ()
    max_memory_bytes: int = 0

    @classmethod
    def of(cls, mode: Mode, data_dir: Path, secret_files: Iterable[Path], max_memory_bytes: int) -> Sandboxing:
        """Return what fits this process: uids only for root, cgroups where it may make them."""
        readable, writable = (data_dir / "cache", data_dir / "layers"), (data_dir / "instances",)
        if mode == "off":
            return cls(mode, Uids(range(0)), None)
        is_root = os.geteuid() == 0
        if is_root:
            for folder in readable:
                folder.chmod(0o755)  # below a data folder that is nobody else's
        return cls(
            mode,
            Uids(uid_range(Path("/proc/self/uid_map").read_text()) if is_root else range(0)),
            Cgroups.find(data_dir),
            tuple(str(path) for path in (data_dir, Path.home(), *secret_files)),
            tuple(map(str, readable)),
            tuple(map(str, writable)),
            max_memory_bytes,
        )

    def options(self, environment: str) -> list[str]:
        """Return the command-line options of a zygote of `environment`."""
        options = ["--sandbox", self.mode, "--max-memory", str(self.max_memory_bytes)]
        for name, paths in (("--hide", self.hidden), ("--readable", self.readable), ("--writable", self.writable)):
            options += [word for path in paths for word in (name, path)]
        return [*options, "--network"] if has_network(environment) else options

    async def check(self, environ: dict[str, str]) -> None:
        """Return if every layer can be had or none is required. Raises ConfigError that names the gaps."""
        if self.mode != "required":
            return
        off = dict((await probe(self.options(""), environ, self.uids.take(()))).off)
        off |= self.cgroups.gaps() if self.cgroups is not None else {"cgroups": "none that this process may make"}
        if off:
            gaps = "; ".join(f"{name} ({why})" for name, why in sorted(off.items()))
            raise ConfigError(f"sandbox = required, but this machine lacks: {gaps}")


async def probe(options: list[str], environ: dict[str, str], uid: int) -> Report:
    """Return which layers a process of `options` and `uid` has. Raises ConfigError if that cannot be found out."""
    command = [sys.executable, "-P", "-m", "samovar_instance.probe", "--uid", str(uid), *options]
    process = await asyncio.create_subprocess_exec(
        *command, env=environ, cwd="/", stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE
    )
    try:
        async with asyncio.timeout(PROBE_TIMEOUT_S):
            output, _ = await process.communicate()
        return msgspec.json.decode(output, type=Report)
    except (TimeoutError, msgspec.MsgspecError) as error:
        raise ConfigError(f"the sandbox cannot be tried out: {error or 'no answer'}") from error
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()
