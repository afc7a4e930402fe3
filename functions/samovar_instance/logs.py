"""The user's output: what is written to stdout and to stderr lands in the instance's two log files, a line at a time.

The files are opened by whoever asks for the fork, to be read and appended to. Each is capped: above MAX_LOG_BYTES only
its last KEPT_LOG_BYTES stay, checked once a second while the instance serves. This module does not know who reads them.
"""

from __future__ import annotations

import contextlib
import faulthandler
import io
import os
import sys

MAX_LOG_BYTES = 16 * 1024 * 1024
KEPT_LOG_BYTES = 1024 * 1024


def capture(stdout_fd: int, stderr_fd: int) -> None:
    """Send stdout and stderr to these, unbuffered enough to be followed, and close stdin and the given two."""
    null = os.open(os.devnull, os.O_RDONLY)
    os.dup2(null, 0)
    os.dup2(stdout_fd, 1)
    os.dup2(stderr_fd, 2)
    for fd in (null, stdout_fd, stderr_fd):
        os.close(fd)
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(line_buffering=True, errors="backslashreplace")
    faulthandler.enable()


def flush() -> None:
    """Write out what user code left in the buffers."""
    for stream in (sys.stdout, sys.stderr):
        with contextlib.suppress(OSError, ValueError):
            stream.flush()


def cap_both() -> None:
    """Cap what stdout and stderr go to."""
    cap(1)
    cap(2)


def cap(fd: int, max_bytes: int = MAX_LOG_BYTES, kept_bytes: int = KEPT_LOG_BYTES) -> bool:
    """Cut the log file behind `fd` to its last `kept_bytes` if it is larger than `max_bytes`; return whether it was.

    Output written between the read and the cut is lost: a log that grows this fast is not worth a lock in every write.
    """
    size = os.fstat(fd).st_size
    if size <= max_bytes:
        return False
    tail = os.pread(fd, kept_bytes, size - kept_bytes).partition(b"\n")[2]
    os.ftruncate(fd, 0)
    os.write(fd, b"[samovar] the log was larger than %d bytes; its beginning was dropped\n" % max_bytes + tail)
    return True
