"""The one-threaded control server of a zygote, a template and a blank instance.

One selector, non-blocking sockets, no event loop: a process that may be forked must own nothing that a child could not
leave behind. Peers say Hello, then send messages; descriptors that travel with them (SCM_RIGHTS) are kept in order.
A peer that is silent, malformed, oversized or does not read is closed with a reason; the others never notice.
This module does not know what the messages mean.
"""

from __future__ import annotations

import hmac
import logging
import os
import selectors
import signal
import socket
import time
from collections import deque
from collections.abc import Callable

from samovar import wire
from samovar.errors import ProtocolError

logger = logging.getLogger("samovar.instance")

HELLO_TIMEOUT_S = 5.0
MAX_PEERS = 64
MAX_HELLO_BYTES = 64 * 1024
MAX_CONTROL_BYTES = 64 * 1024 * 1024
MAX_FDS_PER_READ = 16
MAX_UNCLAIMED_FDS = 64


class Peer:
    """One connection. `hello` is None until it has introduced itself; `fds` are received and not yet claimed."""

    def __init__(self, sock: socket.socket, now_s: float) -> None:
        self.sock = sock
        self.hello: wire.Hello | None = None
        self.decoder = wire.instance_side(MAX_HELLO_BYTES)
        self.fds: deque[int] = deque()
        self.connected_at_s = now_s
        self.is_open = True

    def take_fds(self, count: int) -> list[int]:
        """Return the next `count` descriptors in order. Raises ProtocolError if fewer have come."""
        if len(self.fds) < count:
            raise ProtocolError(f"expected {count} descriptors with the frame, got {len(self.fds)}")
        return [self.fds.popleft() for _ in range(count)]

    def close(self) -> None:
        """Close the connection and every unclaimed descriptor."""
        self.is_open = False
        self.sock.close()
        while self.fds:
            os.close(self.fds.popleft())


def refusal(hello: wire.Hello, token: str) -> wire.Goodbye | None:
    """Return why this Hello is not accepted, or None. The token is compared in constant time."""
    if hello.version != wire.PROTOCOL_VERSION:
        return wire.Goodbye("version", f"this side speaks version {wire.PROTOCOL_VERSION}, not {hello.version}")
    if not hmac.compare_digest(hello.token.encode(), token.encode()):
        return wire.Goodbye("token", "the token is wrong")
    return None


