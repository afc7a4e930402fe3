"""Forks children on request: what a zygote and a template have in common. One thread, for ever.

A `Fork` frame carries three descriptors, the child's listening socket, its stdout and its stderr. In the child `serve`
returns a `Child`; in the parent it goes on, reaps children as they end and tells every connected manager. A child may
have been forked ahead of its Fork (parking.py). With no manager connected the ends are kept for the next one.
This module does not know what a child does.
"""

from __future__ import annotations

import gc
import importlib
import logging
import os
import signal
import socket
import time
from collections import deque
from dataclasses import dataclass

from samovar import wire
from samovar.errors import ProtocolError
from samovar_instance.confine import Sandbox
from samovar_instance.control import ControlServer, Peer
from samovar_instance.parking import NUM_FDS, Parked, ParkedChild
from samovar_instance.patience import Patience

logger = logging.getLogger("samovar.instance")

MAX_UNTOLD_EXITS = 1000


@dataclass(frozen=True, slots=True)
class Child:
    """What a forked process starts with."""

    instance_id: str
    token: str
    listener: socket.socket
    stdout_fd: int
    stderr_fd: int
    device: str
    num_threads: int
    memory_bytes: int
    sandbox: Sandbox


class ForkServer:
    """Serves Fork, Preload and Drain on a control server until told to end.

    sandbox: the confinement of this process, which its children inherit and add to.
    is_zygote: children get none of this process's descriptors, and Preload is served.
    parked: a child kept ahead of demand, which the next Fork is handed to; None forks each on demand.
    """

    def __init__(
        self, control: ControlServer, sandbox: Sandbox, *, is_zygote: bool, parked: ParkedChild | None = None
    ) -> None:
        self._control = control
        self._sandbox = sandbox
        self._is_zygote = is_zygote
        self._parked = parked
        self._patience = Patience()
        self._children: set[int] = set()
        self._untold: deque[wire.Exited] = deque(maxlen=MAX_UNTOLD_EXITS)
        self._ending = False
        signal.signal(signal.SIGCHLD, _nothing)
        signal.signal(signal.SIGTERM, self._end)

    def serve(self) -> Child | None:
        """Return a Child in each forked process, None in this one when it was told to end (SIGTERM or Drain)."""
        while not self._ending:
            due_in_s = self._parked.due_in_s() if self._parked is not None else None
            received = self._control.next(due_in_s)
            child = self._handle(*received) if received is not None else self._park_if_due()
            if child is not None:
                return child
            self._reap()
            self._tell_exits()
        return None

    def _handle(self, peer: Peer, message: wire.ToInstance) -> Child | None:
        try:
            if isinstance(message, wire.Fork):
                return self._fork(peer, message)
            if isinstance(message, wire.Preload) and self._is_zygote:
                self._control.send(peer, preload(message.modules))
            elif isinstance(message, wire.Drain):
                self._ending = True
            else:
                raise ProtocolError(f"{type(message).__name__} is not for a fork server")
        except ProtocolError as error:
            self._control.refuse(peer, wire.Goodbye("protocol", error.detail))
        return None

    def _fork(self, peer: Peer, fork: wire.Fork) -> Child | None:
        fds = peer.take_fds(NUM_FDS)
        started_s = time.perf_counter()
        pid = self._parked.hand_out(fork, fds) if self._parked is not None else None
        if pid is None:
            pid = os.fork()
        if pid == 0:
            self._leave_parent()
            return self._become_child(fork, *fds)
        if self._parked is not None:
            self._parked.due_later()
        for fd in fds:
            os.close(fd)
        self._children.add(pid)
        fork_ms = (time.perf_counter() - started_s) * 1000
        self._control.send(peer, wire.Forked(fork.instance_id, pid, fork_ms))
        return None

    def _park_if_due(self) -> Child | None:
        """Return a Child in the parked process, once a Fork is handed to it; None in this one."""
        if self._parked is None or self._parked.due_in_s() != 0:
            return None
        if self._patience.waits():
            self._parked.due_later()
            return None
        parked = self._parked.fork()
        return self._be_parked(parked) if parked is not None else None

    def _be_parked(self, parked: Parked) -> Child:
        self._leave_parent()
        try:
            fork, fds = parked.wait()
            return self._become_child(fork, *fds)
        except BaseException as error:
            logger.critical("a parked fork failed", exc_info=error)
            os._exit(1)

    def _leave_parent(self) -> None:
        """Close, in a child, what is the parent's alone; a template's child gives up what a template may."""
        if not self._is_zygote:
            self._sandbox.at_template_fork()
        self._control.close()
        if self._parked is not None:
            self._parked.close()
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)

    def _become_child(self, fork: wire.Fork, listen_fd: int, stdout_fd: int, stderr_fd: int) -> Child:
        os.setsid()
        if self._is_zygote:  # a template's children share what it has open, and its uid
            self._sandbox.at_fork((listen_fd, stdout_fd, stderr_fd), fork.uid)
        return Child(
            instance_id=fork.instance_id,
            token=fork.token,
            listener=socket.socket(fileno=listen_fd),
            stdout_fd=stdout_fd,
            stderr_fd=stderr_fd,
            device=fork.device,
            num_threads=fork.num_threads,
            memory_bytes=fork.memory_bytes,
            sandbox=self._sandbox,
        )

    def _end(self, signum: int, frame: object) -> None:
        self._ending = True

    def _reap(self) -> None:
        if self._parked is not None:
            self._parked.reap()
        for pid in list(self._children):
            ended, status = os.waitpid(pid, os.WNOHANG)
            if ended:
                self._children.discard(pid)
                self._untold.append(wire.Exited(pid, os.waitstatus_to_exitcode(status)))

    def _tell_exits(self) -> None:
        managers = [peer for peer in self._control.peers if peer.hello is not None]
        while managers and self._untold:
            exited = self._untold.popleft()
            for peer in managers:
                self._control.send(peer, exited)


def preload(modules: list[str]) -> wire.Preloaded:
    """Import `modules`, move what they made out of the garbage collector's sight, and say which failed and why."""
    done, failed = [], {}
    for name in modules:
        try:
            importlib.import_module(name)
            done.append(name)
        except Exception as error:  # noqa: BLE001 (whatever a module raises on import is the answer)
            failed[name] = f"{type(error).__name__}: {error}"
    gc.collect()
    gc.freeze()
    num_threads = len(os.listdir("/proc/self/task"))
    if num_threads > 1:
        logger.warning("after importing %s this process has %d threads; forks may hang", modules, num_threads)
    return wire.Preloaded(done, failed)


def _nothing(signum: int, frame: object) -> None:
    """Exists so that the signal is written to the wake-up socket."""
