"""`python -m samovar_instance.zygote --socket PATH [--preload a,b]`: the process blank instances are forked from.

It imports what instances need, freezes it out of the garbage collector and forks on request. One thread, for ever: a
child forked from a parent that ran an operation on two threads hangs. It holds no credentials: whoever starts it gives
it a clean environment, and it drops what it does not know. Managers come and go; the next one is served like the first.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import logging
import os
import signal
import socket
import sys
from pathlib import Path

from samovar import wire
from samovar.lifecycle import State
from samovar_instance import confine, devices, instance
from samovar_instance.control import ControlServer
from samovar_instance.forkserver import ForkServer, preload

logger = logging.getLogger("samovar.instance")

KEPT_BYTES = 64 * 1024 * 1024
MAX_HEAP_BLOCK_BYTES = 32 * 1024 * 1024  # the most that glibc takes; larger blocks are mapped one by one
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3
# Imported one by one if installed; torch and transformers are optional, the others come with samovar.
_MODULES = [
    "asyncio",
    "uvloop",
    "numpy",
    "safetensors",
    "samovar.tokenizer",
    "torch",
    "safetensors.torch",
    "samovar.torch",
]


def main(argv: list[str] | None = None) -> int:
    """Serve until SIGTERM or Drain; in a forked child, run the instance and end the process."""
    arguments = _parse(argv)
    logging.basicConfig(level=logging.WARNING, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    logging.getLogger("samovar").setLevel(logging.INFO)  # and not of every library: it is the user's log, too
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C is for whoever started this, who then tells it to end
    sandbox = confine.at_zygote()
    _keep_freed_memory()
    listener = _listen(arguments.socket)
    _warm([name for name in arguments.preload.split(",") if name])
    control = ControlServer(listener, "", lambda: _welcome(sandbox))
    child = ForkServer(control, is_zygote=True).serve()
    if child is not None:
        instance.run(child)
    logger.info("the zygote ends")
    arguments.socket.unlink(missing_ok=True)
    return 0


def _keep_freed_memory() -> None:
    """Have malloc keep up to KEPT_BYTES that were freed, in this process and all its forks.

    Else glibc returns what a forward used to the kernel after each one: 100 page faults for each sentence of MiniLM.
    """
    with contextlib.suppress(AttributeError):  # another libc has no mallopt
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(_M_MMAP_THRESHOLD, MAX_HEAP_BLOCK_BYTES)
        mallopt(_M_TRIM_THRESHOLD, KEPT_BYTES)


def _parse(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="samovar_instance.zygote")
    parser.add_argument("--socket", type=Path, required=True, help="Unix socket to serve Fork and Preload on")
    parser.add_argument("--preload", default="", help="comma-separated modules to import beyond the usual ones")
    return parser.parse_args(argv)


def _welcome(sandbox: list[str]) -> wire.Welcome:
    return wire.Welcome(wire.PROTOCOL_VERSION, "zygote", "", State.READY, 0, pid=os.getpid(), sandbox=sandbox)


def _listen(path: Path) -> socket.socket:
    """Return the control socket, open to this user only: it is the permission, there is no token."""
    path.unlink(missing_ok=True)
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    umask = os.umask(0o177)
    try:
        listener.bind(str(path))
    finally:
        os.umask(umask)
    listener.listen(16)
    return listener


def _warm(modules: list[str]) -> None:
    preloaded = preload([*_MODULES, *modules])
    for name, why in preloaded.failed.items():
        logger.info("not preloaded: %s (%s)", name, why)
    devices.warm_cpu()
    preload([])  # freeze what the warming made, too


if __name__ == "__main__":
    sys.exit(main())
