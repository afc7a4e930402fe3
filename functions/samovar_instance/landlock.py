"""What a version may see of the file system and of other processes: Landlock rules, set at specialise.

It needs no privilege and cannot be lifted. Its versions differ in what they can restrict: 1 files, 4 TCP ports, 6
signals and abstract sockets; what a kernel lacks is left out and not in the names that `restrict` returns.
This module does not know versions, instances or which folders are theirs.
"""

from __future__ import annotations

import contextlib
import os
import stat
import struct
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from samovar_instance import kernel

_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1, 1 << 1, 1 << 2, 1 << 3
_REFER, _TRUNCATE, _IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
_FILE_RIGHTS = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV
_ALL_OF_ABI = {1: (1 << 13) - 1, 2: _REFER, 3: _TRUNCATE, 5: _IOCTL_DEV}
_NET_ABI, _SCOPE_ABI = 4, 6
MAX_ABI = 6  # all that is used here
_BIND_AND_CONNECT_TCP = 3
_ABSTRACT_SOCKETS_AND_SIGNALS = 3
_RULE_PATH_BENEATH = 1


@dataclass(frozen=True, slots=True)
class Folders:
    """What may be touched. readable: folders and files. writable: folders, and all in them. devices: opened for both,
    but nothing is made there. may_execute: programs in what is readable or writable may be started."""

    readable: tuple[str, ...]
    writable: tuple[str, ...] = ()
    devices: tuple[str, ...] = ()
    may_execute: bool = False


def names(abi: int, network: bool) -> list[str]:
    """Return the names of the layers that Landlock of this version gives."""
    found = ["landlock"] if abi >= 1 else []
    found += ["landlock_tcp"] if abi >= _NET_ABI and not network else []
    return found + (["landlock_scopes"] if abi >= _SCOPE_ABI else [])


class Rules:
    """Rules in the making, held by this process alone until they bind it: most can be made before they are needed."""

    def __init__(self, *, network: bool) -> None:
        """Begin with nothing allowed; TCP only with `network`. Raises OSError where there is no Landlock."""
        self._abi = kernel.landlock_abi()
        self._network = network
        self._handled = sum(rights for version, rights in _ALL_OF_ABI.items() if version <= self._abi)
        self._ruleset = kernel.landlock_ruleset(_attributes(self._abi, self._handled, network))

    def allow(self, folders: Folders) -> None:
        """These folders may be touched. Raises OSError."""
        _allow(self._ruleset, folders, self._handled)

    def restrict(self, own: Folders) -> list[str]:
        """Bind this process to these rules and its own folders; return the names of what is on. Raises OSError."""
        try:
            self.allow(own)
            kernel.landlock_restrict_self(self._ruleset)
        finally:
            self.drop()
        return names(self._abi, self._network)

    def drop(self) -> None:
        """Forget the rules. Idempotent."""
        ruleset, self._ruleset = self._ruleset, -1
        if ruleset >= 0:
            os.close(ruleset)


def set_apart() -> None:
    """Enter a domain of one's own: siblings in the parent's can be neither signalled nor traced. Raises OSError."""
    abi = kernel.landlock_abi()
    if abi < _SCOPE_ABI:
        raise OSError(0, "this kernel's Landlock knows no scopes")
    ruleset = kernel.landlock_ruleset(struct.pack("=QQQ", 0, 0, _ABSTRACT_SOCKETS_AND_SIGNALS))
    try:
        kernel.landlock_restrict_self(ruleset)
    finally:
        os.close(ruleset)


def _attributes(abi: int, handled: int, network: bool) -> bytes:
    attributes = struct.pack("=Q", handled)
    if abi >= _NET_ABI:
        attributes += struct.pack("=Q", 0 if network else _BIND_AND_CONNECT_TCP)
    if abi >= _SCOPE_ABI:
        attributes += struct.pack("=Q", _ABSTRACT_SOCKETS_AND_SIGNALS)
    return attributes


def _allow(ruleset: int, folders: Folders, handled: int) -> None:
    read = _READ_FILE | _READ_DIR | (_EXECUTE if folders.may_execute else 0)
    execute = 0 if folders.may_execute else _EXECUTE
    for paths, rights in (
        (folders.readable, read),
        (folders.writable, handled & ~_IOCTL_DEV & ~execute),
        (folders.devices, _READ_FILE | _READ_DIR | _WRITE_FILE | _TRUNCATE | _IOCTL_DEV),
    ):
        for path in paths:
            with contextlib.suppress(FileNotFoundError):
                _allow_path(ruleset, path, rights & handled)


def _allow_path(ruleset: int, path: str, rights: int) -> None:
    fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        if not stat.S_ISDIR(os.fstat(fd).st_mode):
            rights &= _FILE_RIGHTS
        kernel.landlock_add_rule(ruleset, _RULE_PATH_BENEATH, struct.pack("=Qi", rights, fd))
    finally:
        os.close(fd)


def outermost(paths: Iterable[str]) -> tuple[str, ...]:
    """Return the paths, resolved, without those inside another one and those that do not exist."""
    real = sorted({os.path.realpath(path) for path in paths if path and os.path.exists(path)})
    kept: list[str] = []
    for path in real:  # sorted: a folder comes before what is in it
        if not any(Path(path).is_relative_to(folder) for folder in kept):
            kept.append(path)
    return tuple(kept)
