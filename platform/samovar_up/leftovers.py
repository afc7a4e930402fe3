"""What an earlier supervisor that was killed left running, and how it is brought down.

Every supervisor records the children it starts, with their start times and the machine's boot, in `children.json`.
Only a process that matches its record is ever signalled. This module does not start anything.
"""

from __future__ import annotations

import logging
import os
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

import msgspec

from samovar_up import procfs
from samovar_up.policy import STOP_ORDER, kind_of
from samovar_up.procfs import Process

logger = logging.getLogger(__name__)
FILE_NAME = "children.json"
_POLL_S = 0.05


class Record(msgspec.Struct, frozen=True, kw_only=True):
    """One child a supervisor started: which process of the platform it is, and which process of the machine.

    stop_timeout_s: how long it may take to finish its work.
    """

    name: str
    process: Process
    stop_timeout_s: float


class Records(msgspec.Struct, frozen=True, kw_only=True):
    boot_id: str
    children: list[Record]


def write(data_dir: Path, children: Iterable[Record]) -> None:
    """Record `children` as those now running; the file is replaced as a whole."""
    data = msgspec.json.encode(Records(boot_id=procfs.boot_id(), children=list(children)))
    temporary = data_dir / (FILE_NAME + ".new")
    temporary.write_bytes(data)
    os.replace(temporary, data_dir / FILE_NAME)


def read(data_dir: Path) -> list[Record]:
    """Return the recorded children that still run now."""
    try:
        records = msgspec.json.decode((data_dir / FILE_NAME).read_bytes(), type=Records)
    except (OSError, msgspec.MsgspecError):
        return []
    if records.boot_id != procfs.boot_id():
        return []
    return [child for child in records.children if kind_of(child.name) in STOP_ORDER and procfs.is_alive(child.process)]


def stop_recorded(data_dir: Path) -> int:
    """Stop what an earlier supervisor left, gateway first and stores last; return how many processes that were."""
    found = read(data_dir)
    for record in sorted(found, key=lambda record: STOP_ORDER.index(kind_of(record.name))):
        logger.warning("stopping the %s (pid %d) an earlier samovar up left", record.name, record.process.pid)
        stop([record.process], record.stop_timeout_s)
    return len(found)


def stop(processes: Sequence[Process], timeout_s: float) -> None:
    """Ask `processes` to end, wait up to `timeout_s` seconds, then kill those that did not."""
    for process in processes:
        procfs.send(process, signal.SIGTERM)
    if not _wait(lambda: not any(map(procfs.is_alive, processes)), timeout_s):
        for process in processes:
            procfs.send(process, signal.SIGKILL)
        _wait(lambda: not any(map(procfs.is_alive, processes)), 5.0)


def strays(own_pid: int, data_dir: Path, processes: Iterable[Process]) -> list[Process]:
    """Return what is ours among `processes`: descendants of `own_pid`, and instances that serve `data_dir`."""
    processes = list(processes)
    mine = {process.pid: process for process in procfs.descendants(own_pid, processes)}
    mine |= {process.pid: process for process in processes if _is_instance_of(process, f"{data_dir}/")}
    return [process for process in mine.values() if process.state not in "ZX"]


def _is_instance_of(process: Process, prefix: str) -> bool:
    """Zygote, blanks and instances share one command line, which names the module and the zygote's socket."""
    module = any(argument.startswith("samovar_instance") for argument in process.argv)
    return module and any(argument.startswith(prefix) for argument in process.argv)


def _wait(done: Callable[[], bool], timeout_s: float) -> bool:
    deadline_s = time.monotonic() + timeout_s
    while not done():
        if time.monotonic() >= deadline_s:
            return False
        time.sleep(_POLL_S)
    return True
