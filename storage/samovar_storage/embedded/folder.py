"""What both embedded servers keep in the data folder: private files, generated secrets, remembered ports.

`secrets.json` (0600) holds what must not be guessed, `<service>/ports.json` the ports of the last run.
This module does not know the servers.
"""

from __future__ import annotations

import fcntl
import json
import os
import secrets
import socket
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from samovar.errors import ConfigError
from samovar_storage.failures import translating

SECRETS_FILE = "secrets.json"
HOST = "127.0.0.1"
# Ports of one service are chosen from below the ephemeral range, so that no outgoing connection takes them in between.
FIRST_PORT, LAST_PORT = 20_000, 32_000


def write_private(path: Path, data: str) -> None:
    """`path` holds `data` afterwards, readable by its owner alone, and was never half written. Raises DiskFull."""
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    with translating(str(path)):
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
        with os.fdopen(descriptor, "w") as file:
            file.write(data)
        temporary.replace(path)


def make_private(folder: Path) -> Path:
    """`folder` exists afterwards with mode 0700. Raises ConfigError, DiskFull."""
    with translating(f"the folder {folder}"):
        folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        folder.chmod(0o700)
    return folder


def secret(data_dir: Path, name: str, make: Callable[[], str] = lambda: secrets.token_urlsafe(32)) -> str:
    """Return the named secret of this data folder, generated on first use. Safe between processes."""
    path = make_private(data_dir) / SECRETS_FILE
    with (data_dir / f".{SECRETS_FILE}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        known = _read(path)
        if name not in known:
            known[name] = make()
            write_private(path, json.dumps(known, indent=1))
        return str(known[name])


def ports(folder: Path, names: Sequence[str]) -> dict[str, int]:
    """Return a free loopback port per name: the one of the last run where it is still free, else another."""
    path = make_private(folder) / "ports.json"
    remembered = {name: int(port) for name, port in _read(path).items()}
    chosen: dict[str, int] = {}
    for name in names:
        port = remembered.get(name, 0)
        if not (port and is_free(port) and port not in chosen.values()):
            port = _pick(taken=set(chosen.values()) | set(remembered.values()))
        chosen[name] = port
    write_private(path, json.dumps(chosen))
    return chosen


def is_free(port: int) -> bool:
    """Return whether a server could listen on this loopback port now."""
    with socket.socket() as probe:
        # as the servers do: a port in TIME_WAIT from the last run is free
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind((HOST, port))
        except OSError:
            return False
    return True


def _pick(taken: set[int]) -> int:
    for _ in range(1000):
        port = FIRST_PORT + secrets.randbelow(LAST_PORT - FIRST_PORT)
        if port not in taken and is_free(port):
            return port
    raise ConfigError(f"no free port between {FIRST_PORT} and {LAST_PORT} on {HOST}")


def _read(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text()))
    except FileNotFoundError:
        return {}
    except (OSError, ValueError, TypeError) as error:
        raise ConfigError(f"cannot read {path}: {error}; restore or delete it") from error
