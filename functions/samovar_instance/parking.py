"""One fork ahead of demand: a template's child that has rehearsed and waits to be handed out.

Forked when nobody has asked for a fork in a while, it answers the example once, so that the pages a call writes to are
its own by then, and parks. A Fork is handed to it with its descriptors through a private socket, one message. Until
then nobody but the template knows of it: it is in the template's process group, writes to the template's log, and ends
when the template does. This module does not know what is rehearsed, or what a child does once it is handed out.
"""

from __future__ import annotations

import ctypes
import logging
import os
import signal
import socket
import time
from collections.abc import Callable

from samovar import wire
from samovar.errors import ProtocolError
from samovar_instance import logs

logger = logging.getLogger("samovar.instance")

PARK_AFTER_S = 0.2  # what is forked now answers its first call undisturbed
NUM_FDS = 3
_IS_PARKED = b"p"
_MAX_FRAME_BYTES = 64 * 1024
_PARKED_NAME = b"samovar-parked"  # as ps and top show it
_PR_SET_PDEATHSIG, _PR_SET_NAME, _PR_GET_NAME = 1, 15, 16
_prctl = ctypes.CDLL(None, use_errno=True).prctl


class ParkedChild:
    """The template's end: at most one child that is parked, or on the way there.

    rehearse: what the child does before it parks; it is left alone for at most `max_rehearsal_s`.
    One that ends unasked is not replaced before the next Fork: whatever ended it would end the next one, too.
    """

    def __init__(self, rehearse: Callable[[], None], max_rehearsal_s: float) -> None:
        self._rehearse = rehearse
        self._max_rehearsal_s = max_rehearsal_s
        self._pid = 0
        self._sock: socket.socket | None = None
        self._due_at_s: float | None = None
        self.due_later()

    def due_later(self) -> None:
        """Have a child forked PARK_AFTER_S from now, unless there is one."""
        if not self._pid:
            self._due_at_s = time.monotonic() + PARK_AFTER_S

    def due_in_s(self) -> float | None:
        """Return the seconds until a child is to be forked, None if none is."""
        return max(0.0, self._due_at_s - time.monotonic()) if self._due_at_s is not None else None

    def fork(self) -> Parked | None:
        """Fork the child. Returns its end in the child, None in the template."""
        self._due_at_s = None
        ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        template_pid = os.getpid()
        pid = os.fork()
        if pid == 0:
            ours.close()
            return Parked(theirs, template_pid, self._rehearse, self._max_rehearsal_s)
        theirs.close()
        self._pid, self._sock = pid, ours
        return None

    def hand_out(self, fork: wire.Fork, fds: list[int]) -> int | None:
        """Give the child what it was waiting for; return its pid. None if there is none, or it is not parked yet."""
        if self._sock is None:
            return None
        try:
            # taken, not peeked at: closing a socket with something unread resets the connection under the child
            if self._sock.recv(1, socket.MSG_DONTWAIT) != _IS_PARKED:
                return None
            socket.send_fds(self._sock, [wire.encode(fork)], fds, socket.MSG_DONTWAIT)
        except OSError:
            return None
        pid = self._pid
        self._forget()
        return pid

    def reap(self) -> None:
        """Take note of a child that ended before it was handed out."""
        if self._pid:
            ended, status = os.waitpid(self._pid, os.WNOHANG)
            if ended:
                logger.warning("a parked fork ended with %d", os.waitstatus_to_exitcode(status))
                self._forget()

    def close(self) -> None:
        """Leave it to the template: called in another child, with whose copy of the socket it would never end."""
        self._forget()

    def _forget(self) -> None:
        if self._sock is not None:
            self._sock.close()
        self._pid, self._sock = 0, None


class Parked:
    """The child's end."""

    def __init__(
        self, sock: socket.socket, template_pid: int, rehearse: Callable[[], None], max_rehearsal_s: float
    ) -> None:
        self._sock = sock
        self._template_pid = template_pid
        self._rehearse = rehearse
        self._max_rehearsal_s = max_rehearsal_s

    def wait(self) -> tuple[wire.Fork, list[int]]:
        """Rehearse, park, and return the Fork this child is for; the process ends here if the template does.

        Raises ProtocolError if something else comes, and whatever the rehearsal raises.
        """
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        self._bounded_rehearsal()
        logs.flush()
        name = ctypes.create_string_buffer(16)
        _prctl(_PR_GET_NAME, name, 0, 0, 0)
        decoder = wire.instance_side(_MAX_FRAME_BYTES)
        try:
            self._sock.send(_IS_PARKED)
            _prctl(_PR_SET_NAME, _PARKED_NAME, 0, 0, 0)
            data, fds, _, _ = socket.recv_fds(self._sock, _MAX_FRAME_BYTES, NUM_FDS)
        except OSError:
            os._exit(0)
        if not data:
            os._exit(0)
        _prctl(_PR_SET_NAME, name, 0, 0, 0)
        self._sock.close()
        for fd in fds:
            os.set_inheritable(fd, False)
        messages = decoder.feed(data)
        if len(messages) != 1 or not isinstance(messages[0], wire.Fork) or len(fds) != NUM_FDS:
            raise ProtocolError("a parked child was handed something else than a Fork")
        return messages[0], fds

    def _bounded_rehearsal(self) -> None:
        """Rehearse; SIGALRM ends the process if that hangs, SIGKILL if the template ends meanwhile.

        Neither holds afterwards: a child that is handed out outlives its template.
        """
        _prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
        if os.getppid() != self._template_pid:
            os._exit(0)
        signal.setitimer(signal.ITIMER_REAL, self._max_rehearsal_s)
        self._rehearse()
        signal.setitimer(signal.ITIMER_REAL, 0)
        _prctl(_PR_SET_PDEATHSIG, 0, 0, 0, 0)
