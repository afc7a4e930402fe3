"""What a fork does while nobody needs it, so that what it will be needed for is quicker.

A fork shares its parent's pages and pays for each at first use, some microseconds a page. In a blank, a load and a call
of a tiny model touch most of what the real ones will, and the heap is grown by what a load usually takes. In a fork of
a template it is a call of the version itself. This module does not know claims or frames.
"""

from __future__ import annotations

import os
import socket
import time

from samovar import function, wire
from samovar.authoring import definition_of
from samovar.lifecycle import State
from samovar.spec import BlobRef, Manifest
from samovar_instance import devices, loader, serving
from samovar_instance.control import Peer
from samovar_instance.invoker import Invoker
from samovar_instance.loader import Loaded

HEAP_BYTES = 14 * 1024 * 1024  # a vocabulary of 30,000 words takes 12 MB
SERVING_TIMEOUT_S = 5.0
_kept: list[socket.socket] = []


def rehearse() -> None:
    """Load and run a tiny model, serve a call and grow the heap, 0.06 s of work; only its speed can be seen later."""
    devices.warm_cpu()
    _serve_a_call()
    _grow_heap()


def rehearse_call(loaded: Loaded) -> None:
    """Answer the version's example, if it has one, and serve a call of nothing.

    Of ours, nothing of it can be seen later but its speed: random numbers go on as if it had not been. User code sees
    one more warm-up. Raises whatever the handler raises.
    """
    loaded.have_loop()
    with devices.random_state_kept():
        loader.answer_example(loaded)
    _serve_a_call()


@function(name="rehearsal")
def _echo(text: str) -> str:
    return text


def _serve_a_call() -> None:
    """Be a ready instance of an echo for one call; its threads have ended and its sockets are closed afterwards."""
    definition = definition_of(_echo)
    manifest = Manifest(
        name="rehearsal", version=1, entry="", kind="function", handler="sync", code=BlobRef(sha256="", size_bytes=0)
    )
    token = os.urandom(16).hex()
    welcome = wire.Welcome(wire.PROTOCOL_VERSION, "", "", State.READY, 1)
    listener, caller, peers = _kept_ends() if _kept else _fresh_ends()
    with caller:
        caller.settimeout(SERVING_TIMEOUT_S)
        hello = wire.Hello(wire.PROTOCOL_VERSION, token, "manager")
        invoke = wire.Invoke(1, b'{"text":"tea is ready"}', SERVING_TIMEOUT_S * 1000)

        def answer_and_drain(text: str) -> str:
            caller.sendall(wire.encode(wire.Drain(SERVING_TIMEOUT_S)))
            return _echo(text)

        caller.sendall(wire.encode(hello) + wire.encode(invoke))
        loaded = Loaded(manifest, Invoker(definition, answer_and_drain), {}, [])
        signals, other = socket.socketpair()
        with signals, other:
            signals.setblocking(False)
            handover = serving.Handover(listener, token, welcome, peers)
            serving.serve_until_drained(loaded, handover, signals)


def keep_listener() -> None:
    """Make, while this process may still make sockets, what the rehearsals of its forks need of them."""
    _kept.append(_listen())


def _listen() -> socket.socket:
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.bind("")  # the kernel names it; nothing is left in the file system
    listener.listen(1)
    return listener


def _fresh_ends() -> tuple[socket.socket, socket.socket, list[Peer]]:
    """Return a listener, a connection to it, and nobody who is accepted already."""
    listener, caller = _listen(), socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    caller.connect(listener.getsockname())
    return listener, caller, []


def _kept_ends() -> tuple[socket.socket, socket.socket, list[Peer]]:
    """Return a listener that nobody can connect to from in here, and a connected pair in its stead."""
    caller, callee = socket.socketpair()
    callee.setblocking(False)
    return _kept[0].dup(), caller, [Peer(callee, time.monotonic())]


def _grow_heap() -> None:
    """Leave HEAP_BYTES of touched, free memory in malloc's heap, which keeps it (see the zygote)."""
    b"." * HEAP_BYTES
