"""`python -m samovar_instance.zygote --socket PATH [--preload a,b]`: the process blank instances are forked from.

It imports what instances need, freezes it out of the garbage collector and forks on request. One thread, for ever: a
child forked from a parent that ran an operation on two threads hangs. It holds no credentials: whoever starts it gives
it a clean environment, and it drops what it does not know; then it enters the namespaces of its sandbox (confine.py).
Managers come and go; the next one is served like the first.
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
from typing import get_args

from samovar import wire
from samovar.lifecycle import State
from samovar_instance import devices, instance
from samovar_instance.confine import Mode, Policy, Sandbox, SandboxGap
from samovar_instance.control import ControlServer
from samovar_instance.forkserver import ForkServer, preload

logger = logging.getLogger("samovar.instance")

EXIT_GAP = 78  # as sysexits.h has it: a configuration that cannot be met
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
    listener = _listen(arguments.socket)  # before its folder is hidden from this process
    sandbox = Sandbox(policy_of(arguments))
    try:
        sandbox.at_zygote()
    except SandboxGap as gap:
        logger.error("%s", gap)
        return EXIT_GAP
    _keep_freed_memory()
    _warm([name for name in arguments.preload.split(",") if name])
    control = ControlServer(listener, "", lambda: _welcome(sandbox.on))
    child = ForkServer(control, sandbox, is_zygote=True).serve()
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
    add_sandbox_options(parser)
    return parser.parse_args(argv)


def add_sandbox_options(parser: argparse.ArgumentParser) -> None:
    """Let the sandbox of a zygote, or of what stands in for one, be described on the command line."""
    parser.add_argument("--sandbox", choices=get_args(Mode), default="best-effort", help="what a missing layer means")
    parser.add_argument("--hide", action="append", default=[], help="folder or file that instances must not see")
    parser.add_argument("--readable", action="append", default=[], help="of that, what they may read")
    parser.add_argument("--writable", action="append", default=[], help="of that, what they may write")
    parser.add_argument("--network", action="store_true", help="its instances may use the network")
    parser.add_argument("--max-memory", type=int, default=0, help="of an instance without a limit, bytes; 0 = none")


def policy_of(arguments: argparse.Namespace) -> Policy:
    """Return the policy that the options describe."""
    return Policy(
        mode=arguments.sandbox,
        hidden=tuple(arguments.hide),
        readable=tuple(arguments.readable),
        writable=tuple(arguments.writable),
        network=arguments.network,
        max_memory_bytes=arguments.max_memory,
    )


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
