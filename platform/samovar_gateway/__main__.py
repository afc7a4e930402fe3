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
from contextlib import ExitStack

import uvloop

from samovar import settings as settings_reader
from samovar.errors import SamovarError
from samovar_gateway.gateway import Gateway
from samovar_gateway.server import inherit, listen
from samovar_gateway.settings import GatewaySettings

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
    flags = vars(parser.parse_args(argv))
    descriptors = flags.pop("own_fd"), flags.pop("shared_fd")
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    try:
        settings = settings_reader.read(GatewaySettings, flags)
        with ExitStack() as stack:
            own, shared = (None if number is None else stack.enter_context(inherit(number)) for number in descriptors)
            own = own or stack.enter_context(listen(settings.host, settings.port))
            runner = stack.enter_context(asyncio.Runner(loop_factory=uvloop.new_event_loop))
            runner.run(_serve(settings, own, shared))
    except SamovarError as error:
        log.error("%s", error.detail)
        return error.exit_code
    return 0


async def _serve(settings: GatewaySettings, own: socket.socket, shared: socket.socket | None) -> None:
    gateway = Gateway(settings)
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, gateway.request_stop)
    await gateway.run(own, shared)


if __name__ == "__main__":
    sys.exit(main())