class ControlServer:
    """Accepts peers on `listener` and yields their messages; also wakes up for signals.

    token: what a Hello must carry. welcome: makes the answer to a good Hello. backlog: messages read and not yet taken.
    """

    def __init__(self, listener: socket.socket, token: str, welcome: Callable[[], wire.Welcome]) -> None:
        self.listener = listener
        self.peers: list[Peer] = []
        self.backlog: deque[tuple[Peer, wire.ToInstance]] = deque()
        self._token = token
        self._welcome = welcome
        self._selector = selectors.DefaultSelector()
        self._wake_read, self._wake_write = socket.socketpair()
        for sock in (listener, self._wake_read, self._wake_write):
            sock.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ)
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        signal.set_wakeup_fd(self._wake_write.fileno(), warn_on_full_buffer=False)

    def next(self, timeout_s: float | None = None) -> tuple[Peer, wire.ToInstance] | None:
        """Return the next message and who sent it; None when a signal came or `timeout_s` passed instead."""
        if not self.backlog:
            self._poll(timeout_s)
        while self.backlog:
            peer, message = self.backlog.popleft()
            if peer.is_open:
                return peer, message
        return None

    def _poll(self, timeout_s: float | None) -> None:
        waiting = any(peer.hello is None for peer in self.peers)
        if waiting:
            timeout_s = min(HELLO_TIMEOUT_S, timeout_s if timeout_s is not None else HELLO_TIMEOUT_S)
        for key, _ in self._selector.select(timeout_s):
            if key.fileobj is self.listener:
                self._accept()
            elif key.fileobj is self._wake_read:
                self._wake_read.recv(4096)
            elif key.data.is_open:
                self.backlog.extend((key.data, message) for message in self._read(key.data))
        if waiting:
            self._drop_silent(time.monotonic())

    def send(self, peer: Peer, message: wire.Message) -> None:
        """Send at once, or drop the peer: control frames are small, one that does not fit means nobody reads."""
        if not peer.is_open:
            return
        frame = wire.encode(message)
        try:
            sent = peer.sock.send(frame)
        except OSError as error:
            logger.warning("lost a control connection: %s", error)
            self.drop(peer)
            return
        if sent < len(frame):
            logger.warning("dropped a control connection that does not read")
            self.drop(peer)

    def refuse(self, peer: Peer, goodbye: wire.Goodbye) -> None:
        """Tell the peer why and close its connection."""
        logger.warning("closed a control connection: %s %s", goodbye.reason, goodbye.detail)
        self.send(peer, goodbye)
        self.drop(peer)

    def drop(self, peer: Peer) -> None:
        """Forget the peer."""
        if peer in self.peers:
            self.peers.remove(peer)
            self._selector.unregister(peer.sock)
        peer.close()

    def detach(self) -> list[Peer]:
        """Stop serving, leave the listener and the introduced peers open; return those. `backlog` stays to be read."""
        for peer in [peer for peer in self.peers if peer.hello is None]:
            self.drop(peer)
        peers, self.peers = self.peers, []
        self._release()
        return peers

    def close(self) -> None:
        """Close everything this server owns, the listener included (a forked child does this with its copies)."""
        for peer in self.peers:
            peer.close()
        self.peers = []
        self._release()
        self.listener.close()

    def _release(self) -> None:
        signal.set_wakeup_fd(-1)
        self._selector.close()
        self._wake_read.close()
        self._wake_write.close()

    def _accept(self) -> None:
        try:
            sock, _ = self.listener.accept()
        except OSError:
            return
        if len(self.peers) >= MAX_PEERS:
            sock.close()
            return
        sock.setblocking(False)
        peer = Peer(sock, time.monotonic())
        self.peers.append(peer)
        self._selector.register(sock, selectors.EVENT_READ, peer)

    def _read(self, peer: Peer) -> list[wire.ToInstance]:
        try:
            data = self._receive(peer)
        except BlockingIOError:
            return []
        except OSError:
            data = b""
        if len(peer.fds) > MAX_UNCLAIMED_FDS:
            self.refuse(peer, wire.Goodbye("protocol", f"{len(peer.fds)} descriptors that no frame claims"))
            return []
        if not data:
            if peer.decoder.num_pending_bytes:
                logger.warning("a control connection ended in the middle of a frame")
            self.drop(peer)
            return []
        try:
            return self._introduced(peer, peer.decoder.feed(data))
        except ProtocolError as error:
            self.refuse(peer, wire.Goodbye("protocol", error.detail))
            return []

    def _receive(self, peer: Peer) -> bytes:
        if peer.sock.family != socket.AF_UNIX:
            return peer.sock.recv(65536)
        data, fds, _, _ = socket.recv_fds(peer.sock, 65536, MAX_FDS_PER_READ)
        for fd in fds:
            os.set_inheritable(fd, False)
        peer.fds.extend(fds)
        return data

    def _introduced(self, peer: Peer, messages: list[wire.ToInstance]) -> list[wire.ToInstance]:
        """Return the messages after the Hello, which is answered here."""
        if peer.hello is not None or not messages:
            return messages
        hello = messages.pop(0)
        if not isinstance(hello, wire.Hello):
            raise ProtocolError("the first frame must be Hello")
        goodbye = refusal(hello, self._token)
        if goodbye is not None:
            self.refuse(peer, goodbye)
            return []
        peer.hello = hello
        peer.decoder.max_frame_bytes = MAX_CONTROL_BYTES
        self.send(peer, self._welcome())
        return messages

    def _drop_silent(self, now_s: float) -> None:
        for peer in list(self.peers):
            if peer.hello is None and now_s - peer.connected_at_s >= HELLO_TIMEOUT_S:
                self.refuse(peer, wire.Goodbye("hello", f"no Hello within {HELLO_TIMEOUT_S:g} s"))
