"""What a refusal by the sandbox looks like from inside, and what to do about it: a sentence behind the error's text.

This module does not know which layer refused, nor whether one did: an operating system refuses for other reasons, too.
"""

from __future__ import annotations

import errno
import socket

_NETWORK = "functions have no network unless they ask for it: sv.Resources(network=True)"
_FILE = "functions see their own code, weights and scratch folder (TMPDIR); see docs/sandbox.md"
_CALL = "the sandbox allows no sockets without sv.Resources(network=True), no processes without allow_subprocess=True"
_TASKS = "the limit on processes and threads is reached"
_MEMORY = "the limit is sv.Resources(memory_gib=…)"
_MAX_CHAIN = 8


def hint_for(error: BaseException) -> str:
    """Return a sentence in brackets, with a space in front, or "" if nothing here explains `error`."""
    for cause in _chain(error):
        hint = _of(cause)
        if hint:
            return f" ({hint})"
    return ""


def _chain(error: BaseException) -> list[BaseException]:
    """Return the error and what it came from, said by Python or kept by libraries such as urllib."""
    found: list[BaseException] = []
    following: BaseException | None = error
    while following is not None and len(found) < _MAX_CHAIN and following not in found:
        found.append(following)
        wrapped = next((arg for arg in following.args if isinstance(arg, BaseException)), None)
        following = following.__cause__ or following.__context__ or wrapped
    return found


def _of(error: BaseException) -> str:
    if isinstance(error, MemoryError):
        return _MEMORY
    if isinstance(error, socket.gaierror):
        return _NETWORK
    if not isinstance(error, OSError):
        return ""
    if error.errno == errno.ENETUNREACH:
        return _NETWORK
    if error.errno in (errno.EACCES, errno.EPERM):
        return _FILE if isinstance(error.filename, str) else _CALL
    return _TASKS if isinstance(error, BlockingIOError) and error.errno == errno.EAGAIN else ""
