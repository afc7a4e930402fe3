"""Real processes in tests: started in a session of their own, ended with everything they started."""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

import psutil


@contextmanager
def running(
    command: Sequence[str],
    log: Path,
    environment: Mapping[str, str] | None = None,
    grace_s: float = 10.0,
    pass_fds: Sequence[int] = (),
) -> Iterator[subprocess.Popen[bytes]]:
    """Run a command for the body of a `with`; afterwards it is gone: SIGTERM, `grace_s`, then SIGKILL to its group.

    pass_fds: descriptors that it inherits."""
    with log.open("ab") as output:
        process = subprocess.Popen(
            list(command),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            env=dict(environment) if environment is not None else None,
            start_new_session=True,
            pass_fds=pass_fds,
        )
    try:
        yield process
    finally:
        stop(process, grace_s)


def stop(process: subprocess.Popen[bytes], grace_s: float = 10.0) -> int:
    """The process and what is left of its group are gone afterwards. Return its exit status."""
    if process.poll() is None:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(grace_s)
        except subprocess.TimeoutExpired:
            process.kill()
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass
    return process.wait(60)


def processes_mentioning(needle: str) -> list[psutil.Process]:
    """Return the live processes whose arguments, folder or open files name `needle` (a data folder, say)."""
    return [process for process in psutil.process_iter() if _mentions(process, needle)]


def _mentions(process: psutil.Process, needle: str) -> bool:
    try:
        if process.pid == os.getpid() or process.status() == psutil.STATUS_ZOMBIE:
            return False
        return needle in " ".join(process.cmdline()) or needle in process.cwd()
    except psutil.Error:
        return False
