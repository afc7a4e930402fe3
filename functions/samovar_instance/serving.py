"""A ready instance: the model thread in the main thread, the I/O thread beside it, and how both end.

    main thread   runner.run(), until the mailbox is stopped; then unload(), then exit
    I/O thread    uvloop: connections and the server; told of SIGTERM through a socket, however busy the main thread is

This module does not know frames, batches or how the version was loaded.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import signal
import socket
import threading
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NoReturn

import uvloop

from samovar import wire
from samovar.spec import concurrency
from samovar_instance import failures, logs
from samovar_instance.async_runner import AsyncRunner
from samovar_instance.batch_runner import BatchRunner
from samovar_instance.connection import Connection
from samovar_instance.control import Peer
from samovar_instance.loader import Loaded
from samovar_instance.mailbox import Mailbox
from samovar_instance.runner import Runner, StreamRunner, SyncRunner
from samovar_instance.server import Server

logger = logging.getLogger("samovar.instance")

LAST_WRITES_S = 1.0
UNLOAD_TIMEOUT_S = 5.0


@dataclass(slots=True)
class Handover:
    """What the I/O thread takes over. peers: connections made while blank, backlog: what they said and nobody read yet;
    ready_to: the one awaiting `ready`."""

    listener: socket.socket
    token: str
    welcome: wire.Welcome
    peers: list[Peer] = field(default_factory=list)
    backlog: list[tuple[Peer, wire.ToInstance]] = field(default_factory=list)
    ready_to: Peer | None = None
    ready: wire.Ready | None = None


def serve(loaded: Loaded, handover: Handover) -> NoReturn:
    """Serve until drained; the process ends here."""
    wake_read, wake_write = socket.socketpair()
    for sock in (wake_read, wake_write):
        sock.setblocking(False)
    signal.signal(signal.SIGTERM, lambda signum, frame: None)
    signal.set_wakeup_fd(wake_write.fileno(), warn_on_full_buffer=False)
    serve_until_drained(loaded, handover, wake_read)
    _unload(loaded)
    logs.flush()
    os._exit(0)


def serve_until_drained(loaded: Loaded, handover: Handover, signals: socket.socket) -> None:
    """Run the I/O thread and, here, the model thread, until a caller has drained them; both have ended then.

    signals: becomes readable with the numbers of signals that came.
    """
    mailbox = Mailbox()
    io = threading.Thread(target=_run_io, args=(loaded, handover, mailbox, signals), name="samovar-io", daemon=True)
    runner = make_runner(mailbox, loaded)
    io.start()
    runner.run()
    io.join()


def make_runner(mailbox: Mailbox, loaded: Loaded) -> Runner:
    """Return the runner for this kind of handler."""
    invoker = loaded.invoker
    if invoker.batch is not None:
        return BatchRunner(mailbox, invoker, loaded.loop)
    if loaded.loop is not None:
        return AsyncRunner(mailbox, invoker, loaded.loop, concurrency(loaded.manifest))
    if invoker.is_stream:
        return StreamRunner(mailbox, invoker)
    return SyncRunner(mailbox, invoker)


def _unload(loaded: Loaded) -> None:
    if loaded.unload is None:
        return
    signal.setitimer(signal.ITIMER_REAL, UNLOAD_TIMEOUT_S)  # SIGALRM's default ends the process
    try:
        loaded.unload()
    except BaseException as error:  # noqa: BLE001 (user code; the process ends either way)
        failures.log(error)


def _run_io(loaded: Loaded, handover: Handover, mailbox: Mailbox, signals: socket.socket) -> None:
    try:
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_io(loaded, handover, mailbox, signals))
    except BaseException as error:
        # a bug of ours: without this thread the process is deaf, and must be replaced
        logger.critical("the I/O thread failed", exc_info=error)
        os._exit(1)
    mailbox.stop()


async def _io(loaded: Loaded, handover: Handover, mailbox: Mailbox, signals: socket.socket) -> None:
    """Serve connections until the server says that all is done; write the last frames."""
    loop = asyncio.get_running_loop()
    ended: asyncio.Future[int] = loop.create_future()
    server = Server(handover.welcome, handover.token, loaded.manifest, mailbox, ended.set_result)
    loop.add_reader(signals, lambda: _on_signal(signals, server))
    await _take_over(handover, server)
    if handover.listener.family == socket.AF_UNIX:
        acceptor = await loop.create_unix_server(partial(Connection, server), sock=handover.listener)
    else:
        acceptor = await loop.create_server(partial(Connection, server), sock=handover.listener)
    ticks = loop.create_task(_tick(server))
    either: list[asyncio.Future[Any]] = [ended, ticks]
    await asyncio.wait(either, return_when=asyncio.FIRST_COMPLETED)
    if ticks.done():
        ticks.result()  # it never ends by itself: raises what went wrong
    ticks.cancel()
    acceptor.close()
    exit_code = ended.result()
    await _write_last(server)
    if exit_code != 0:
        logs.flush()
        os._exit(exit_code)


async def _take_over(handover: Handover, server: Server) -> None:
    """Go on with the connections that were made while this was a blank."""
    loop = asyncio.get_running_loop()
    connections: dict[Peer, Connection] = {}
    for peer in handover.peers:
        _, connections[peer] = await loop.connect_accepted_socket(partial(Connection, server, peer), peer.sock)
        if peer is handover.ready_to and handover.ready is not None:
            connections[peer].send(handover.ready)
            server.flush()
    for peer, message in handover.backlog:
        if peer in connections:
            connections[peer].handle([message])


def _on_signal(signals: socket.socket, server: Server) -> None:
    with contextlib.suppress(BlockingIOError):
        if signal.SIGTERM in signals.recv(4096):
            server.drain(None)


async def _tick(server: Server) -> None:
    while True:
        await asyncio.sleep(1)
        server.tick()
        logs.cap_both()


async def _write_last(server: Server) -> None:
    """Close every connection once its last frames are written, but wait no longer than LAST_WRITES_S."""
    closing = list(server.connections)
    for connection in closing:
        connection.close()
    if closing:
        await asyncio.wait([connection.closed for connection in closing], timeout=LAST_WRITES_S)
