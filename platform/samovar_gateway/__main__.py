"""`python -m samovar_gateway --config FILE`: one gateway.

SIGTERM and SIGINT: not ready any more, then no new connections, running calls finish by their deadlines, exit 0
(`departure.py`). A second one does not wait for them.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import signal
import socket
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack

import uvloop

from samovar import settings as settings_reader
from samovar.errors import SamovarError
from samovar_gateway.gateway import Gateway, Sockets
from samovar_gateway.server import inherit, listen
from samovar_gateway.settings import NO_PORT, GatewaySettings, port_of_grpc

log = logging.getLogger("samovar.gateway")


def main(argv: list[str] | None = None) -> int:
    """Run until told to stop; return the exit code of what went wrong, 0 if nothing did."""
    parser = argparse.ArgumentParser(prog="samovar_gateway", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--config", help="settings file (JSON, 0600); every setting may also be a SAMOVAR_ variable")
    parser.add_argument("--host", help="address to listen on")
    parser.add_argument("--port", type=int, help="port to listen on, 0 = a free one")
    parser.add_argument("--gateway-id", help="name of this gateway among others")
    parser.add_argument("--own-fd", type=int, help="inherited listening socket that is this gateway's alone")
    parser.add_argument("--shared-fd", type=int, help="with --own-fd: one that is others', too; served once ready")
    parser.add_argument("--grpc-port", type=int, help="port of gRPC, 0 = a free one, -1 = none")
    parser.add_argument("--grpc-fd", type=int, help="with --own-fd: an inherited one for gRPC; served once ready")
    flags = vars(parser.parse_args(argv))
    inherited = {name: flags.pop(f"{name}_fd") for name in ("own", "shared", "grpc")}
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    try:
        settings = settings_reader.read(GatewaySettings, flags)
        with ExitStack() as stack:
            opened = _inherit(inherited) if inherited["own"] is not None else _listen(settings)
            sockets = Sockets(**{name: stack.enter_context(listener) for name, listener in opened})
            runner = stack.enter_context(asyncio.Runner(loop_factory=uvloop.new_event_loop))
            runner.run(_serve(settings, sockets))
    except SamovarError as error:
        log.error("%s", error.detail)
        return error.exit_code
    return 0


def _inherit(descriptors: Mapping[str, int | None]) -> Iterator[tuple[str, socket.socket]]:
    for name, descriptor in descriptors.items():
        if descriptor is not None:
            yield name, inherit(descriptor)


def _listen(settings: GatewaySettings) -> Iterator[tuple[str, socket.socket]]:
    yield "own", listen(settings.host, settings.port)
    grpc_port = port_of_grpc(settings.port, settings.grpc_port)
    if grpc_port != NO_PORT:
        yield "grpc", listen(settings.host, grpc_port, f"--grpc-port ({NO_PORT} is for none)")


async def _serve(settings: GatewaySettings, sockets: Sockets) -> None:
    gateway = Gateway(settings)
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, gateway.request_stop)
    await gateway.run(sockets)


if __name__ == "__main__":
    sys.exit(main())
