"""The user's output: everything written to stdout or stderr lands in the instance's log file, a line at a time.

The file is opened by whoever asks for the fork, in append mode. It is capped: above MAX_LOG_BYTES only its last
KEPT_LOG_BYTES stay, checked once a second while the instance serves. This module does not know who reads it.
"""

from __future__ import annotations

import contextlib
import faulthandler
import io
import os
import sys

MAX_LOG_BYTES = 16 * 1024 * 1024
KEPT_LOG_BYTES = 1024 * 1024


def capture(log_fd: int) -> None:
    """Send stdout and stderr to `log_fd`, unbuffered enough to be followed, and close stdin and `log_fd` itself."""
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(log_fd, 1)
    os.dup2(log_fd, 2)
    os.close(null)
    os.close(log_fd)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True, errors="backslashreplace")
    faulthandler.enable()


def flush() -> None:
    """Write out what user code left in the buffers."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()


def cap(fd: int = 1, max_bytes: int = MAX_LOG_BYTES, kept_bytes: int = KEPT_LOG_BYTES) -> bool:
    """Cut the log file behind `fd` to its last `kept_bytes` if it is larger than `max_bytes`; return whether it was.

    Output written between the read and the cut is lost: a log that grows this fast is not worth a lock in every write.
    """
    size = os.fstat(fd).st_size
    if size <= max_bytes:
        return False
    with open(f"/proc/self/fd/{fd}", "rb") as log:
        log.seek(size - kept_bytes)
        tail = log.read(kept_bytes).partition(b"\n")[2]
    os.ftruncate(fd, 0)
    os.write(fd, b"[samovar] the log was larger than %d bytes; its beginning was dropped\n" % max_bytes + tail)
    return True
