"""`python -m samovar_pool --config FILE`: one node's pool manager.

SIGTERM and SIGINT drain every instance, then end all processes. SIGHUP ends the manager alone and leaves instances,
templates and zygotes for the next one, as a `kill -9` would.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import os
import signal
import sys
from pathlib import Path

import uvloop

from samovar import settings as settings_reader
from samovar.errors import SamovarError
from samovar_pool.node import Node
from samovar_pool.settings import PoolSettings

logger = logging.getLogger("samovar.pool")


def main(argv: list[str] | None = None) -> int:
    """Run until told to stop; return the exit code of what went wrong, 0 if nothing did."""
    parser = argparse.ArgumentParser(prog="samovar_pool", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--config", help="settings file (JSON, 0600); every setting may also be a SAMOVAR_ variable")
    arguments = parser.parse_args(argv)
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(name)s %(message)s")
    try:
        config = arguments.config or os.environ.get("SAMOVAR_CONFIG")
        settings = settings_reader.read(PoolSettings, {"config": config})
        with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
            runner.run(_serve(settings, [Path(config)] if config else []))
    except SamovarError as error:
        logger.error("%s", error.detail)
        return error.exit_code
    return 0


async def _serve(settings: PoolSettings, secret_files: list[Path]) -> None:
    os.umask(0o022)  # the node cache is for instances to read; what is not is made with a mode of its own
    node = Node(settings, secret_files)
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, node.request_stop, True)
    loop.add_signal_handler(signal.SIGHUP, node.request_stop, False)
    await node.run()


if __name__ == "__main__":
    sys.exit(main())
